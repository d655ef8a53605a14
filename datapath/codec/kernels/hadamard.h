// SPDX-License-Identifier: Apache-2.0
#pragma once
// SIMD kernels of the rotating codecs: the randomised Hadamard transform in blocks that stay in the
// first-level cache, and operations on a rotated block. Dispatched at run time as in kernels.h.
// Every target gives the same bytes; only energies may differ in their last bits.
//
// With H the unnormalised Walsh-Hadamard matrix of order m and D a diagonal of random signs, Rotate
// computes y = H D x / m, and the inverse is x = D H y. Both factors of 1/sqrt(m) are applied in
// Rotate, so that no finite input overflows. The variance of the coordinates of y is that of x
// divided by m.

#include <cstddef>
#include <cstdint>

#include "datapath/base/random.h"
#include "datapath/codec/kernels/kernels.h"

namespace weir::kernels {

/// The number of elements of a full rotation; it divides kBlockElements.
inline constexpr size_t kRotationElements = 1024;
/// The number of elements of the smallest rotation.
inline constexpr size_t kRotationMin = 16;

/// The signs of one rotation. Bit i % 32 of word i / 32 is set if element i is negated.
struct RotationSigns {
  uint32_t words[kRotationElements / 32];
};

/// The signs of rotation number `index` for `seed`: words 2j and 2j + 1 are the halves of
/// MixSeed(seed, index * 16 + j).
inline RotationSigns MakeRotationSigns(uint64_t seed, uint64_t index) {
  constexpr size_t kPairs = kRotationElements / 64;
  RotationSigns signs;
  for (size_t j = 0; j < kPairs; ++j) {
    const uint64_t bits = MixSeed(seed, index * kPairs + j);
    signs.words[2 * j] = static_cast<uint32_t>(bits);
    signs.words[2 * j + 1] = static_cast<uint32_t>(bits >> 32);
  }
  return signs;
}

// Below, `size` is a power of two from kRotationMin to kRotationElements. Buffers of `size` floats
// are aligned to 64 bytes unless they are part of a Block or declared unaligned.

/// y = H D e / size for a block of exactly `size` elements. Adds the block's energy and maximum to
/// `sums`.
void Rotate(const Block& block, const RotationSigns& signs, float* y, Sums* sums) noexcept;

/// y = H y.
void Hadamard(float* y, size_t size) noexcept;

/// rest = e - D y (unaligned; may be null or equal the residual). Adds to energy_lost.
void SubtractSigned(const Block& block, const RotationSigns& signs, const float* y, float* rest,
                    Sums* sums) noexcept;

/// out[i] += factor * (D y)[i] for i < count <= kRotationElements. `out` is unaligned.
void AddSigned(const RotationSigns& signs, const float* y, size_t count, float factor,
               float* out) noexcept;

/// A symmetric grid with a level at zero: q = clamp(floor(y * inverse_step + u), +-levels), where u
/// is uniform in [0, 1), from a hash of (seed, counter + position).
struct RotatedGrid {
  float step = 0;
  float inverse_step = 0;
  float levels = 0;  // at most 32767
  uint64_t seed = 0;
};
/// Stores q. If `lost` is null, replaces y by q * step; otherwise adds the sum of squares of y - q
/// * step to *lost.
void QuantiseRotated8(const RotatedGrid& grid, uint32_t counter, size_t size, float* y, int8_t* out,
                      double* lost) noexcept;
void QuantiseRotated16(const RotatedGrid& grid, uint32_t counter, size_t size, float* y,
                       int16_t* out, double* lost) noexcept;

/// A grid without some of its levels. It has g = 2 * centre cells of width `step` around zero. For
/// y in cell c, cells[c] is level | width << 16: `level` is the allowed level at or below y
/// (counted from 0), and the next one is `width` above it. y is rounded to one of the two at
/// random.
struct SparseGrid {
  float step = 0;
  float inverse_step = 0;
  int32_t centre = 0;
  const int32_t* cells = nullptr;  // 2 * centre of them
  uint64_t seed = 0;
};
/// Stores level - centre; otherwise like QuantiseRotated8.
void QuantiseSparse8(const SparseGrid& grid, uint32_t counter, size_t size, float* y, int8_t* out,
                     double* lost) noexcept;
void QuantiseSparse16(const SparseGrid& grid, uint32_t counter, size_t size, float* y, int16_t* out,
                      double* lost) noexcept;

/// y[i] = lanes[i] * step. The lanes are unaligned.
void LoadRotated8(const int8_t* lanes, size_t size, float step, float* y) noexcept;
void LoadRotated16(const void* lanes, size_t size, float step, float* y) noexcept;

/// Converts between signed lanes and octets of two four-bit lanes each: element i is in the low
/// half of octet i, and element i + size / 2 in the high half. When packing, values are within +-7.
void PackNibbles(const int8_t* lanes, size_t size, uint8_t* out) noexcept;
void UnpackNibbles(const uint8_t* in, size_t size, int8_t* lanes) noexcept;

/// The sum of squares, added in an order that does not depend on the target.
double SquareSum(const float* y, size_t size) noexcept;

/// The most bits of a symmetric codebook.
inline constexpr int kCodebookBitsMax = 8;
/// With at least this number of bits, a codebook is searched by cells of 1/64 instead of by one
/// boundary after the other. Boundaries are then more than a cell apart and below kCodebookCells /
/// 64.
inline constexpr int kCodebookBitsWide = 5;
inline constexpr int kCodebookCells = 320;
/// A codebook of the 2^bits values +-centroids[0 .. 2^(bits-1)), in ascending order. A magnitude
/// above boundaries[j] is assigned to centroid j + 1 or a later one.
struct Codebook {
  int bits = 1;
  float centroids[128] = {};
  float boundaries[128] = {};
  // From kCodebookBitsWide on: the number of boundaries below cell / 64; `boundaries` ends with
  // +infinity.
  int32_t below[kCodebookCells] = {};
};
/// The codebook of these 2^(bits - 1) centroids, with boundaries half way between them.
Codebook MakeCodebook(int bits, const float* centroids);
/// Sums that are added in an order that does not depend on the target.
struct CodebookSums {
  double product = 0;  // of centroid * |y|
  double square = 0;   // of centroid * centroid
};
/// Writes bits planes of size / 8 octets: the bits of the centroid's number from the lowest up,
/// then the sign (set: negative). Bit i % 8 of octet i / 8 belongs to element i. The centroid is
/// that of |y * inverse_scale|. y is not changed.
CodebookSums EncodeCodebook(const Codebook& book, float inverse_scale, const float* y, size_t size,
                            uint8_t* planes) noexcept;
/// y = factor * codebook value.
void DecodeCodebook(const Codebook& book, const uint8_t* planes, size_t size, float factor,
                    float* y) noexcept;
/// The same for codebooks of at least kCodebookBitsWide bits, to which the two above forward.
CodebookSums EncodeWideCodebook(const Codebook& book, float inverse_scale, const float* y,
                                size_t size, uint8_t* planes) noexcept;
void DecodeWideCodebook(const Codebook& book, const uint8_t* planes, size_t size, float factor,
                        float* y) noexcept;

}  // namespace weir::kernels
