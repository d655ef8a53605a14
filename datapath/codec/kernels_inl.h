// Pieces shared by the kernel files, compiled once per SIMD target: hence a per-target include
// guard in place of #pragma once.

#if defined(WEIR_CODEC_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_CODEC_KERNELS_INL_H_
#undef WEIR_CODEC_KERNELS_INL_H_
#else
#define WEIR_CODEC_KERNELS_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "datapath/codec/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Loops step over whole runs of this many elements; what is left goes through a padded copy. Every
/// vector of ours has at most as many lanes.
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

/// Sum of squares in double: two vectors of partial sums.
struct Energy {
  VF64 low, high;

  // Spelt out: an implicit constructor would not be compiled for the target.
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

/// Energy and largest magnitude of the input of a pass.
struct InputSums {
  Energy energy;
  VI32 max_bits;

  HWY_INLINE InputSums() : max_bits(hn::Zero(I32())) {}
  HWY_INLINE void Add(VF32 e) {
    energy.Add(e);
    max_bits = hn::Max(max_bits, hn::BitCast(I32(), hn::Abs(e)));
  }
  HWY_INLINE void Store(Sums* sums) const {
    sums->energy_in += energy.Total();
    sums->max_bits = std::max(sums->max_bits,
                              static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), max_bits))));
  }
};

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

/// The part of a block that whole runs cover.
HWY_INLINE Block WholeRuns(const Block& block) {
  Block whole = block;
  whole.size = block.size & ~(kRun - 1);
  return whole;
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
