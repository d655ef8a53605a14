// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shared implementation of the codecs that cut a tensor into small buckets, each with its own
// scale, and send a code of a few bits for every element. A bucket is measured, quantised and
// packed while it is in the first-level cache, so the whole is one pass over memory.

#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/kernels.h"

namespace weir {

/// Payload: for every `elements` elements (the last bucket has fewer) `scales` float32, then one
/// code of `bits` bits per element, packed from the low end of each octet and padded to a whole
/// octet.
struct BucketLayout {
  static constexpr size_t kScalesMax = 2;
  size_t elements = kernels::kBlockElements;  // divides kBlockElements
  size_t scales = 0;                          // <= kScalesMax
  int bits = 8;                               // 1..8
  bool codes_signed = false;                  // two's complement: AddBucket gets int8
  bool packs_itself = false;                  // Quantise fills `codes` with the packed octets

  size_t BytesOf(size_t bucket_elements) const {
    return scales * sizeof(float) + (bucket_elements * static_cast<size_t>(bits) + 7) / 8;
  }
  size_t Bytes(size_t n) const {
    return n / elements * BytesOf(elements) + (n % elements == 0 ? 0 : BytesOf(n % elements));
  }
  /// Payload bits per element of a large tensor.
  static constexpr double BitsPerElement(size_t elements, size_t scales, int bits) {
    return bits + 32.0 * static_cast<double>(scales) / static_cast<double>(elements);
  }
};

/// A bucket during encoding.
struct BucketCodes {
  kernels::Block block;   // e = gradient + residual
  size_t at = 0;          // position of its first element in the tensor
  float* rest = nullptr;  // to be filled with what the codes lack, if not null
  float scales[BucketLayout::kScalesMax] = {};  // to be filled
  uint8_t* codes = nullptr;                     // to be filled with block.size codes
};

/// A codec whose payload consists of such buckets. PayloadForm::kOpaque; keeps no state.
class BucketCodec : public FusedCodec {
 public:
  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const final;
  /// O(n). kDataLoss with the offset: the size differs from the layout's, or a scale is not finite.
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const final;

 protected:
  virtual BucketLayout Layout(const EncodeContext& context) const = 0;
  /// Fills the scales, the codes and, if set, the rest, and adds to *sums. The elements may hold
  /// NaN or infinity, which sums->max_bits must show; the output is then discarded. Scales and
  /// codes that are all zero must decode to zeros.
  virtual void Quantise(const EncodeContext& context, BucketCodes& bucket,
                        kernels::Sums* sums) const = 0;
  /// out += scale * the values of the codes (out.size() of them). Any code may occur; the scales
  /// are finite.
  virtual void AddBucket(const EncodeContext& context, const float* scales, const uint8_t* codes,
                         float scale, std::span<float> out) const = 0;
  /// The number of bits of the setting that context.params select.
  int Bits(const EncodeContext& context) const;

 private:
  /// One pass, O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const final;
};

}  // namespace weir
