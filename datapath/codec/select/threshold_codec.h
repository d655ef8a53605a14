// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of the codecs that keep the elements above a threshold. They differ only in how
// they find the threshold, so that is all that a new one implements.

#include <functional>
#include <span>
#include <vector>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/select/selection.h"

namespace weir {

/// The value widths of threshold codecs: 16 bits (default), 8 and 4. The relative errors are those
/// of normally distributed input at a ratio of 0.01 to 0.1.
std::vector<CodecSetting> ThresholdSettings();

/// A codec whose payload is a selection (proto/WIRE.md section 3). States derive from
/// SelectionState; a call without a state uses a plain one.
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

  /// The format of the values; the default follows from params.bits.
  virtual ValueFormat Format(const EncodeContext& context) const;
  /// The most elements that Choose keeps; the default is SelectionCap(n, ratio).
  virtual size_t Cap(size_t n, const EncodeContext& context) const;
  /// Makes the selection and updates the state from its outcome.
  virtual Selection Choose(SelectionRequest request, const EncodeContext& context,
                           SelectionState& state) const = 0;

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

/// The moments of the excess |e| - threshold over the request's e, of one run of elements in
/// `sampling` (from SamplingFor), scaled to the whole. One pass that only reads.
kernels::TailMoments MomentsAbove(const SelectionRequest& request, float threshold,
                                  unsigned sampling, bool with_logs = false);

}  // namespace weir
