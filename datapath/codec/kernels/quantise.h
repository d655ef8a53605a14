// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of the quantisers, with the same guarantees as those of kernels.h. A quantiser visits a
// block with one kernel that turns every element into a code of one or two octets, and a second one
// that packs the codes. Both find the block in the first-level cache.

#include "datapath/codec/kernels/kernels.h"

namespace weir::kernels {

// --- Codes to bits -------------------------------------------------------------------------------

/// Packs the low `bits` (1..8) of each of `size` (<= kBlockElements) codes into ceil(size * bits /
/// 8) octets, from the low end of each octet. Padding is zero.
void PackBits(const uint8_t* codes, size_t size, int bits, uint8_t* out) noexcept;
/// The inverse; reads ceil(size * bits / 8) octets. Padding is ignored.
void UnpackBits(const uint8_t* in, size_t size, int bits, uint8_t* codes) noexcept;
/// Like UnpackBits, for codes that are two's complement numbers of `bits` bits.
void UnpackSigned(const uint8_t* in, size_t size, int bits, int8_t* codes) noexcept;
/// Makes 16-bit codes from their lower and upper octets.
void JoinOctets(const uint8_t* low, const uint8_t* high, size_t size, uint16_t* out) noexcept;
/// sum += addend over lanes of 1, 2, 4, 8 or 16 bits (little-endian), each modulo 2^bits, without
/// carries into neighbouring lanes. `bytes` is a multiple of 2 for 16 bits.
void AccumulateLanes(uint8_t* sum, const uint8_t* addend, size_t bytes, int bits) noexcept;

// --- Statistics from which the scale of a bucket follows. Every target adds in the same order,
// --- since scales are part of the payload. Undefined when an element is not finite.

/// Sums over the negative elements of e and over the others.
struct Halves {
  double positive = 0;   // sum of e >= 0
  double negative = 0;   // sum of e < 0
  size_t negatives = 0;  // number of elements below zero
};
Halves SumHalves(const Block& block) noexcept;
/// The sum of squares of e.
double SumSquares(const Block& block) noexcept;
/// The least and the largest e of a block that is not empty.
struct Extremes {
  float least = 0;
  float largest = 0;
};
Extremes FindExtremes(const Block& block) noexcept;

// --- Quantisers. `rest`, if set, is e minus the value of the code.

/// The stochastic grid: code = clamp(floor(e * inverse_step + u), +-levels), where u is uniform in
/// [0, 1), from a hash of (seed, counter + position); value = code * step.
struct Grid {
  float step = 0;
  float inverse_step = 0;
  float levels = 0;  // <= 127, or 32767 for 16-bit codes
  uint64_t seed = 0;
};
void EncodeGrid(const Block& block, const Grid& grid, uint32_t counter, int8_t* out, float* rest,
                Sums* sums) noexcept;
void EncodeGrid(const Block& block, const Grid& grid, uint32_t counter, int16_t* out, float* rest,
                Sums* sums) noexcept;
void DecodeAddGrid(const int8_t* in, size_t size, float factor, float* out) noexcept;
void DecodeAddGrid(const int16_t* in, size_t size, float factor, float* out) noexcept;

/// A grid with an origin: code = clamp(round((e - base) * inverse_step), 0, levels), ties to even;
/// value = base + code * step.
struct AffineGrid {
  float base = 0;
  float step = 0;
  float inverse_step = 0;
  float levels = 0;  // <= 255
};
void EncodeAffine(const Block& block, const AffineGrid& grid, uint8_t* out, float* rest,
                  Sums* sums) noexcept;
/// out[i] += base + in[i] * step.
void DecodeAddAffine(const uint8_t* in, size_t size, float base, float step, float* out) noexcept;

/// Writes one bit per element, set where e >= 0, to ceil(size / 8) octets with zero padding, and
/// returns the sums from which the scales of one-bit codecs follow.
Halves FindSigns(const Block& block, uint8_t* bits, Sums* sums) noexcept;
/// The values of the two bits.
struct SignValues {
  float negative = 0;
  float positive = 0;
};
/// rest = e - values.positive where e >= 0, or else e - values.negative.
void SubtractSigns(const Block& block, const SignValues& values, float* rest) noexcept;
/// The energy that SubtractSigns leaves of a block of `size` elements with this energy, from the
/// expanded squares. Within 1e-6 of the larger of the two.
double EnergyBesideSigns(double energy, const Halves& halves, size_t size,
                         const SignValues& values) noexcept;
/// Expands bits to lanes of 1, 2, 4 or 8 bits with the value 0 or 1, in ceil(size * lane_bits / 8)
/// octets.
void SpreadBits(const uint8_t* bits, size_t size, int lane_bits, uint8_t* lanes) noexcept;

/// The same for the signs of other numbers: code 1, where voters[i] >= 0, has the value
/// `magnitude`, and code 0 its negative. `voters` is as long as the block and has space for 16
/// more.
struct Voters {
  float magnitude = 0;
  const float* voters = nullptr;
};
void EncodeVotes(const Block& block, const Voters& votes, uint8_t* out, float* rest,
                 Sums* sums) noexcept;
/// Replaces values[i] by `magnitude` with the sign of values[i]; zeros remain zero.
void SignsTimes(float magnitude, float* values, size_t size) noexcept;
/// out = decay * momentum + weight * e. A null `momentum` means zeros; `out` may equal `momentum`.
void MixMomentum(const Block& block, const float* momentum, float decay, float weight,
                 float* out) noexcept;

/// Powers of two: |e| is rounded at random to one of the two powers around it so that its mean is
/// |e|, with u as for the grid. The code is the biased exponent minus `exponent_min`. Code 0 means
/// zero and is used for anything up to exponent_min. Above the exponent is the sign: at bit 8 of
/// 16-bit codes, at bit 7 of 8-bit codes, or stored separately (EncodeExponents, whose exponent_min
/// is 0). Exponents are clamped to exponent_max (<= 254).
struct PowersOfTwo {
  int exponent_min = 0;
  int exponent_max = 254;
  uint64_t seed = 0;
};
void EncodePowers(const Block& block, const PowersOfTwo& powers, uint32_t counter, uint8_t* out,
                  float* rest, Sums* sums) noexcept;
void EncodeExponents(const Block& block, const PowersOfTwo& powers, uint32_t counter, uint8_t* out,
                     float* rest, Sums* sums) noexcept;
/// The sign of every e in bit i % 8 of octet i / 8, set for negative elements; padding is zero.
void SignBits(const Block& block, uint8_t* bits) noexcept;
/// out[i] += factor * the value of in[i].
void DecodeAddPowers(const uint8_t* in, size_t size, int exponent_min, float factor,
                     float* out) noexcept;
void DecodeAddPowers(const uint16_t* in, size_t size, int exponent_min, float factor,
                     float* out) noexcept;

/// sum += addend over 8-bit codes of powers of two, with the sign at bit 7, an unused bit 6, and
/// levels up to 63, all with the same exponent_min. Each sum is rounded at random to one of the two
/// powers around it so that its mean is the sum, with u as for the grid. It stays at level 63 where
/// it would exceed that, and gets a random bit 6.
void AccumulatePowers(uint8_t* sum, const uint8_t* addend, size_t size, uint64_t seed,
                      uint32_t counter) noexcept;

/// Sets bit 6 of such codes, which is zero, to random values.
void SaltPowers(uint8_t* codes, size_t size, uint64_t seed, uint32_t counter) noexcept;

/// Code 1 has the value `magnitude`, and code 0 its negative. Code 1 is drawn with probability (1 +
/// e / magnitude) / 2, where e + magnitude * (1 - 2 u) >= 0, with u as for the grid.
void DrawSigns(const Block& block, float magnitude, uint64_t seed, uint32_t counter, uint8_t* out,
               float* rest, Sums* sums) noexcept;

/// The dynamic tree of 8 bits: bit 7 is the sign. The number k of zeros above the highest set bit
/// of the other seven selects a decade, and the bits below it one of 2^(6 - k) equal parts of the
/// decade. The value is the middle of the part: scale * 10^-k * (0.1 + 0.9 * (part + 0.5) / 2^(6 -
/// k)). Code 0 means zero.
struct DynamicTree {
  float scale = 0;  // the largest |e|
  float inverse_scale = 0;
};
void EncodeTree(const Block& block, const DynamicTree& tree, uint8_t* out, float* rest,
                Sums* sums) noexcept;
/// The decade that begins at 10^-(k + 1) for k in 0..6.
struct TreeDecade {
  float end;    // 10^-k
  float begin;  // 10^-(k + 1)
  float parts;  // 2^(6 - k)
  float width;  // of a part
  float inverse_width;

  constexpr explicit TreeDecade(int k) : end(1), begin(0), parts(64), width(0), inverse_width(0) {
    double top = 1;
    for (int i = 0; i < k; ++i) {
      top /= 10;
      parts /= 2;
    }
    end = static_cast<float>(top);
    begin = static_cast<float>(top / 10);
    width = static_cast<float>(0.9 * top / parts);
    inverse_width = 1.0f / width;
  }
};
inline constexpr TreeDecade kTreeDecades[] = {TreeDecade(0), TreeDecade(1), TreeDecade(2),
                                              TreeDecade(3), TreeDecade(4), TreeDecade(5),
                                              TreeDecade(6)};

/// out[i] += table[in[i]]. The table has 256 entries.
void DecodeAddTable(const uint8_t* in, size_t size, const float* table, float* out) noexcept;

}  // namespace weir::kernels
