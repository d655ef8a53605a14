// SPDX-License-Identifier: Apache-2.0
// Code shared by the kernel files. It is compiled once per SIMD target, which requires a per-target
// include guard in place of #pragma once.

#if defined(WEIR_CODEC_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_CODEC_KERNELS_INL_H_
#undef WEIR_CODEC_KERNELS_INL_H_
#else
#define WEIR_CODEC_KERNELS_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "datapath/codec/kernels/kernels.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Loops process whole runs of this many elements; the rest goes through a padded copy. No vector
/// has more lanes than a run.
inline constexpr size_t kRun = 16;

using F32 = hn::CappedTag<float, kRun>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
#if HWY_TARGET == HWY_SCALAR
using F64 = hn::Rebind<double, F32>;
#else
using F64 = hn::Repartition<double, F32>;
using F32Half = hn::Half<F32>;
#endif
using VF32 = hn::Vec<F32>;
using VI32 = hn::Vec<I32>;
using VU32 = hn::Vec<U32>;
using VF64 = hn::Vec<F64>;

/// A sum of squares in double, as two vectors of partial sums.
struct Energy {
  VF64 low, high;

  // Written out, because an implicit constructor would not be compiled for the target.
  HWY_INLINE Energy() : low(hn::Zero(F64())), high(hn::Zero(F64())) {}
  HWY_INLINE void Add(VF32 v) {
#if HWY_TARGET == HWY_SCALAR
    const VF64 a = hn::PromoteTo(F64(), v);
    low = hn::MulAdd(a, a, low);
#else
    const VF64 a = hn::PromoteTo(F64(), hn::LowerHalf(F32Half(), v));
    const VF64 b = hn::PromoteTo(F64(), hn::UpperHalf(F32Half(), v));
    low = hn::MulAdd(a, a, low);
    high = hn::MulAdd(b, b, high);
#endif
  }
  HWY_INLINE double Total() const { return hn::GetLane(hn::SumOfLanes(F64(), hn::Add(low, high))); }
};

/// The energy and the largest magnitude of the input of a pass.
struct InputSums {
  Energy energy;
  VI32 max_bits;

  HWY_INLINE InputSums() : max_bits(hn::Zero(I32())) {}
  HWY_INLINE void Add(VF32 e) {
    energy.Add(e);
    max_bits = hn::Max(max_bits, hn::BitCast(I32(), hn::Abs(e)));
  }
  HWY_INLINE uint32_t MaxBits() const {
    return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), max_bits)));
  }
  HWY_INLINE void Store(Sums* sums) const {
    sums->energy_in += energy.Total();
    sums->max_bits = std::max(sums->max_bits, MaxBits());
  }
};

/// The sum of squares of rounding errors, in single precision: a third of the cost, and accurate
/// enough beside an exact energy. Valid for blocks whose squares do not leave the range of single
/// precision, as Holds says; use EnergyOf for others.
struct Loss {
  VF32 sum;

  HWY_INLINE Loss() : sum(hn::Zero(F32())) {}
  HWY_INLINE void Add(VF32 v) { sum = hn::MulAdd(v, v, sum); }
  HWY_INLINE double Total() const {
    HWY_ALIGN float lanes[kRun];
    hn::Store(sum, F32(), lanes);
    double total = 0;
    for (size_t j = 0; j < hn::Lanes(F32()); ++j) total += lanes[j];
    return total;
  }
  /// The largest magnitude is between 2^-40 and 2^50, or it is zero or not finite, so that there is
  /// nothing to sum.
  static HWY_INLINE bool Holds(uint32_t max_bits) {
    return max_bits == 0 || (max_bits >= 0x2B800000u && max_bits <= 0x58800000u) ||
           max_bits >= 0x7F800000u;
  }
};

/// The same in double, over whole runs.
HWY_INLINE double EnergyOf(const float* values, size_t size) {
  Energy energy;
  for (size_t i = 0; i < size; i += hn::Lanes(F32())) energy.Add(hn::LoadU(F32(), values + i));
  return energy.Total();
}

template <bool kResidual>
HWY_INLINE VF32 LoadSum(const Block& block, size_t i) {
  const F32 d;
  const VF32 g = hn::LoadU(d, block.gradient + i);
  if constexpr (kResidual) {
    return hn::Add(g, hn::LoadU(d, block.residual + i));
  } else {
    return g;
  }
}

/// Prefetches the line `elements` further on, which may be past the end of the array.
HWY_INLINE void ReadAhead(const float* at, size_t elements) {
  hwy::Prefetch(
      reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(at) + elements * sizeof(float)));
}

HWY_INLINE VF32 ClampTo(VF32 v, VF32 limit) { return hn::Max(hn::Min(v, limit), hn::Neg(limit)); }

/// Places the mask of the vector at `offset` of a run into the run's sixteen bits.
HWY_INLINE uint32_t BitsOf(hn::Mask<F32> mask, size_t offset) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(F32(), mask, bytes);
  return (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8) << offset;
}

// --- Number formats. Each has Encode (finite f32 to the bits of a lane, which may also return the
// --- lane's value), Decode, and a test whether a lane is valid.

