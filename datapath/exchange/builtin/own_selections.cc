// SPDX-License-Identifier: Apache-2.0
// Own selections: each rank sends its own positions with its values, the owners of regions sum
// them, and the largest sums are kept. A rank's residual loses only the values that it sent and the
// ranks kept. A sum that was dropped stays in the residuals of all ranks that contributed to it.

#include <algorithm>
#include <iterator>

#include "datapath/codec/select/selection.h"
#include "datapath/exchange/selection_exchange.h"

namespace weir {
namespace {

class OwnSelectionExchange : public SelectionExchange {
 public:
  using SelectionExchange::SelectionExchange;

 protected:
  Status EncodeFirst() override {
    WEIR_RETURN_IF_ERROR(SelectionExchange::EncodeFirst());
    WEIR_RETURN_IF_ERROR(codec().DecodeIndices(selection(), gradient_.size(), &own_));
    return OkStatus();
  }

  Status MoveSelection(Group& group) override {
    SparseSumOperand operand;
    operand.selected = {.indices = own_, .values = ValuesAt(own_)};
    operand.elements = gradient_.size();
    operand.kept_target = SelectionTarget(gradient_.size(), context_.params.ratio);
    operand.balance = &in_.memory.balance;
    WEIR_RETURN_IF_ERROR(RunCollective(in_.collective, group, operand).status());
    chosen_ = std::move(operand.sums);
    std::vector<uint32_t> taken;
    std::set_intersection(own_.begin(), own_.end(), chosen_.indices.begin(), chosen_.indices.end(),
                          std::back_inserter(taken));
    own_ = std::move(taken);
    AccountFor(ValuesAt(own_));
    return OkStatus();
  }

  const std::vector<uint32_t>& sent() const override { return own_; }

 private:
  std::vector<uint32_t> own_;  // this rank's selection, then the kept part of it
};

}  // namespace

void RegisterOwnSelections(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<OwnSelectionExchange>>(
                       ExchangeTraits{.name = "own_selections",
                                      .summary = "each rank sends its own positions and values",
                                      .payload = PayloadForm::kSharedIndex,
                                      .gain_prior = 0.7}));
}

}  // namespace weir
