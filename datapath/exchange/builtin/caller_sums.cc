// SPDX-License-Identifier: Apache-2.0
// Gradients that the session's caller sums over a process group of its own. Only what precedes the
// sum happens here: the residual of earlier steps is added, and the gradient is measured.

#include "datapath/exchange/coded_exchange.h"

namespace weir {
namespace {

class CallerSumExchange : public CodedExchange {
 public:
  using CodedExchange::CodedExchange;

  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    return MemoryOfCopies(codec, elements, context, 0);
  }

 protected:
  Status EncodeFirst() override {
    outcome_.payload_bytes = gradient_.size_bytes();
    return in_.sample ? Sample(GradientStatistics()) : OkStatus();
  }
  Status MovePayloads(Group&) override { return Internal("the caller sums this gradient"); }
  Status Decode() override { return Internal("the caller sums this gradient"); }
};

}  // namespace

void RegisterCallerSums(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<CallerSumExchange>>(
                       ExchangeTraits{.name = "caller_sums",
                                      .summary = "the elements themselves, which the caller sums",
                                      .payload = PayloadForm::kLanes,
                                      .need = CodecNeed::kRawFloat}));
}

}  // namespace weir
