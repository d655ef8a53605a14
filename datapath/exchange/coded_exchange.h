#pragma once
// What the builtin exchange forms share: how residuals are taken, a codec is run in rounds, maxima
// are agreed on and gradients are sampled. A form adds what it encodes, moves and decodes.

#include "datapath/exchange/exchange.h"

namespace weir {

/// x *= scale; false when an element is NaN or infinite, before or after. O(n); thread-safe.
bool ScaleFinite(std::span<float> x, float scale);

/// The sum of squares of x, estimated from one block in eight: below 1 % of a step. Thread-safe.
double SampledEnergy(std::span<const float> x);

/// By default one encoding of the whole bucket, in as many rounds as the codec has, after an
/// exchange of maxima if it needs one.
class CodedExchange : public Exchange {
 public:
  CodedExchange(const ExchangeInput& input, ExchangeEnvironment& environment)
      : in_(input), env_(environment), gradient_(input.gradient), context_(input.context) {}

  StatusOr<bool> Prepare() final;
  int part() const final { return part_; }
  uint16_t flags() const final { return flags_; }
  Status Move(Group& group) final;
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
  /// True where what is not sent is always owed, whatever the codec says of error feedback.
  virtual bool OwesWhatIsLeft() const { return false; }
  /// Residuals of a lossy codec without the memory of EF21.
  virtual Status TakeResiduals();
  /// The aggregate residual, in a step that uses residuals.
  virtual Status TakeAggregateResidual();
  /// Encodes for the first part, or prepares the exchange of maxima.
  virtual Status EncodeFirst();
  /// Encodes for the next part, if there is one.
  virtual StatusOr<bool> EncodeNext();
  virtual Status MovePayloads(Group& group) = 0;
  /// Of finite payloads: leaves scale_ times the sum in the gradient, or sets non_finite.
  virtual Status Decode() = 0;

  // --- What forms use
  // -----------------------------------------------------------------------------
  const Codec& codec() const { return in_.codec; }
  /// Encodes the gradient into what follows round_at_ in the payload.
  Status RunEncoder();
  /// Measures the gradient from `fused`, which a codec filled in its pass, or if it is empty by a
  /// pass of its own over a sample.
  void Sample(const GradientStatistics& fused);
  /// Those values leave the residual.
  void AccountFor(std::span<const float> values);
  /// Runs `work` inside of a network part and counts its time as `kind` and not as the network's.
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
  int part_ = -1;  // none yet
  uint16_t flags_ = 0;
  ScratchBuffer payload_;  // outcome_.payload_bytes of it, all rounds so far
  size_t round_at_ = 0;    // where this round's part of the payload begins
  std::optional<ResidualBuffers> residual_;
  std::optional<ResidualBuffers> aggregate_;  // of the sum that this rank encodes
  ExchangeOutcome outcome_;

 private:
  StatusOr<bool> Start();
  Status TakeEf21();
  void RenewStates();

  std::optional<Ef21Buffers> ef21_;  // in place of a residual; `residual_` then names the memory
  float estimate_scale_ = 1;         // ef21: what scale_ was asked to be
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

/// What `copies` payloads of the whole bucket need, and the residuals of the codec.
ExchangeMemory MemoryOfCopies(const Codec& codec, uint64_t elements, const EncodeContext& context,
                              uint64_t copies);

}  // namespace weir
