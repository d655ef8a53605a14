// SPDX-License-Identifier: Apache-2.0
// An exchange form that the library does not have, and a collective that serves it: every rank gets
// the float32 elements of all and adds them in double precision, in rank order.

#include "datapath/collective/primitives.h"
#include "datapath/exchange/coded_exchange.h"

namespace weir {
namespace {

/// The form's own operand.
struct DoubleSumOperand {
  std::span<const float> own;
  std::vector<double> sum;  // out: as long as `own`, the same bits on every rank
};

Status PrepareOperand(Group&, const DoubleSumOperand&) { return OkStatus(); }

class DoubleSumExchange : public CodedExchange {
 public:
  using CodedExchange::CodedExchange;

  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    ExchangeMemory memory = MemoryOfCopies(codec, elements, context, 0);
    memory.payload_bytes =
        elements * (sizeof(double) + sizeof(float) * static_cast<uint64_t>(context.world));
    return memory;
  }

 protected:
  Status EncodeFirst() override {
    outcome_.payload_bytes = gradient_.size_bytes();
    return OkStatus();
  }

  Status MovePayloads(Group& group) override {
    operand_.own = gradient_;
    return RunCollective(in_.collective, group, operand_).status();
  }

  Status Decode() override {
    for (size_t i = 0; i < gradient_.size(); ++i) {
      gradient_[i] = static_cast<float>(operand_.sum[i]);
    }
    outcome_.non_finite = !ScaleFinite(gradient_, scale_);
    return OkStatus();
  }

 private:
  DoubleSumOperand operand_;
};

}  // namespace

void RegisterDoubleGather(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<DoubleSumOperand>(
      registry, wire_id,
      {
          .name = "double_gather",
          .summary = "float32 elements of all ranks, added in double precision (an example)",
          .form = "double_sums",
          .cost = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}, .reduce = {.n = 1}},
          .all_pairs = true,
      },
      [](Group& group, DoubleSumOperand& operand, CollectiveReport*) -> Status {
        std::vector<float> all(operand.own.size() * static_cast<size_t>(group.size()));
        WEIR_RETURN_IF_ERROR(SmallAllGather(group, std::as_bytes(operand.own),
                                            std::as_writable_bytes(std::span(all))));
        operand.sum.assign(operand.own.size(), 0);
        for (size_t i = 0; i < all.size(); ++i) operand.sum[i % operand.own.size()] += all[i];
        return OkStatus();
      });
}

void RegisterDoubleSums(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<DoubleSumExchange>>(
                       ExchangeTraits{.name = "double_sums",
                                      .summary = "elements of all ranks, added in double precision",
                                      .payload = PayloadForm::kLanes,
                                      .need = CodecNeed::kRawFloat}));
}

}  // namespace weir
