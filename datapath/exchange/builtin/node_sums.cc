// SPDX-License-Identifier: Apache-2.0
// Sums before encoding. The ranks of a node add their gradients exactly, including earlier
// residuals. Ranks that encode a part of that sum do so inside the collective, and keep the loss as
// the aggregate residual of that part (ResidualStore::BeginSum). What the next step does not encode
// there (another part, codec or collective, a dense step) is added to that rank's gradient, and so
// to the sum again. The totals of the sums arrive in the caller's buffer.
//
// A rank that encodes a sum with NaN or infinity detects it and announces it with the payload.

#include <algorithm>

#include "datapath/collective/node_parts.h"
#include "datapath/collective/primitives.h"
#include "datapath/exchange/summed_exchange.h"

namespace weir {
namespace {

template <NodeEncoders encoders>
class NodeExchange : public SummedExchange {
 public:
  NodeExchange(const ExchangeInput& input, ExchangeEnvironment& environment)
      : SummedExchange(
            input, environment,
            CutRegions(
                {input.gradient.size(), {input.context.shape.begin(), input.context.shape.end()}},
                NodePartsOf(encoders, environment.nodes, environment.rank, environment.world)),
            OwnNodePart(encoders, environment.nodes, environment.rank, environment.world)) {}

  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    const auto world = static_cast<uint64_t>(context.world);
    return MemoryOfCopies(codec, elements, context, 1 + world);  // own payload, and those of nodes
  }

 protected:
  std::vector<std::unique_ptr<CodecState>> NewStates() const override {
    std::vector<std::unique_ptr<CodecState>> states;
    if (own_ < 0) return states;
    states.push_back(codec().NewState(Own().size, RegionContext(own_, env_.rank, Encoding::kSum)));
    return states;
  }

  Status TakeResiduals() override {
    if (!codec().Traits().needs_error_feedback && !env_.residuals.HasResidual(in_.bucket)) {
      return OkStatus();
    }
    WEIR_ASSIGN_OR_RETURN(aggregate_, env_.residuals.BeginSum(
                                          in_.bucket, {Own().begin, Own().size}, gradient_,
                                          in_.device == nullptr ? nullptr : &in_.device->device()));
    outcome_.residual_energy = 0;
    return OkStatus();
  }

  bool reaches_all() const override { return part_ > kFirstRoundPart; }

  // There is nothing to encode yet; the sum is encoded when it exists.
  Status EncodeFirst() override { return in_.sample ? Sample(GradientStatistics()) : OkStatus(); }

  Status MoveRound(Group& group, SumRound round) override {
    const std::span<float> own = OwnSum();
    NodeSumOperand operand;
    operand.round = round;
    operand.sum = sum_payload_;
    operand.lanes = FloatLanes(gradient_);
    std::vector<std::span<std::byte>> parts;
    for (const Region& part : regions_) {
      parts.push_back(
          operand.lanes.bytes.subspan(part.begin * sizeof(float), part.size * sizeof(float)));
    }
    operand.parts = parts;
    if (!own.empty()) {
      const EncodeContext context = RegionContext(own_, env_.rank, Encoding::kSum);
      operand.payload_bytes_max = codec().MaxEncodedBytes(own.size(), context);
    }
    operand.add = [&](int from, std::span<const std::byte> payload) {
      return Apart(&ExchangeOutcome::decode,
                   [&] { return DecodeRegion(own_, from, Encoding::kSum, payload, 1, own); });
    };
    operand.device = in_.device;
    operand.by_devices = by_devices_;
    operand.replace_sum = [&](std::span<const int> from,
                              std::span<const std::span<const std::byte>> payloads) {
      return Apart(&ExchangeOutcome::decode, [&] { return DecodeOnDevice(from, payloads); });
    };
    const Status status = RunCollective(in_.collective, group, operand).status();
    by_devices_ = operand.by_devices;
    return status;
  }

  Status EncodeOwn() override {
    // The residual counts as if all ranks of the node had equal shares of it.
    const double share = 1 / static_cast<double>(regions_.size());
    WEIR_RETURN_IF_ERROR(EncodeSum(OwnSum(), share));
    outcome_.payload_bytes = sum_payload_.size();
    if (in_.device == nullptr) std::ranges::fill(OwnSum(), 0.0f);
    return OkStatus();
  }

  Status Decode() override {
    if (in_.device != nullptr) {
      WEIR_ASSIGN_OR_RETURN(const bool finite, in_.device->Scale(scale_));
      outcome_.non_finite = !finite;
      return OkStatus();
    }
    outcome_.non_finite = !ScaleFinite(gradient_, scale_);
    codec().Finish(context_, scale_, gradient_);
    return OkStatus();
  }

 private:
  std::span<float> OwnSum() { return gradient_.subspan(Own().begin, Own().size); }

  Status DecodeOnDevice(std::span<const int> from,
                        std::span<const std::span<const std::byte>> payloads) {
    WEIR_ASSIGN_OR_RETURN(DeviceBucket* const region, DeviceRegion());
    const EncodeContext context = RegionContext(own_, env_.rank, Encoding::kSum);
    // Decode finds values that are not finite.
    return region->DecodeSum(codec(), payloads, from, context, 1).status();
  }

  bool by_devices_ = false;  // how the first round moved
};

}  // namespace

void RegisterNodeSumExchange(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<NodeExchange<NodeEncoders::kFirst>>>(
                       ExchangeTraits{.name = "node_sums",
                                      .summary = "first ranks encode the sums of their nodes",
                                      .payload = PayloadForm::kOpaque,
                                      .need = CodecNeed::kSumsOfRanks,
                                      .encoded_sums = EncodedSums::kNodes,
                                      .on_devices = true}));
}

void RegisterNodeShardExchange(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<NodeExchange<NodeEncoders::kAll>>>(
                       ExchangeTraits{.name = "node_shards",
                                      .summary = "ranks encode parts of the sums of their nodes",
                                      .payload = PayloadForm::kOpaque,
                                      .need = CodecNeed::kSumsOfRanks,
                                      .encoded_sums = EncodedSums::kNodeShards,
                                      .on_devices = true}));
}

}  // namespace weir
