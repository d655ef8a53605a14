// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of the codecs that keep the elements above a threshold. They differ only in how
// they find the threshold, so that is all that a new one implements: a rule, which sees a bucket by
// the moments of its tails and so works for buckets in the memory of a device, too.

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/select/selection.h"

namespace weir {

/// The value widths of threshold codecs: 16 bits (default), 8 and 4. The relative errors are those
/// of normally distributed input at a ratio of 0.01 to 0.1.
std::vector<CodecSetting> ThresholdSettings();

/// A bucket e = gradient + residual as estimators of thresholds see it, wherever its elements are.
struct Tails {
  size_t n = 0;
  double ratio = 1;
  uint64_t seed = 0;  // of the step, shared by all ranks
  /// The moments of the excess |e| - threshold, of one run of elements in `sampling` (from
  /// SamplingFor), scaled to the whole; `logs`: also the sum of logarithms. One pass that only
  /// reads. Null for rules that do not ask for it.
  std::function<kernels::TailMoments(float threshold, unsigned sampling, bool logs)> above = {};

  /// The full histogram of the magnitudes, of which only the bins are valid. One pass that only
  /// reads. Null as above.
  std::function<GradientStatistics()> histogram = {};

  /// The magnitudes of the elements 0, stride, 2 * stride and so on; 0 for those that are not
  /// finite. Null as above.
  std::function<std::vector<float>(size_t stride)> magnitudes = {};

  kernels::TailMoments Above(float threshold, unsigned sampling, bool logs = false) const {
    return above(threshold, sampling, logs);
  }
};
/// Those of a bucket in the host's memory. `request` must outlive them.
Tails TailsOf(const SelectionRequest& request, uint64_t seed = 0);

/// A part of the elements that pass a threshold: those of at least `upper`, and of the others, in
/// the order of their positions, `needed` from number `first` on.
struct SelectionBand {
  float upper = 0;
  uint64_t first = 0, needed = 0;
};

/// How a step selects: by SelectLargest, or by SelectAbove with a threshold.
struct SelectionRule {
  bool largest = true;
  float threshold = 0;
  TooFew too_few = TooFew::kAccept;
  std::optional<SelectionBand> band = {};  // with kAccept only; must leave at most SelectionCap

  static SelectionRule Above(float threshold, TooFew too_few) {
    return {.largest = false, .threshold = threshold, .too_few = too_few};
  }
};

/// A codec whose payload is a selection (proto/WIRE.md section 3). States derive from
/// SelectionState; a call without a state uses a plain one. A codec with needs_momentum selects
/// from u + residual, where u = kMomentumFactor * u + gradient is the momentum; u becomes zero
/// where elements are sent. Calls without momentum buffers select from gradient + residual.
class ThresholdCodec : public FusedCodec {
 public:
  static constexpr float kMomentumFactor = 0.9f;

  const CodecTraits& Traits() const override { return traits_; }
  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override;
  std::unique_ptr<CodecState> NewState(size_t n, const EncodeContext& context) const override;
  /// O(kept).
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override;
  Status DecodeSum(std::span<const std::vector<std::byte>> payloads, const EncodeContext& context,
                   float scale, std::span<float> out,
                   const std::function<void(std::span<float>)>& done) const final;
  Status DecodeIndices(std::span<const std::byte> payload, size_t n,
                       std::vector<uint32_t>* indices) const override;

  /// The ratio of a step, which may be above that of the context; the default is that.
  virtual double RatioOf(const EncodeContext& context, const SelectionState& state) const;
  /// The rule of a step; the default is SelectLargest. For the same tails and state it gives the
  /// same rule until LearnCount. Not for codecs that override Choose.
  virtual SelectionRule Rule(const Tails& tails, SelectionState& state) const;
  /// Whether Rule asks for moments, the histogram or magnitudes.
  virtual bool AsksForTails() const { return false; }
  /// Whether SelectLargest selects from every tensor for itself, without regard to earlier steps;
  /// Rule is not used then.
  virtual bool ByTensor() const { return false; }
  /// The sizes of the parts of n elements from which ByTensor selects: the tensors of the context,
  /// or one part where they do not describe the bucket.
  static std::vector<size_t> TensorSizes(size_t n, const EncodeContext& context);
  /// Updates the state after a selection by Rule that met only finite elements. `count` were kept,
  /// after an overflow not by the rule's threshold. Not for codecs that override Choose.
  virtual void LearnCount(const Tails& tails, size_t count, bool overflowed,
                          SelectionState& state) const;
  /// The format of the values; the default follows from params.bits.
  virtual ValueFormat Format(const EncodeContext& context) const;
  /// The most elements that any step keeps; the default is SelectionCap(n, ratio), or the sum of
  /// that of every tensor.
  virtual size_t Cap(size_t n, const EncodeContext& context) const;

 protected:
  explicit ThresholdCodec(CodecTraits traits) : traits_(std::move(traits)) {}

  /// Makes the selection and updates the state from its outcome. The default follows Rule; O(n) in
  /// the passes of SelectLargest or SelectAbove, and those of the rule.
  virtual Selection Choose(SelectionRequest request, const EncodeContext& context,
                           SelectionState& state) const;

 private:
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override;
  const CodecTraits traits_;
};

/// The traits common to threshold codecs: an opaque payload with coded positions and error
/// feedback.
CodecTraits ThresholdTraits(std::string name, std::string summary);

/// The sampling factor of an estimate for which about `expected` elements count: 1, or a power of
/// two, at least kHistogramSampling, that leaves at least 2048 of them, and 32768 if possible.
unsigned SamplingFor(size_t expected);
/// The group of kernels::kSampleGroup elements that is sampled out of groups index * stride and the
/// stride - 1 after it; it may lie after the end. It is chosen by a hash of its position so that
/// the selection does not follow the length of rows. O(1).
constexpr size_t SampledGroup(size_t index, size_t stride) {
  return stride <= 1 ? index : index * stride + Mix64(index) % stride;
}

}  // namespace weir
