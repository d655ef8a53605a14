// SPDX-License-Identifier: Apache-2.0
// Residuals (error feedback): a codec that needs them, or any lossy codec while a residual is left
// from an earlier one, encodes gradient + residual and writes the loss to the bucket's `next`
// buffer. The end of the step commits or discards it. A lossless codec flushes: gradient + residual
// is sent, and the residual becomes zero. Momentum inside a codec is committed and discarded
// together with the residual; a step with another codec drops it.
//
// Sums that are encoded again on their way leave an aggregate residual on the rank that encodes
// them. A step that uses residuals and encodes no sum adds it to the gradient; a step that flushes
// adds both.
//
// EF21: a codec with that trait encodes gradient - memory, and delivers the estimate, which is the
// sum of all payloads so far. Between such codecs the memory is kept. The first of them flushes a
// residual into its gradient, and a step of any other codec drops the memory on all ranks (the
// memory describes the estimate, so dropping it loses nothing of a gradient).
//
// Non-finite values: lossy codecs detect them while encoding and announce them in the operation's
// frames, so every rank knows when the collective ends. A dense sum needs no pass before: NaN and
// infinity survive addition, all ranks hold the same bits of the sum, and the pass that scales it
// detects them on every rank. That pass also detects sums that overflow.

#include "datapath/exchange/coded_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "datapath/codec/kernels/kernels.h"
#include "datapath/codec/residual/ef21.h"

