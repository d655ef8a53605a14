// SPDX-License-Identifier: Apache-2.0
#pragma once
// Powers of two in octets, rounded at random: what natural and qsgd:levels=exponential share. See
// kernels::EncodePowers.

#include "datapath/cuda/passes.h"

namespace weir::cuda {

/// Rounds a magnitude at random to a biased exponent: a mantissa m carries into the exponent with
/// probability m / 2^23.
WEIR_DEVICE inline uint32_t DrawExponent(uint32_t magnitude, uint64_t seed, size_t i) {
  return (magnitude + (NoiseBits(seed, static_cast<uint32_t>(i)) >> 9)) >> 23;
}

/// The biased exponent at level 0, which either is fixed or follows from a maximum in device
/// memory.
struct PowerRange {
  uint32_t levels;  // 2^b - 1; levels are the low b bits of a code
  uint32_t least = 0;
  const float* maximum = nullptr;  // if set, `headroom` powers of two are left above it
  uint32_t headroom = 0;

  WEIR_DEVICE uint32_t ExponentMin() const {
    if (maximum == nullptr) return least;
    const uint32_t exponent = (BitsOf(*maximum) >> 23) + headroom, most = 254 - levels;
    const uint32_t below = exponent < levels ? 0 : exponent - levels;
    return below < most ? below : most;
  }
  /// Whether every rank's input was finite, as far as the maximum says.
  WEIR_DEVICE bool Usable() const {
    return maximum == nullptr || (*maximum >= 0 && IsFinite(*maximum));
  }
};

/// Codes of 8 bits with the sign at bit 7.
template <bool kCounts>
struct PowerProgram : PassProgram<kCounts> {
  static constexpr unsigned kTile = kTileElements;
  PowerRange range;
  uint64_t seed;
  bool salted;  // bit 6 is random, from salt_seed
  uint64_t salt_seed;
  uint8_t* out;

  template <class S>
  WEIR_DEVICE void Tile(Team& team, S& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const PassInput& in = this->in;
    const uint32_t least = range.ExponentMin(), most = least + range.levels;
    PassSums sums = team.Reduce<PassSums>(in.SizeOf(at, kTile), [&](unsigned i, PassSums* part) {
      const float e = in.Load(at + i);
      this->Count(shared, at + i, e);
      part->AddInput(e);
      const uint32_t magnitude = BitsOf(e) & kMagnitudeBits, sign = BitsOf(e) ^ magnitude;
      uint32_t exponent = DrawExponent(magnitude, seed, at + i);
      exponent = exponent < least ? least : exponent;
      exponent = exponent > most ? most : exponent;
      const uint32_t level = exponent - least;
      uint32_t code = level | sign >> 24;
      if (salted) code |= (NoiseBits(salt_seed, static_cast<uint32_t>(at + i)) & 1) << 6;
      out[at + i] = static_cast<uint8_t>(code);
      const float error = e - (level == 0 ? 0.0f : FloatOf(exponent << 23 | sign));
      part->AddLost(error);
      in.Keep(at + i, error);
    });
    if (!range.Usable()) sums.max_bits = kInfinityBits;
    this->AddSums(team, shared, sums);
  }
};

/// out[i] += factor * the value of code i.
struct AddPower {
  const uint8_t* codes;
  float* out;
  PowerRange range;
  float factor;
  WEIR_DEVICE void operator()(size_t i) const {
    const uint32_t code = codes[i], level = code & range.levels;
    const uint32_t pattern = (level + range.ExponentMin()) << 23 | code >> 7 << 31;
    out[i] += FloatOf(level == 0 ? 0 : pattern) * factor;
  }
};

}  // namespace weir::cuda
