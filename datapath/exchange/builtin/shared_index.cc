// SPDX-License-Identifier: Apache-2.0
// Shared positions: the selection of one rank, or the union of all selections, applies to all
// ranks, so that an ordinary all-reduce can sum the values there.

#include <algorithm>
#include <iterator>

#include "datapath/exchange/selection_exchange.h"

namespace weir {
namespace {

class IndexExchange : public SelectionExchange {
 public:
  using SelectionExchange::SelectionExchange;

 protected:
  // All ranks will send the values at `chosen_`.
  void TakeChosen() {
    chosen_.values = ValuesAt(chosen_.indices);
    AccountFor(chosen_.values);
    codec().LearnSelection(context_, chosen_.indices.size(), gradient_.size());
  }
};

class SharedIndexExchange : public IndexExchange {
 public:
  using IndexExchange::IndexExchange;

 protected:
  Status MoveSelection(Group& group) override {
    SharedIndexOperand operand;
    operand.selection = selection();
    operand.selection_bytes_max = SelectionBytesMax();
    operand.norm_squared = selection_energy();
    operand.step = in_.step;
    operand.open = [this](std::span<const std::byte> selection) {
      WEIR_RETURN_IF_ERROR(codec().DecodeIndices(selection, gradient_.size(), &chosen_.indices));
      TakeChosen();
      return OkStatus();
    };
    operand.values = &chosen_.values;
    return RunCollective(in_.collective, group, operand).status();
  }
};

class UnionIndexExchange : public IndexExchange {
 public:
  using IndexExchange::IndexExchange;

 protected:
  Status MoveSelection(Group& group) override {
    UnionIndexOperand operand;
    operand.selection = selection();
    operand.selection_bytes_max = SelectionBytesMax();
    operand.open = [this](std::span<const std::vector<std::byte>> selections) {
      return Open(selections);
    };
    operand.values = &chosen_.values;
    return RunCollective(in_.collective, group, operand).status();
  }

 private:
  Status Open(std::span<const std::vector<std::byte>> selections) {
    std::vector<uint32_t> selected, merged;
    for (size_t rank = 0; rank < selections.size(); ++rank) {
      if (Status status = codec().DecodeIndices(selections[rank], gradient_.size(), &selected);
          !status.ok()) {
        return Annotate(status, StrCat("indices of rank ", rank));
      }
      merged.clear();
      merged.reserve(chosen_.indices.size() + selected.size());
      std::set_union(chosen_.indices.begin(), chosen_.indices.end(), selected.begin(),
                     selected.end(), std::back_inserter(merged));
      chosen_.indices.swap(merged);
    }
    TakeChosen();
    return OkStatus();
  }
};

}  // namespace

void RegisterSharedIndex(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<SharedIndexExchange>>(
                       ExchangeTraits{.name = "shared_index",
                                      .summary = "one rank's positions serve all",
                                      .payload = PayloadForm::kSharedIndex,
                                      .gain_prior = 0.7}));
}

void RegisterUnionIndex(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<UnionIndexExchange>>(
                       ExchangeTraits{.name = "union_index",
                                      .summary = "all ranks' positions together serve all",
                                      .payload = PayloadForm::kUnionIndex,
                                      .gain_prior = 0.85}));
}

}  // namespace weir
