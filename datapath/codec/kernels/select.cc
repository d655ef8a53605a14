// SPDX-License-Identifier: Apache-2.0
// Kernels of selection: measuring, histogram, threshold with compaction.

#include "datapath/codec/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/select.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

template <bool kResidual, bool kStore>
void MeasureRuns(const Block& block, float* out, Sums* sums) {
  InputSums input;
  for (size_t i = 0; i < block.size; i += hn::Lanes(F32())) {
    const VF32 e = LoadSum<kResidual>(block, i);
    input.Add(e);
    if constexpr (kStore) hn::StoreU(e, F32(), out + i);
  }
  input.Store(sums);
}

void MeasureDispatch(const Block& block, float* out, Sums* sums) {
  if (block.residual != nullptr) {
    out != nullptr ? MeasureRuns<true, true>(block, out, sums)
                   : MeasureRuns<true, false>(block, out, sums);
  } else {
    out != nullptr ? MeasureRuns<false, true>(block, out, sums)
                   : MeasureRuns<false, false>(block, out, sums);
  }
}

void Measure(const Block& block, float* out, Sums* sums) {
  const Block whole = WholeRuns(block);
  if (whole.size > 0) MeasureDispatch(whole, out, sums);
  if (whole.size == block.size) return;
  const PaddedTail tail(block, whole.size);
  HWY_ALIGN float stored[kRun];
  MeasureDispatch(tail.block, stored, sums);
  if (out != nullptr) std::memcpy(out + whole.size, stored, tail.size * sizeof(float));
}

/// Octet j of entry m is the position of the j-th set bit of m.
struct CompressTable {
  uint8_t places[256][8] = {};

  constexpr CompressTable() {
    for (int mask = 0; mask < 256; ++mask) {
      int next = 0;
      for (uint8_t bit = 0; bit < 8; ++bit) {
        if ((mask >> bit & 1) != 0) places[mask][next++] = bit;
      }
    }
  }
};
constexpr CompressTable kCompress;

/// Moves the lanes that a mask selects to the front, in two vectors alike. With some compilers
/// Highway's Compress copies its table to the stack at every call, which takes a hundred cycles.
struct Compressor {
#if HWY_TARGET == HWY_SCALAR
  HWY_INLINE explicit Compressor(hn::Mask<F32>) {}
  HWY_INLINE VF32 operator()(VF32 v) const { return v; }
  HWY_INLINE VU32 operator()(VU32 v) const { return v; }
#else
  static constexpr bool kByTable = hn::MaxLanes(F32()) <= 8;
  hn::Mask<F32> mask;
  VI32 places;

  HWY_INLINE explicit Compressor(hn::Mask<F32> selected) : mask(selected), places(hn::Zero(I32())) {
    if constexpr (kByTable) {
      const hn::Rebind<uint8_t, F32> octets;
      places = hn::PromoteTo(I32(), hn::LoadU(octets, kCompress.places[BitsOf(selected, 0)]));
    }
  }
  HWY_INLINE VF32 operator()(VF32 v) const {
    if constexpr (!kByTable) return hn::Compress(v, mask);
    return hn::TableLookupLanes(v, hn::IndicesFromVec(F32(), places));
  }
  HWY_INLINE VU32 operator()(VU32 v) const {
    if constexpr (!kByTable) return hn::Compress(v, hn::RebindMask(U32(), mask));
    return hn::TableLookupLanes(v, hn::IndicesFromVec(U32(), places));
  }
#endif
};

/// The distance between the elements on which Select works and those that it prefetches.
constexpr size_t kSelectAhead = 1024;

enum class Store { kNone, kCached, kStreamed };

template <bool kResidual, Store kStore>
size_t SelectRuns(const Block& block, float threshold, uint32_t base, const SelectRest& rest,
                  uint32_t* indices, float* values, Sums* sums) {
  const F32 d;
  const U32 du;
  const size_t lanes = hn::Lanes(d);
  const VF32 limit = hn::Set(d, threshold);
  const VF32 to_lane = hn::Set(d, rest.scale), from_lane = hn::Set(d, 1.0f / rest.scale);
  const VU32 iota = hn::Iota(du, base);  // expensive, so made once
  InputSums input;
  size_t count = 0;
  for (size_t i = 0; i < block.size; i += lanes) {
    if (i % kRun == 0) {
      ReadAhead(block.gradient + i, kSelectAhead);
      if constexpr (kResidual) ReadAhead(block.residual + i, kSelectAhead);
    }
    VF32 e = LoadSum<kResidual>(block, i);
    input.Add(e);
    const auto selected = hn::Gt(hn::Abs(e), limit);
    if (HWY_UNLIKELY(!hn::AllFalse(d, selected))) {
      // Compress in the register and then store, because compressing stores are microcoded on some
      // CPUs.
      const Compressor compress(selected);
      const VU32 position = hn::Add(iota, hn::Set(du, static_cast<uint32_t>(i)));
      hn::StoreU(compress(e), d, values + count);
      hn::StoreU(compress(position), du, indices + count);
      count += hn::CountTrue(d, selected);
      if constexpr (kStore != Store::kNone) {
        if (rest.kept == SelectRest::Kept::kHalfError) {
          const VF32 bounded = ClampTo(hn::Mul(e, to_lane), hn::Set(d, Half::kLargest));
          const VF32 half = hn::Mul(Half::Decode(Half::Encode(bounded)), from_lane);
          e = hn::IfThenElse(selected, hn::Sub(e, half), e);
        } else if (rest.kept == SelectRest::Kept::kNothing) {
          e = hn::IfThenZeroElse(selected, e);
        }
      }
    }
    if constexpr (kStore == Store::kCached) hn::StoreU(e, d, rest.rest + i);
    if constexpr (kStore == Store::kStreamed) hn::Stream(e, d, rest.rest + i);
  }
  input.Store(sums);
  return count;
}