namespace weir {
namespace {

// For codecs without statistics, one block in eight is sampled.
constexpr size_t kSampleBlock = 4096;
constexpr size_t kSampleEvery = 8;

}  // namespace

bool ScaleFinite(std::span<float> x, float scale) {
  return kernels::ScaleFinite(x.data(), x.size(), scale);
}

double SampledEnergy(std::span<const float> x) {
  double energy = 0;
  size_t seen = 0;
  for (size_t at = 0; at < x.size(); at += kSampleBlock * kSampleEvery) {
    const auto block = x.subspan(at, std::min(kSampleBlock, x.size() - at));
    float sum = 0;
    for (const float value : block) sum += value * value;
    energy += sum;
    seen += block.size();
  }
  return seen == 0 ? 0 : energy * static_cast<double>(x.size()) / static_cast<double>(seen);
}

ExchangeMemory MemoryOfCopies(const Codec& codec, uint64_t elements, const EncodeContext& context,
                              uint64_t copies) {
  const CodecTraits& traits = codec.Traits();
  ExchangeMemory memory;
  if (copies > 0) memory.payload_bytes = copies * codec.MaxEncodedBytes(elements, context);
  const uint64_t pair = 2 * elements * sizeof(float);  // the current and the next buffer
  if (traits.needs_error_feedback) memory.residual_bytes += pair;
  if (traits.needs_momentum) memory.residual_bytes += pair;
  if (traits.ef21) memory.residual_bytes = 2 * pair;
  return memory;
}

Status CodedExchange::Prepare() {
  const TimePoint begin = env_.clock.Now();
  const auto prepare = [this] {
    if (part_ < 0) return Start();
    if (part_++ == kMaximaPart) return RunEncoder();
    return EncodeNext();
  };
  const Status status = prepare();
  outcome_.encode += env_.clock.Now() - begin;
  return status;
}

Status CodedExchange::Start() {
  const CodecTraits& traits = codec().Traits();
  if (traits.ef21) {
    WEIR_RETURN_IF_ERROR(TakeEf21());
  } else {
    env_.residuals.DropEf21(in_.bucket);
    WEIR_RETURN_IF_ERROR(traits.lossy ? TakeResiduals()
                                      : env_.residuals.Flush(in_.bucket, gradient_).status());
  }
  if (in_.sample && (residual_.has_value() || aggregate_.has_value())) {
    outcome_.gradient_energy = SampledEnergy(HostGradient());
  }
  RenewStates();
  part_ = kFirstRoundPart;
  return EncodeFirst();
}

Status CodedExchange::TakeResiduals() {
  const CodecTraits& traits = codec().Traits();
  Device* const device = DeviceOrNull();
  if (!traits.needs_momentum) {
    if (!traits.needs_error_feedback && !OwesWhatIsLeft() &&
        !env_.residuals.HasResidual(in_.bucket)) {
      return OkStatus();
    }
    WEIR_ASSIGN_OR_RETURN(residual_, env_.residuals.BeginEncode(in_.bucket, device));
    return TakeAggregateResidual();
  }
  WEIR_ASSIGN_OR_RETURN(const ResidualBuffers buffers,
                        env_.residuals.BeginEncode(in_.bucket, device));
  WEIR_ASSIGN_OR_RETURN(context_.momentum, env_.residuals.BeginMomentum(in_.bucket, device));
  if (traits.needs_error_feedback) {
    residual_ = buffers;
    return TakeAggregateResidual();
  }
  // Only momentum changes; the residual of an earlier codec is kept for the next one.
  WEIR_CHECK(device == nullptr);
  std::copy(buffers.current.begin(), buffers.current.end(), buffers.next.begin());
  return OkStatus();
}

Status CodedExchange::TakeAggregateResidual() {
  return env_.residuals.FlushAggregate(in_.bucket, gradient_);
}

Status CodedExchange::TakeEf21() {
  WEIR_ASSIGN_OR_RETURN(ef21_, env_.residuals.BeginEf21(in_.bucket, gradient_, DeviceOrNull()));
  residual_ = ResidualBuffers{ef21_->negative, ef21_->next_negative};
  // The estimate is an unscaled sum.
  estimate_scale_ = std::exchange(scale_, 1.0f);
  return OkStatus();
}

std::vector<std::unique_ptr<CodecState>> CodedExchange::NewStates() const {
  std::vector<std::unique_ptr<CodecState>> states;
  states.push_back(codec().NewState(gradient_.size(), context_));
  return states;
}

void CodedExchange::RenewStates() {
  CodecMemory& kept = in_.memory;
  const std::string& name = codec().Traits().name;
  if (kept.codec != name || kept.params != context_.params || kept.layout != StateLayout()) {
    kept = {
        .codec = name, .params = context_.params, .layout = StateLayout(), .states = NewStates()};
  }
  context_.state = kept.whole();
}

Status CodedExchange::EncodeFirst() {
  Device* const device = DeviceOrNull();
  ScratchPool& pool = device == nullptr ? env_.pool : device->pinned();
  payload_ = pool.Take(codec().MaxEncodedBytes(gradient_.size(), context_));
  if (codec().Traits().shared_metadata == SharedMetadata::kNone) return RunEncoder();
  WEIR_RETURN_IF_ERROR(FindMaxima());
  outcome_.own_non_finite = !context_.shared_max.finite();
  part_ = kMaximaPart;
  return OkStatus();
}

Status CodedExchange::FindMaxima() {
  const auto residual = residual_.has_value() ? residual_->current : std::span<const float>();
  if (in_.device == nullptr) {
    context_.shared_max = codec().LocalMax(gradient_, residual, context_);
    return OkStatus();
  }
  WEIR_ASSIGN_OR_RETURN(context_.shared_max, in_.device->LocalMax(codec(), residual, context_));
  return OkStatus();
}

std::span<float> CodedExchange::maxima() {
  return part_ == kMaximaPart ? context_.shared_max.values() : std::span<float>();
}

void CodedExchange::MaximaMoved(Duration took) {
  outcome_.metadata += took;
  outcome_.non_finite = !context_.shared_max.finite();
  // Many operations whose maxima travelled together may end here and wait to be delivered.
  if (outcome_.non_finite) payload_.Release();
}

// At the end of a part all ranks know whether one of them met NaN, so all stop there.
bool CodedExchange::more() const {
  if (part_ == kMaximaPart) return !outcome_.non_finite;
  return MorePayloads();
}

bool CodedExchange::MorePayloads() const {
  return !outcome_.non_finite && part_ - kFirstRoundPart + 1 < codec().Traits().rounds;
}

Status CodedExchange::EncodeNext() {
  // The collective has left the sums of earlier rounds in the place of this rank's payload.
  round_at_ = outcome_.payload_bytes;
  context_.round = part_ - kFirstRoundPart;
  context_.previous = payload_.bytes().first(round_at_);
  return RunEncoder();
}

Status CodedExchange::RunEncoder() {
  std::unique_ptr<GradientStatistics> statistics;
  if (in_.sample) {
    statistics = std::make_unique<GradientStatistics>();
    context_.statistics = statistics.get();
  }
  const std::span<std::byte> out = payload_.bytes().subspan(round_at_);
  const StatusOr<EncodeResult> result = Encode(out);
  context_.statistics = nullptr;
  if (!result.ok()) {
    return Annotate(result.status(), StrCat("encoding with ", codec().Traits().name));
  }
  outcome_.payload_bytes = round_at_ + result->bytes;
  outcome_.energy_in = result->energy_in;
  if (result->non_finite) {
    flags_ |= kFlagNonFinite;
    outcome_.own_non_finite = true;
  }
  if (result->energy_in > 0 && !result->non_finite) {
    outcome_.gain = 1 - result->energy_lost / result->energy_in;
  }
  if (residual_.has_value()) outcome_.residual_energy = result->energy_lost;
  const bool last = context_.round + 1 == codec().Traits().rounds;
  if (statistics != nullptr && last && !result->non_finite) return Sample(*statistics);
  return OkStatus();
}

StatusOr<EncodeResult> CodedExchange::Encode(std::span<std::byte> out) {
  const ResidualBuffers kept = residual_.value_or(ResidualBuffers{});
  if (in_.device != nullptr) {
    if (ef21_.has_value()) return Ef21Encode(codec(), *in_.device, *ef21_, context_, out);
    return in_.device->Encode(codec(), kept.current, kept.next, context_, out);
  }
  if (ef21_.has_value()) return Ef21Encode(codec(), gradient_, *ef21_, context_, out);
  if (!residual_.has_value()) return codec().Encode(gradient_, context_, out);
  return codec().EncodeWithFeedback(gradient_, kept.current, kept.next, context_, out);
}

Status CodedExchange::Sample(const GradientStatistics& fused) {
  const std::span<const float> gradient = HostGradient();
  std::span<const float> residual =
      residual_.has_value() ? residual_->current : std::span<const float>();
  ScratchBuffer read;
  if (in_.device != nullptr && !residual.empty()) {
    read = env_.pool.Take(residual.size_bytes());
    const std::span<float> host = read.floats(residual.size());
    WEIR_RETURN_IF_ERROR(
        in_.device->device().ReadFloats(host.data(), residual.data(), residual.size()));
    residual = host;
  }
  std::unique_ptr<GradientStatistics> sampled;
  const GradientStatistics* statistics = &fused;
  if (fused.count() == 0) {
    sampled = std::make_unique<GradientStatistics>();
    std::vector<float> block;
    for (size_t at = 0; at < gradient.size(); at += kSampleBlock * kSampleEvery) {
      const size_t size = std::min(kSampleBlock, gradient.size() - at);
      if (residual.empty()) {
        sampled->Add(gradient.subspan(at, size));
        continue;
      }
      block.assign(gradient.begin() + at, gradient.begin() + at + size);
      for (size_t i = 0; i < size; ++i) block[i] += residual[at + i];
      sampled->Add(block);
    }
    statistics = sampled.get();
  }
  if (statistics->count() == 0 || statistics->non_finite()) return OkStatus();
  GradientSample& sample = outcome_.sample.emplace();
  const auto gains = statistics->GainCurve();
  sample.gains.assign(gains.begin(), gains.end());
  const double mean_square = statistics->sum_squares() / static_cast<double>(statistics->count());
  if (mean_square > 0) sample.peak_over_rms = statistics->max_abs() / std::sqrt(mean_square);
  sample.losses = env_.loss_probe.Measure(gradient, residual, context_.shape, context_.seed);
  return OkStatus();
}

Status CodedExchange::DecodeSum(std::span<const std::vector<std::byte>> payloads) {
  bool finite = true;
  if (in_.device != nullptr) {
    const std::vector<std::span<const std::byte>> spans(payloads.begin(), payloads.end());
    WEIR_ASSIGN_OR_RETURN(finite, in_.device->DecodeSum(codec(), spans, {}, context_, scale_));
  } else {
    WEIR_RETURN_IF_ERROR(codec().DecodeSum(
        payloads, context_, scale_, gradient_,
        [&finite](std::span<float> part) { finite = ScaleFinite(part, 1) && finite; }));
  }
  outcome_.non_finite = !finite;
  return OkStatus();
}

Status CodedExchange::DecodeLanes(std::span<const std::byte> sum) {
  bool finite = true;
  if (in_.device != nullptr) {
    WEIR_ASSIGN_OR_RETURN(finite,
                          in_.device->DecodeSum(codec(), std::span(&sum, 1), {}, context_, scale_));
  } else {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    WEIR_RETURN_IF_ERROR(codec().DecodeAdd(sum, context_, scale_, gradient_));
    codec().Finish(context_, scale_, gradient_);
    finite = ScaleFinite(gradient_, 1);
  }
  outcome_.non_finite = !finite;
  return OkStatus();
}

StatusOr<bool> CodedExchange::DeliverEstimate() {
  if (in_.device == nullptr) {
    Ef21Deliver(*ef21_, estimate_scale_, gradient_);
    return ScaleFinite(gradient_, 1);
  }
  return in_.device->AddToEstimate(ef21_->estimate, ef21_->next_estimate, estimate_scale_);
}

void CodedExchange::AccountFor(std::span<const float> values) {
  double kept = 0;
  for (const float value : values) kept += static_cast<double>(value) * value;
  if (outcome_.energy_in > 0) outcome_.gain = std::min(1.0, kept / outcome_.energy_in);
  outcome_.residual_energy = std::max(0.0, outcome_.residual_energy - kept);
}

Status CodedExchange::Move(Group& group) {
  const TimePoint begin = env_.clock.Now();
  WEIR_RETURN_IF_ERROR(MovePayloads(group));
  if (group.flags() & kFlagNonFinite) outcome_.non_finite = true;
  outcome_.network += env_.clock.Now() - begin;
  return OkStatus();
}

Status CodedExchange::Deliver() {
  if (outcome_.non_finite) return OkStatus();
  const TimePoint begin = env_.clock.Now();
  WEIR_RETURN_IF_ERROR(Decode());
  if (ef21_.has_value() && !outcome_.non_finite) {
    WEIR_ASSIGN_OR_RETURN(const bool finite, DeliverEstimate());
    outcome_.non_finite = !finite;
  }
  outcome_.decode += env_.clock.Now() - begin;
  return OkStatus();
}

}  // namespace weir
