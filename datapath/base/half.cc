// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/half.h"

#include <bit>
#include <cstddef>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace weir {
namespace {

float FromHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  }
  // The pattern is that of a float whose exponent is 112 too low. One exact multiplication corrects
  // it and normalises subnormal numbers.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

uint16_t ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // rounds past 65504
  if (magnitude < 0x38800000) {
    // For a subnormal half, adding 0.5 puts its unit at the last bit of the sum, which the hardware
    // rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xFFF + odd) >> 13));
}

uint16_t ToBrain(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet_nan : rounded);
}

#if defined(__x86_64__)
// Each returns the number of leading elements that it converted.
__attribute__((target("avx,f16c"))) size_t HalfToFloatF16c(const uint16_t* in, float* out,
                                                           size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  return i;
}

__attribute__((target("avx,f16c"))) size_t FloatToHalfF16c(const float* in, uint16_t* out,
                                                           size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
  return i;
}

// "avx" implies that the operating system saves the wide registers. clang 14 does not know "f16c".
bool HasF16c() {
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
  }();
  return has;
}
#endif

}  // namespace

void HalfToFloat(std::span<const uint16_t> in, std::span<float> out) noexcept {
  size_t i = 0;
#if defined(__x86_64__)
  if (HasF16c()) i = HalfToFloatF16c(in.data(), out.data(), in.size());
#endif
  for (; i < in.size(); ++i) out[i] = FromHalf(in[i]);
}

void FloatToHalf(std::span<const float> in, std::span<uint16_t> out) noexcept {
  size_t i = 0;
#if defined(__x86_64__)
  if (HasF16c()) i = FloatToHalfF16c(in.data(), out.data(), in.size());
#endif
  for (; i < in.size(); ++i) out[i] = ToHalf(in[i]);
}

void BrainToFloat(std::span<const uint16_t> in, std::span<float> out) noexcept {
  for (size_t i = 0; i < in.size(); ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
  }
}

void FloatToBrain(std::span<const float> in, std::span<uint16_t> out) noexcept {
  for (size_t i = 0; i < in.size(); ++i) out[i] = ToBrain(in[i]);
}

}  // namespace weir
