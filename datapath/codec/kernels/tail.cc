// SPDX-License-Identifier: Apache-2.0
// Kernels of the threshold estimators: moments above a threshold, momentum, and the grid of
// magnitudes of kept values.

#include "datapath/codec/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/tail.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

/// A sum of float vectors in double.
struct DoubleSum {
  VF64 low, high;

  HWY_INLINE DoubleSum() : low(hn::Zero(F64())), high(hn::Zero(F64())) {}
  HWY_INLINE void Add(VF32 v) {
#if HWY_TARGET == HWY_SCALAR
    low = hn::Add(low, hn::PromoteTo(F64(), v));
#else
    low = hn::Add(low, hn::PromoteTo(F64(), hn::LowerHalf(F32Half(), v)));
    high = hn::Add(high, hn::PromoteTo(F64(), hn::UpperHalf(F32Half(), v)));
#endif
  }
  HWY_INLINE double Total() const { return hn::GetLane(hn::SumOfLanes(F64(), hn::Add(low, high))); }
};

/// Accumulates the moments of the excess over a threshold.
struct MomentSums {
  VF32 limit, smallest, largest;
  DoubleSum sum;
  Energy squares;
  uint64_t count = 0;

  HWY_INLINE explicit MomentSums(float threshold)
      : limit(hn::Set(F32(), threshold)),
        smallest(hn::Set(F32(), 3.402823466e+38f)),
        largest(hn::Zero(F32())) {}
  HWY_INLINE void Add(VF32 e) {
    const F32 d;
    const VF32 magnitude = hn::Abs(e);
    const auto above = hn::Gt(magnitude, limit);
    if (hn::AllFalse(d, above)) return;
    const VF32 excess = hn::IfThenElseZero(above, hn::Sub(magnitude, limit));
    count += hn::CountTrue(d, above);
    sum.Add(excess);
    squares.Add(excess);
    smallest = hn::IfThenElse(above, hn::Min(smallest, magnitude), smallest);
    largest = hn::IfThenElse(above, hn::Max(largest, magnitude), largest);
  }
  HWY_INLINE void Store(TailMoments* moments) const {
    moments->count += count;
    moments->sum += sum.Total();
    moments->sum_squares += squares.Total();
    moments->largest = std::max(moments->largest, hn::GetLane(hn::MaxOfLanes(F32(), largest)));
    moments->smallest = std::min(moments->smallest, hn::GetLane(hn::MinOfLanes(F32(), smallest)));
  }
};

struct LogSums {
  VF32 limit;
  DoubleSum sum;

  HWY_INLINE explicit LogSums(float threshold) : limit(hn::Set(F32(), threshold)) {}
  HWY_INLINE void Add(VF32 e) {
    const F32 d;
    const VF32 magnitude = hn::Abs(e);
    const auto above = hn::Gt(magnitude, limit);
    if (hn::AllFalse(d, above)) return;
    const VF32 safe = hn::IfThenElse(above, magnitude, hn::Set(d, 1.0f));
    sum.Add(hn::Log(d, safe));  // the logarithm of 1 is 0
  }
  HWY_INLINE void Store(TailMoments* moments) const { moments->sum_logs += sum.Total(); }
};

template <bool kResidual, typename Accumulator>
HWY_INLINE void AddRun(const Block& block, size_t at, Accumulator* sums) {
  for (size_t i = 0; i < kRun; i += hn::Lanes(F32())) sums->Add(LoadSum<kResidual>(block, at + i));
}

/// Visits every run of the block, or the sampled ones. The padding of the last run counts as zeros,
/// which are above no threshold.
template <bool kResidual, typename Accumulator>
void EachRun(const Block& block, float threshold, bool sampled, uint64_t first_group,
             TailMoments* moments) {
  Accumulator sums(threshold);
  const size_t stride = sampled ? kSampleGroup : kRun;
  for (size_t from = 0; from < block.size; from += stride) {
    size_t at = from;
    if (sampled) at += SampledRun(first_group + from / kSampleGroup) * kRun;
    if (at + kRun <= block.size) {
      AddRun<kResidual>(block, at, &sums);
    } else if (at < block.size) {
      const PaddedTail tail(block, at);
      AddRun<kResidual>(tail.block, 0, &sums);
    }
  }
  sums.Store(moments);
}