// Targets with hardware conversions to half precision that round to nearest even.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define WEIR_NATIVE_HALF 1
#else
#define WEIR_NATIVE_HALF 0
#endif

using U16 = hn::Rebind<uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using VU16 = hn::Vec<U16>;

/// IEEE half precision. The input is within +-65504.
struct Half {
  static constexpr bool kScaled = true;
  static HWY_INLINE VU16 Encode(VF32 v, VF32* value) {
    const VU16 lanes = Encode(v);
    *value = Decode(lanes);
    return lanes;
  }
  static HWY_INLINE VU16 Encode(VF32 v) {
#if WEIR_NATIVE_HALF
    return hn::BitCast(U16(), hn::DemoteTo(F16(), v));
#else
    const U32 du;
    const VU32 bits = hn::BitCast(du, v);
    const VU32 sign = hn::And(bits, hn::Set(du, 0x80000000u));
    const VU32 magnitude = hn::Xor(bits, sign);
    // Normal numbers: round the mantissa to 10 bits, ties to even, and change the exponent's bias
    // by 112.
    const VU32 odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const VU32 rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xFFFu)), odd);
    const VU32 normal = hn::Sub(hn::ShiftRight<13>(rounded), hn::Set(du, 112u << 10));
    // Subnormal numbers: the last place of 0.5f is the smallest step of half precision, so the
    // addition rounds.
    const VF32 shifted = hn::Add(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0.5f));
    const VU32 subnormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3F000000u));
    const auto is_normal = hn::Gt(magnitude, hn::Set(du, 0x387FFFFFu));
    const VU32 half = hn::IfThenElse(is_normal, normal, subnormal);
    return hn::TruncateTo(U16(), hn::Or(half, hn::ShiftRight<16>(sign)));
#endif
  }
  static HWY_INLINE VF32 Decode(VU16 lanes) {
#if WEIR_NATIVE_HALF
    return hn::PromoteTo(F32(), hn::BitCast(F16(), lanes));
#else
    const U32 du;
    const VU32 bits = hn::PromoteTo(du, lanes);
    const VU32 sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
    const VU32 magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFu)));
    // The product changes the exponent's bias by 112 and normalises subnormal numbers, both
    // exactly.
    const VF32 value = hn::Mul(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0x1p112f));
    return hn::BitCast(F32(), hn::Or(hn::BitCast(du, value), sign));
#endif
  }
  static HWY_INLINE bool AnyNonFinite(VU16 lanes) {
    const VU16 exponent = hn::Set(U16(), 0x7C00);
    return !hn::AllFalse(U16(), hn::Eq(hn::And(lanes, exponent), exponent));
  }
  static constexpr float kLargest = 65504.0f;
};
#undef WEIR_NATIVE_HALF

/// 32 random bits from the number of the element and the seed. Mixing constants: C. Wellons,
/// "Prospecting for hash functions" (lowbias32). The second key is added between the rounds, so
/// that the streams of two seeds are not shifted copies of each other.
struct Noise {
  VU32 key0, key1, number, lanes;

  HWY_INLINE Noise(uint64_t seed, uint32_t counter)
      : key0(hn::Set(U32(), static_cast<uint32_t>(seed))),
        key1(hn::Set(U32(), static_cast<uint32_t>(seed >> 32))),
        number(hn::Iota(U32(), counter)),
        lanes(hn::Set(U32(), static_cast<uint32_t>(hn::Lanes(U32())))) {}
  /// The bits of the next elements.
  HWY_INLINE VU32 Bits() {
    const U32 du;
    VU32 x = hn::Xor(number, key0);
    number = hn::Add(number, lanes);
    x = hn::Xor(x, hn::ShiftRight<16>(x));
    x = hn::Mul(x, hn::Set(du, 0x7FEB352Du));
    x = hn::Xor(hn::Xor(x, hn::ShiftRight<15>(x)), key1);
    x = hn::Mul(x, hn::Set(du, 0x846CA68Bu));
    return hn::Xor(x, hn::ShiftRight<16>(x));
  }
  /// Numbers that are uniform in [0, 1).
  HWY_INLINE VF32 Uniform() {
    const VI32 top = hn::BitCast(I32(), hn::ShiftRight<8>(Bits()));
    return hn::Mul(hn::ConvertTo(F32(), top), hn::Set(F32(), 0x1p-24f));
  }
};

/// The last, incomplete run of a block, padded with zeros.
struct PaddedTail {
  HWY_ALIGN float gradient[kRun] = {};
  HWY_ALIGN float residual[kRun] = {};
  Block block;
  size_t size;

  PaddedTail(const Block& whole, size_t from) : size(whole.size - from) {
    std::memcpy(gradient, whole.gradient + from, size * sizeof(float));
    block.gradient = gradient;
    if (whole.residual != nullptr) {
      std::memcpy(residual, whole.residual + from, size * sizeof(float));
      block.residual = residual;
    }
    block.size = kRun;
  }
};

/// The part of a block that consists of whole runs.
HWY_INLINE Block WholeRuns(const Block& block) {
  Block whole = block;
  whole.size = block.size & ~(kRun - 1);
  return whole;
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
