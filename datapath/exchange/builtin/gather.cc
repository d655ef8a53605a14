// SPDX-License-Identifier: Apache-2.0
// Gathering: every rank gets the payload of every rank, of any size, and decodes all of them in
// rank order, so that the sum has the same bits everywhere.

#include "datapath/exchange/coded_exchange.h"

namespace weir {
namespace {

class GatherExchange : public CodedExchange {
 public:
  using CodedExchange::CodedExchange;
  ~GatherExchange() override { env_.gathered.Return(gathered_); }

  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    const auto world = static_cast<uint64_t>(context.world);
    return MemoryOfCopies(codec, elements, context, 1 + world);  // own payload, and all payloads
  }

 protected:
  Status MovePayloads(Group& group) override {
    gathered_ = env_.gathered.Take();
    GatherOperand operand;
    operand.payload = payload_.bytes().first(outcome_.payload_bytes);
    operand.payload_bytes_max = codec().MaxEncodedBytes(gradient_.size(), context_);
    operand.gathered = &gathered_;
    return RunCollective(in_.collective, group, operand).status();
  }

  Status Decode() override { return DecodeSum(gathered_); }

 private:
  Gathered gathered_;
};

}  // namespace

void RegisterGather(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<GatherExchange>>(
                       ExchangeTraits{.name = "opaque",
                                      .summary = "every rank decodes the payloads of all",
                                      .payload = PayloadForm::kOpaque,
                                      .gathers = true,
                                      .on_devices = true}));
}

}  // namespace weir
