// SPDX-License-Identifier: Apache-2.0
#pragma once
// The loop that the rotating codecs share. A bucket is split into randomised Hadamard transforms of
// 1024 elements each, which are rotated, rounded and rotated back while they are in the first-level
// cache. O(1) memory.

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/random.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/kernels/hadamard.h"

namespace weir {

/// The number of coordinates of n rotated elements: whole rotations, then the rest, padded with
/// zeros to a power of two of at least kernels::kRotationMin.
inline size_t RotatedElements(size_t n) {
  const size_t rest = n % kernels::kRotationElements;
  if (rest == 0) return n;
  return n - rest + std::max(kernels::kRotationMin, std::bit_ceil(rest));
}

/// One rotation. Its coordinate i has number `at` + i in the bucket.
struct RotatedBlock {
  size_t index = 0;
  size_t at = 0;       // index * kRotationElements
  size_t size = 0;     // padding included
  float* y = nullptr;  // `size` coordinates, aligned; their variance is that of x over `size`
  // Encode: if not null, the sum of squares of what y loses is added here, and the final content of
  // y does not matter.
  double* lost = nullptr;
};

/// The rotations of one (job, bucket, step). Immutable.
class Rotation {
 public:
  /// `seed` is the same on all ranks.
  explicit Rotation(uint64_t seed) : seed_(SeedOf(seed)) {}

  /// The seed of kernels::MakeRotationSigns.
  static uint64_t SeedOf(uint64_t seed) {
    constexpr uint64_t kStream = 0x726F74617465;  // distinguishes uses of the seed
    return MixSeed(seed, kStream);
  }

  /// Calls quantise(RotatedBlock) for every rotation of gradient + residual. It must replace y by
  /// what the receiver will decode, or add to *lost. operands.rest, if set, receives what is lost,
  /// in the domain of the input.
  template <typename Quantise>
  kernels::Sums Encode(const PassOperands& operands, GradientStatistics* statistics,
                       Quantise&& quantise) const {
    constexpr size_t kSize = kernels::kRotationElements;
    static_assert(kernels::kBlockElements % kSize == 0);
    return ForEachBlock(
        operands, statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* sums) {
          for (size_t from = 0; from < block.size; from += kSize) {
            kernels::Block part = block;
            part.gradient += from;
            if (part.residual != nullptr) part.residual += from;
            part.size = std::min(kSize, block.size - from);
            float* part_rest = rest == nullptr ? nullptr : rest + from;
            const size_t index = (at + from) / kSize;
            if (RotatedElements(part.size) == part.size) {
              EncodeWhole(part, index, part_rest, sums, quantise);
            } else {
              EncodePadded(part, index, part_rest, sums, quantise);
            }
          }
        });
  }

  /// out += scale * the inverse rotation of the coordinates. restore(RotatedBlock) fills y or
  /// returns an error, which ends the pass.
  template <typename Restore>
  Status DecodeAdd(float scale, std::span<float> out, Restore&& restore) const {
    alignas(64) float y[kernels::kRotationElements];
    for (size_t at = 0, index = 0; at < out.size(); at += kernels::kRotationElements, ++index) {
      const size_t count = std::min(kernels::kRotationElements, out.size() - at);
      const RotatedBlock block{.index = index, .at = at, .size = RotatedElements(count), .y = y};
      WEIR_RETURN_IF_ERROR(restore(block));
      kernels::Hadamard(y, block.size);
      kernels::AddSigned(kernels::MakeRotationSigns(seed_, index), y, count, scale,
                         out.data() + at);
    }
    return OkStatus();
  }

 private:
  template <typename Quantise>
  void EncodeWhole(const kernels::Block& part, size_t index, float* rest, kernels::Sums* sums,
                   Quantise&& quantise) const {
    alignas(64) float y[kernels::kRotationElements];
    const kernels::RotationSigns signs = kernels::MakeRotationSigns(seed_, index);
    kernels::Rotate(part, signs, y, sums);
    double lost = 0;
    quantise(RotatedBlock{.index = index,
                          .at = index * kernels::kRotationElements,
                          .size = part.size,
                          .y = y,
                          .lost = rest == nullptr ? &lost : nullptr});
    if (rest == nullptr) {
      // H / sqrt(size) preserves lengths, so the loss need not be rotated back.
      sums->energy_lost += lost * static_cast<double>(part.size);
      return;
    }
    kernels::Hadamard(y, part.size);
    kernels::SubtractSigned(part, signs, y, rest, sums);
  }

  template <typename Quantise>
  void EncodePadded(const kernels::Block& part, size_t index, float* rest, kernels::Sums* sums,
                    Quantise&& quantise) const {
    constexpr size_t kSize = kernels::kRotationElements;
    alignas(64) float y[kSize], gradient[kSize] = {}, residual[kSize] = {}, left[kSize];
    std::copy_n(part.gradient, part.size, gradient);
    kernels::Block padded{.gradient = gradient, .size = RotatedElements(part.size)};
    if (part.residual != nullptr) {
      std::copy_n(part.residual, part.size, residual);
      padded.residual = residual;
    }
    const kernels::RotationSigns signs = kernels::MakeRotationSigns(seed_, index);
    kernels::Rotate(padded, signs, y, sums);
    quantise(RotatedBlock{.index = index, .at = index * kSize, .size = padded.size, .y = y});
    kernels::Hadamard(y, padded.size);
    // The receiver drops the padding, so what is in it is not a loss.
    std::fill(y + part.size, y + padded.size, 0.0f);
    kernels::SubtractSigned(padded, signs, y, left, sums);
    if (rest != nullptr) std::copy_n(left, part.size, rest);
  }

  uint64_t seed_;
};

}  // namespace weir