template <bool kResidual>
size_t SelectDispatch(const Block& block, float threshold, uint32_t base, const SelectRest& rest,
                      uint32_t* indices, float* values, Sums* sums) {
  const auto run = rest.rest == nullptr ? SelectRuns<kResidual, Store::kNone>
                   : rest.streamed      ? SelectRuns<kResidual, Store::kStreamed>
                                        : SelectRuns<kResidual, Store::kCached>;
  return run(block, threshold, base, rest, indices, values, sums);
}

size_t Select(const Block& block, float threshold, uint32_t base, const SelectRest& rest,
              uint32_t* indices, float* values, Sums* sums) {
  const auto run = block.residual != nullptr ? SelectDispatch<true> : SelectDispatch<false>;
  const Block whole = WholeRuns(block);
  size_t count = 0;
  if (whole.size > 0) count = run(whole, threshold, base, rest, indices, values, sums);
  if (whole.size == block.size) return count;
  const PaddedTail tail(block, whole.size);
  HWY_ALIGN float left[kRun];
  SelectRest tail_rest = rest;
  tail_rest.rest = left;
  tail_rest.streamed = false;
  count += run(tail.block, threshold, base + static_cast<uint32_t>(whole.size), tail_rest,
               indices + count, values + count, sums);
  if (rest.rest != nullptr) std::memcpy(rest.rest + whole.size, left, tail.size * sizeof(float));
  return count;
}

void CopyPast(const float* from, float* to, size_t size) {
  const F32 d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d)) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  if (i < size) std::memcpy(to + i, from + i, (size - i) * sizeof(float));
}

/// Counts `size` <= kRun elements; kRun elements of `block` are readable.
template <bool kResidual>
HWY_INLINE void CountRun(const Block& block, size_t from, size_t size, uint32_t weight,
                         uint32_t* bins) {
  HWY_ALIGN uint32_t bin[kRun];
  const U32 du;
  for (size_t i = 0; i < kRun; i += hn::Lanes(F32())) {
    const VF32 e = LoadSum<kResidual>(block, from + i);
    hn::Store(hn::ShiftRight<19>(hn::BitCast(du, hn::Abs(e))), du, bin + i);
  }
  for (size_t i = 0; i < size; ++i) bins[bin[i]] += weight;
}

template <bool kResidual>
void HistogramOf(const Block& block, bool sampled, uint64_t first_group, uint32_t weight,
                 uint32_t* bins) {
  static_assert(kSampleRun == kRun);
  const size_t stride = sampled ? kSampleGroup : kRun;
  for (size_t from = 0; from < block.size; from += stride) {
    size_t at = from;
    if (sampled) {
      at += SampledRun(first_group + from / kSampleGroup) * kRun;
    }
    if (at + kRun <= block.size) {
      CountRun<kResidual>(block, at, kRun, weight, bins);
    } else if (at < block.size) {
      const PaddedTail tail(block, at);
      CountRun<kResidual>(tail.block, 0, tail.size, weight, bins);
    }
  }
}

void Histogram(const Block& block, bool sampled, uint64_t first_group, uint32_t weight,
               uint32_t* bins) {
  if (block.residual != nullptr) {
    HistogramOf<true>(block, sampled, first_group, weight, bins);
  } else {
    HistogramOf<false>(block, sampled, first_group, weight, bins);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <bit>
#include <limits>

namespace weir::kernels {

HWY_EXPORT(Measure);
HWY_EXPORT(Select);
HWY_EXPORT(CopyPast);
HWY_EXPORT(Histogram);

float Sums::max_abs() const {
  return non_finite() ? std::numeric_limits<float>::infinity() : std::bit_cast<float>(max_bits);
}

void Sums::Add(const Sums& other) {
  energy_in += other.energy_in;
  energy_lost += other.energy_lost;
  max_bits = std::max(max_bits, other.max_bits);
}

void Measure(const Block& block, float* out, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(Measure)(block, out, sums);
}

size_t Select(const Block& block, float threshold, uint32_t base, const SelectRest& rest,
              uint32_t* indices, float* values, Sums* sums) noexcept {
  return HWY_DYNAMIC_DISPATCH(Select)(block, threshold, base, rest, indices, values, sums);
}

void Histogram(const Block& block, bool sampled, uint64_t first_group, uint32_t weight,
               uint32_t* bins) noexcept {
  HWY_DYNAMIC_DISPATCH(Histogram)(block, sampled, first_group, weight, bins);
}

void CopyPast(const float* from, float* to, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(CopyPast)(from, to, size);
}

void FlushStreams() noexcept { hwy::FlushStream(); }

}  // namespace weir::kernels
#endif  // HWY_ONCE