void MomentsAbove(const Block& block, float threshold, bool sampled, uint64_t first_group,
                  TailMoments* moments) {
  if (block.residual != nullptr) {
    EachRun<true, MomentSums>(block, threshold, sampled, first_group, moments);
  } else {
    EachRun<false, MomentSums>(block, threshold, sampled, first_group, moments);
  }
}

void LogsAbove(const Block& block, float threshold, bool sampled, uint64_t first_group,
               TailMoments* moments) {
  if (block.residual != nullptr) {
    EachRun<true, LogSums>(block, threshold, sampled, first_group, moments);
  } else {
    EachRun<false, LogSums>(block, threshold, sampled, first_group, moments);
  }
}

void AddMomentum(const float* gradient, const float* current, size_t size, float factor,
                 float* next) {
  const F32 d;
  const VF32 f = hn::Set(d, factor);
  size_t i = 0;
  for (; i + kRun <= size; i += kRun) {
    for (size_t j = i; j < i + kRun; j += hn::Lanes(d)) {
      hn::StoreU(hn::Add(hn::Mul(f, hn::LoadU(d, current + j)), hn::LoadU(d, gradient + j)), d,
                 next + j);
    }
  }
  for (; i < size; ++i) next[i] = factor * current[i] + gradient[i];
}

/// One padded run of kRun values.
HWY_INLINE void QuantiseRun(float* values, const MagnitudeGrid& grid, float inverse,
                            uint32_t* codes) {
  const F32 d;
  const I32 di;
  for (size_t i = 0; i < kRun; i += hn::Lanes(d)) {
    const VF32 v = hn::Load(d, values + i);
    const VF32 low = hn::Set(d, grid.low);
    const VF32 scaled = hn::Mul(hn::Sub(hn::Abs(v), low), hn::Set(d, inverse));
    const VF32 level = hn::Min(hn::Floor(hn::Add(scaled, hn::Set(d, 0.5f))),
                               hn::Set(d, static_cast<float>(grid.levels)));
    const VF32 clamped = hn::Max(level, hn::Zero(d));
    const VF32 magnitude = hn::Add(low, hn::Mul(clamped, hn::Set(d, grid.step)));
    hn::Store(hn::Sub(v, hn::CopySignToAbs(magnitude, v)), d, values + i);
    const VI32 sign = hn::IfThenElseZero(hn::RebindMask(di, hn::Lt(v, hn::Zero(d))),
                                         hn::Set(di, grid.levels + 1));
    const VI32 code = hn::Or(hn::ConvertTo(di, clamped), sign);
    hn::Store(hn::BitCast(U32(), code), U32(), codes + i);
  }
}

void QuantiseMagnitudes(float* values, size_t size, const MagnitudeGrid& grid, uint8_t* codes) {
  const float inverse = grid.step > 0 ? 1.0f / grid.step : 0.0f;
  HWY_ALIGN float run[kRun];
  HWY_ALIGN uint32_t wide[kRun];
  for (size_t i = 0; i < size; i += kRun) {
    const size_t part = std::min(kRun, size - i);
    std::fill(run, run + kRun, grid.low);
    std::memcpy(run, values + i, part * sizeof(float));
    QuantiseRun(run, grid, inverse, wide);
    std::memcpy(values + i, run, part * sizeof(float));
    for (size_t j = 0; j < part; ++j) codes[i + j] = static_cast<uint8_t>(wide[j]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(MomentsAbove);
HWY_EXPORT(LogsAbove);
HWY_EXPORT(AddMomentum);
HWY_EXPORT(QuantiseMagnitudes);

void MomentsAbove(const Block& block, float threshold, bool sampled, uint64_t first_group,
                  TailMoments* moments) noexcept {
  HWY_DYNAMIC_DISPATCH(MomentsAbove)(block, threshold, sampled, first_group, moments);
}

void LogsAbove(const Block& block, float threshold, bool sampled, uint64_t first_group,
               TailMoments* moments) noexcept {
  HWY_DYNAMIC_DISPATCH(LogsAbove)(block, threshold, sampled, first_group, moments);
}

void AddMomentum(const float* gradient, const float* current, size_t size, float factor,
                 float* next) noexcept {
  HWY_DYNAMIC_DISPATCH(AddMomentum)(gradient, current, size, factor, next);
}

void QuantiseMagnitudes(float* values, size_t size, const MagnitudeGrid& grid,
                        uint8_t* codes) noexcept {
  HWY_DYNAMIC_DISPATCH(QuantiseMagnitudes)(values, size, grid, codes);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
