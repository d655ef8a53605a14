// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic of single elements, bit by bit that of datapath/codec/kernels: number formats, random
// numbers, and the statistics of a pass.

#include <bit>
#include <cmath>
#include <cstdint>

#include "datapath/codec/kernels/kernels.h"
#include "datapath/codec/residual/gradient_statistics.h"
#include "datapath/cuda/team.h"

namespace weir::cuda {

inline constexpr uint32_t kMagnitudeBits = 0x7FFFFFFFu;
inline constexpr uint32_t kInfinityBits = 0x7F800000u;

WEIR_DEVICE inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
WEIR_DEVICE inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
WEIR_DEVICE inline unsigned CountOnes(uint32_t word) {
#if defined(__CUDACC__)
  return static_cast<unsigned>(__popc(static_cast<int>(word)));
#else
  return static_cast<unsigned>(std::popcount(word));
#endif
}
WEIR_DEVICE inline float Magnitude(float value) { return FloatOf(BitsOf(value) & kMagnitudeBits); }
WEIR_DEVICE inline bool IsFinite(float value) {
  return (BitsOf(value) & kMagnitudeBits) < kInfinityBits;
}
WEIR_DEVICE inline float Lesser(float a, float b) { return a < b ? a : b; }
WEIR_DEVICE inline float Greater(float a, float b) { return a > b ? a : b; }
WEIR_DEVICE inline float ClampTo(float v, float limit) { return Greater(Lesser(v, limit), -limit); }

/// Rounds to the nearest integer, ties to even, and returns it in the low bits as two's complement;
/// |integer| < 2^22. Unlike a conversion, it is defined for every value.
WEIR_DEVICE inline uint32_t IntegerBits(float integer) { return BitsOf(integer + 0x1.8p23f); }

/// IEEE half precision; |v| <= 65504. Kernels: Half.
WEIR_DEVICE inline uint16_t ToHalf(float v) {
  const uint32_t bits = BitsOf(v), magnitude = bits & kMagnitudeBits;
  const uint32_t sign = (bits ^ magnitude) >> 16;
  if (magnitude > 0x387FFFFFu) {
    const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(((rounded >> 13) - (112u << 10)) | sign);
  }
  // Subnormal: the last place of 0.5f is the smallest step of half precision.
  return static_cast<uint16_t>((BitsOf(FloatOf(magnitude) + 0.5f) - 0x3F000000u) | sign);
}
WEIR_DEVICE inline float FromHalf(uint16_t lane) {
  const float value = FloatOf((lane & 0x7FFFu) << 13) * 0x1p112f;
  return FloatOf(BitsOf(value) | (lane & 0x8000u) << 16);
}
WEIR_DEVICE inline bool HalfIsFinite(uint16_t lane) { return (lane & 0x7C00u) != 0x7C00u; }

/// bfloat16; |v| is at most the largest finite lane. Kernels: Brain.
WEIR_DEVICE inline uint16_t ToBrain(float v) {
  const uint32_t bits = BitsOf(v);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}
WEIR_DEVICE inline float FromBrain(uint16_t lane) { return FloatOf(uint32_t{lane} << 16); }
WEIR_DEVICE inline bool BrainIsFinite(uint16_t lane) { return (lane & 0x7F80u) != 0x7F80u; }

/// 32 random bits for an element. Kernels: Noise.
WEIR_DEVICE inline uint32_t NoiseBits(uint64_t seed, uint32_t counter) {
  uint32_t x = counter ^ static_cast<uint32_t>(seed);
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15 ^ static_cast<uint32_t>(seed >> 32);
  x *= 0x846CA68Bu;
  return x ^ x >> 16;
}
/// Uniform in [0, 1).
WEIR_DEVICE inline float NoiseUniform(uint64_t seed, uint32_t counter) {
  return static_cast<float>(static_cast<int32_t>(NoiseBits(seed, counter) >> 8)) * 0x1p-24f;
}

/// The energies and the largest magnitude of a pass; see kernels::Sums.
struct PassSums {
  double energy_in, energy_lost;
  uint32_t max_bits, unused;

  static WEIR_DEVICE PassSums Zero() { return {0, 0, 0, 0}; }
  WEIR_DEVICE void Add(const PassSums& other) {
    energy_in += other.energy_in;
    energy_lost += other.energy_lost;
    max_bits = max_bits > other.max_bits ? max_bits : other.max_bits;
  }
  WEIR_DEVICE void AddInput(float e) {
    energy_in += static_cast<double>(e) * static_cast<double>(e);
    const uint32_t magnitude = BitsOf(e) & kMagnitudeBits;
    max_bits = max_bits > magnitude ? max_bits : magnitude;
  }
  WEIR_DEVICE void AddLost(float error) {
    energy_lost += static_cast<double>(error) * static_cast<double>(error);
  }
};

}  // namespace weir::cuda
