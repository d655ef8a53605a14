#pragma once
// The common part of the codecs that keep the elements above a threshold: what differs between them
// is how the threshold is found, and that is all that a new one writes.

#include <functional>
#include <span>
#include <vector>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/select/selection.h"

namespace weir {

/// The value widths that threshold codecs offer: 16 bits (default), 8 and 4. The relative errors
/// are those of normally distributed input at a ratio of 0.01 to 0.1.
std::vector<CodecSetting> ThresholdSettings();

/// A codec whose payload is a selection (proto/WIRE.md section 3). States derive from
/// SelectionState; a stateless call gets a plain one.
class ThresholdCodec : public FusedCodec {
 public:
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

 protected:
  explicit ThresholdCodec(CodecTraits traits) : traits_(std::move(traits)) {}

  /// The format of the values: by default from params.bits.
  virtual ValueFormat Format(const EncodeContext& context) const;
  /// Most elements that Choose keeps: by default SelectionCap(n, ratio).
  virtual size_t Cap(size_t n, const EncodeContext& context) const;
  /// Selects, and learns from what came of it.
  virtual Selection Choose(SelectionRequest request, const EncodeContext& context,
                           SelectionState& state) const = 0;

 private:
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override;
  const CodecTraits traits_;
};

/// Traits common to threshold codecs: an opaque payload with coded positions under error feedback.
CodecTraits ThresholdTraits(std::string name, std::string summary);

/// One element in how many estimates may look at where about `expected` elements count: 1, or a
/// power of two from kHistogramSampling on that leaves 2048 or more of them, 32768 if it can.
unsigned SamplingFor(size_t expected);

/// Moments of the excess |e| - threshold over the request's e, of one run of elements in `sampling`
/// (from SamplingFor) and scaled to the whole. One pass, reading only.
kernels::TailMoments MomentsAbove(const SelectionRequest& request, float threshold,
                                  unsigned sampling, bool with_logs = false);

}  // namespace weir
