#pragma once
// The engine of drive and eden: rotate, round each coordinate to a codebook for normal numbers, and
// scale each rotation so that the result is unbiased.

#include <vector>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/hadamard.h"

namespace weir {

/// Thread-safe. With y a rotation, c its codebook values and <,> the inner product, the receiver
/// sees <y, y> / <c, y> * c: for a rotation drawn uniformly that is unbiased, and the randomised
/// Hadamard transform comes close unless a few elements hold most of
/// the energy of their rotation (then the loss is smaller but has a direction). Payload: for each
/// rotation a float32 scale, at least 0, then bits planes as kernels::EncodeCodebook writes them. A
/// rotation whose coordinates' root mean square is outside 2^-100 .. 2^100 is sent as zeros.
/// Source: Vargaftik et al., "DRIVE", NeurIPS 2021, and "EDEN", ICML 2022; deviates: rotations of
/// 1024 elements with a scale each.
class RotatedCodebookCodec : public FusedCodec {
 public:
  /// `books` belong to traits.settings one by one.
  RotatedCodebookCodec(CodecTraits traits, std::vector<kernels::Codebook> books);

  const CodecTraits& Traits() const override { return traits_; }
  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override;
  /// One pass, O(n log 1024); so is encoding.
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override;

 private:
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override;
  const kernels::Codebook& Choose(const EncodeContext& context) const;

  const CodecTraits traits_;
  const std::vector<kernels::Codebook> books_;
};

/// Bits per element of a payload of `bits` planes: the scale of a rotation counts.
double RotatedCodebookBits(int bits);

}  // namespace weir
