// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of the builtin exchange forms: handling residuals, running a codec in rounds,
// agreeing on maxima, and sampling gradients. A form adds what it encodes, moves and decodes.

#include "datapath/exchange/exchange.h"

namespace weir {

/// x *= scale. Returns false when an element is NaN or infinite, before or after. O(n);
/// thread-safe.
bool ScaleFinite(std::span<float> x, float scale);

/// The sum of squares of x, estimated from one block in eight; it takes less than 1 % of a step.
/// Thread-safe.
double SampledEnergy(std::span<const float> x);

/// The default is one encoding of the whole bucket, in as many rounds as the codec has, after an
/// exchange of maxima if the codec needs one.
class CodedExchange : public Exchange {
 public:
  CodedExchange(const ExchangeInput& input, ExchangeEnvironment& environment)
      : in_(input), env_(environment), gradient_(input.gradient), context_(input.context) {}

  Status Prepare() final;
  int part() const final { return part_; }
  std::span<float> maxima() final;
  uint16_t flags() const final { return flags_; }
  Status Move(Group& group) final;
  void MaximaMoved(Duration took) final;
  bool more() const final;
  Status Deliver() final;
  const ExchangeOutcome& outcome() const final { return outcome_; }

 protected:
  static constexpr int kMaximaPart = 0, kFirstRoundPart = 1;

  // --- What a form may replace
  // --------------------------------------------------------------------
  /// As CodecMemory::layout.
  virtual std::string_view StateLayout() const { return {}; }
  /// The states of that layout.
  virtual std::vector<std::unique_ptr<CodecState>> NewStates() const;
  /// Returns true where everything that is not sent must stay in the residual, whatever the codec
  /// says about error feedback.
  virtual bool OwesWhatIsLeft() const { return false; }
  /// Takes the residuals of a lossy codec without the memory of EF21.
  virtual Status TakeResiduals();
  /// Takes the aggregate residual, in a step that uses residuals.
  virtual Status TakeAggregateResidual();
  /// Encodes for the first part, or prepares the exchange of maxima.
  virtual Status EncodeFirst();
  /// After a part of payloads moved: whether another part follows it.
  virtual bool MorePayloads() const;
  /// Encodes for that part, whose number part_ is by now.
  virtual Status EncodeNext();
  virtual Status MovePayloads(Group& group) = 0;
  /// For finite payloads: leaves scale_ times the sum in the gradient, or sets non_finite.
  virtual Status Decode() = 0;

  // --- What forms use
  // -----------------------------------------------------------------------------
  const Codec& codec() const { return in_.codec; }
  /// Encodes the gradient to the payload, from round_at_ on.
  Status RunEncoder();
  /// Leaves scale_ times the sum of the payloads of all ranks, in rank order, in the gradient, or
  /// sets non_finite.
  Status DecodeSum(std::span<const std::vector<std::byte>> payloads);
  /// The same for lanes that are summed already.
  Status DecodeLanes(std::span<const std::byte> sum);
  /// Measures the gradient from `fused`, which a codec has filled in its pass. If that is empty, it
  /// makes a pass over a sample.
  Status Sample(const GradientStatistics& fused);
  /// Counts these values as sent: they determine the gain and leave the residual's energy.
  void AccountFor(std::span<const float> values);
  /// Runs `work` inside a network part, and counts its time as `kind` instead of as the network's.
  template <typename Work>
  auto Apart(Duration ExchangeOutcome::*kind, const Work& work) {
    const TimePoint begin = env_.clock.Now();
    auto result = work();
    const Duration took = env_.clock.Now() - begin;
    outcome_.*kind += took;
    outcome_.network -= took;
    return result;
  }

  const ExchangeInput in_;
  ExchangeEnvironment& env_;
  const std::span<float> gradient_;
  EncodeContext context_;
  float scale_ = in_.scale;
  int part_ = -1;  // -1: none yet
  uint16_t flags_ = 0;
  ScratchBuffer payload_;  // its first outcome_.payload_bytes are the rounds so far
  size_t round_at_ = 0;    // where this round's part of the payload begins
  std::optional<ResidualBuffers> residual_;
  std::optional<ResidualBuffers> aggregate_;  // of the sum that this rank encodes
  ExchangeOutcome outcome_;

 private:
  Status Start();
  StatusOr<EncodeResult> Encode(std::span<std::byte> out);
  Status FindMaxima();
  Device* DeviceOrNull() const { return in_.device == nullptr ? nullptr : &in_.device->device(); }
  // The gradient in the host's memory, for measurements.
  std::span<const float> HostGradient() const {
    return in_.device == nullptr ? std::span<const float>(gradient_) : in_.host_gradient;
  }
  Status TakeEf21();
  /// Replaces the decoded sum by the scaled estimate. Returns whether it is finite.
  StatusOr<bool> DeliverEstimate();
  void RenewStates();

  std::optional<Ef21Buffers> ef21_;  // in place of a residual; `residual_` then has the memory
  float estimate_scale_ = 1;         // ef21: the requested scale_
};

/// A form whose exchanges are of type E, made from input and environment.
template <typename E>
class FormOfExchange : public ExchangeForm {
 public:
  explicit FormOfExchange(ExchangeTraits traits) : traits_(std::move(traits)) {}
  const ExchangeTraits& Traits() const override { return traits_; }
  ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                          const EncodeContext& context) const override {
    return E::MemoryOf(codec, elements, context);
  }
  std::unique_ptr<Exchange> Begin(const ExchangeInput& input,
                                  ExchangeEnvironment& environment) const override {
    return std::make_unique<E>(input, environment);
  }

 private:
  const ExchangeTraits traits_;
};

/// The memory of `copies` payloads of the whole bucket and of the codec's residuals.
ExchangeMemory MemoryOfCopies(const Codec& codec, uint64_t elements, const EncodeContext& context,
                              uint64_t copies);

}  // namespace weir
