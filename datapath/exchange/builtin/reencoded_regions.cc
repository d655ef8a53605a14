// SPDX-License-Identifier: Apache-2.0
// Sums that are encoded again on their way. Each rank encodes every region for its owner, with its
// residual as usual. The owner decodes and sums them, adds its aggregate residual, encodes the sum,
// and keeps the loss. All ranks deliver the decoded second payloads.

#include <algorithm>

#include "datapath/exchange/summed_exchange.h"

namespace weir {
namespace {

class RegionExchange : public SummedExchange {
 public:
  RegionExchange(const ExchangeInput& input, ExchangeEnvironment& environment)
      : SummedExchange(input, environment,
                       CutRegions({input.gradient.size(),
                                   {input.context.shape.begin(), input.context.shape.end()}},
                                  environment.world),
                       environment.rank) {}
  ~RegionExchange() override { env_.gathered.Return(gathered_); }

  // This rank's payloads and the gathered sums, and the sum of the largest region with its payload.
  // In addition to the residual, there is an aggregate residual of that region.
  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& whole) {
    ExchangeMemory memory = MemoryOfCopies(codec, elements, whole, 0);
    EncodeContext context = whole;
    uint64_t largest = 0, longest = 0;
    const std::vector<Region> regions =
        CutRegions({elements, {whole.shape.begin(), whole.shape.end()}}, whole.world);
    for (const Region& region : regions) {
      if (region.size == 0) continue;
      context.shape = region.shape;
      const uint64_t bytes = codec.MaxEncodedBytes(region.size, context);
      memory.payload_bytes += 3 * bytes;  // own, received from another rank, gathered
      largest = std::max(largest, bytes);
      longest = std::max<uint64_t>(longest, region.size);
    }
    memory.payload_bytes += largest + longest * sizeof(float);
    if (codec.Traits().needs_error_feedback) memory.residual_bytes += 2 * longest * sizeof(float);
    return memory;
  }

 protected:
  std::vector<std::unique_ptr<CodecState>> NewStates() const override {
    std::vector<std::unique_ptr<CodecState>> states;
    const auto add = [&](size_t region, Encoding encoding) {
      states.push_back(
          codec().NewState(regions_[region].size, RegionContext(region, env_.rank, encoding)));
    };
    for (size_t r = 0; r < regions_.size(); ++r) add(r, Encoding::kPart);
    add(own_, Encoding::kSum);
    return states;
  }

  Status TakeAggregateResidual() override {
    WEIR_ASSIGN_OR_RETURN(aggregate_, env_.residuals.BeginAggregate(
                                          in_.bucket, {Own().begin, Own().size}, gradient_));
    return OkStatus();
  }

  Status EncodeFirst() override {
    std::vector<size_t> bytes_max;
    size_t total = 0;
    for (size_t r = 0; r < regions_.size(); ++r) {
      const EncodeContext context = RegionContext(r, env_.rank, Encoding::kPart);
      const size_t size = regions_[r].size;
      bytes_max.push_back(size == 0 ? 0 : codec().MaxEncodedBytes(size, context));
      payload_bytes_max_ = std::max(payload_bytes_max_, bytes_max.back());
      total += bytes_max.back();
    }
    payload_ = env_.pool.Take(total);
    payloads_.assign(regions_.size(), {});
    double lost = 0;
    for (size_t r = 0; r < regions_.size(); ++r) {
      if (regions_[r].size == 0) continue;
      const auto out = payload_.bytes().subspan(outcome_.payload_bytes, bytes_max[r]);
      WEIR_ASSIGN_OR_RETURN(const EncodeResult result, EncodePart(r, out));
      payloads_[r] = out.first(result.bytes);
      outcome_.payload_bytes += result.bytes;
      if (result.non_finite) flags_ |= kFlagNonFinite;
      outcome_.energy_in += result.energy_in;
      lost += result.energy_lost;
    }
    const bool finite = (flags_ & kFlagNonFinite) == 0;
    if (finite && outcome_.energy_in > 0) outcome_.gain = 1 - lost / outcome_.energy_in;
    if (residual_.has_value()) outcome_.residual_energy = lost;
    return in_.sample && finite ? Sample(GradientStatistics()) : OkStatus();
  }

  Status MoveRound(Group& group, SumRound round) override {
    if (round == SumRound::kAdd) {
      sum_buffer_ = env_.pool.Take(Own().size * sizeof(float));
      sum_ = sum_buffer_.floats(Own().size);
      std::fill(sum_.begin(), sum_.end(), 0.0f);
    } else {
      gathered_ = env_.gathered.Take();
    }
    RegionOperand operand;
    operand.round = round;
    operand.payload_bytes_max = payload_bytes_max_;
    operand.payloads = payloads_;
    operand.add = [this](int from, std::span<const std::byte> payload) {
      return Apart(&ExchangeOutcome::decode,
                   [&] { return DecodeRegion(own_, from, Encoding::kPart, payload, 1, sum_); });
    };
    operand.sum = sum_payload_;
    operand.gathered = &gathered_;
    return RunCollective(in_.collective, group, operand).status();
  }

  // The residual counts as if all ranks had equal shares of it.
  Status EncodeOwn() override { return EncodeSum(sum_, 1 / static_cast<double>(env_.world)); }

  Status Decode() override {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    for (size_t r = 0; r < regions_.size(); ++r) {
      const Status status =
          DecodeRegion(r, static_cast<int>(r), Encoding::kSum, gathered_[r], scale_,
                       gradient_.subspan(regions_[r].begin, regions_[r].size));
      if (!status.ok()) return Annotate(status, StrCat("sum of region ", r, " by rank ", r));
    }
    codec().Finish(context_, scale_, gradient_);
    outcome_.non_finite = !ScaleFinite(gradient_, 1);
    return OkStatus();
  }

 private:
  StatusOr<EncodeResult> EncodePart(size_t r, std::span<std::byte> out) {
    const size_t begin = regions_[r].begin, size = regions_[r].size;
    EncodeContext context = RegionContext(r, env_.rank, Encoding::kPart);
    context.state = in_.memory.states[r].get();
    const std::span<const float> part = gradient_.subspan(begin, size);
    StatusOr<EncodeResult> result =
        residual_.has_value()
            ? codec().EncodeWithFeedback(part, residual_->current.subspan(begin, size),
                                         residual_->next.subspan(begin, size), context, out)
            : codec().Encode(part, context, out);
    if (result.ok()) return result;
    return Annotate(result.status(), StrCat("encoding with ", codec().Traits().name));
  }

  std::vector<std::span<const std::byte>> payloads_;  // this rank's, by region; parts of payload_
  size_t payload_bytes_max_ = 0;                      // of any region
  ScratchBuffer sum_buffer_;                          // of this rank's region
  std::span<float> sum_;
  Gathered gathered_;  // encoded sums, by region
};

}  // namespace

void RegisterReencodedRegions(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<RegionExchange>>(ExchangeTraits{
                       .name = "regions",
                       .summary = "owners of regions encode the sums of what ranks encoded",
                       .payload = PayloadForm::kOpaque,
                       .need = CodecNeed::kSumsOfRanks,
                       .encoded_sums = EncodedSums::kRegions}));
}

}  // namespace weir
