// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/kernels/fixed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/fixed.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

/// 2^exponent.
HWY_INLINE VF32 Power(int exponent) {
  return hn::BitCast(F32(), hn::Set(I32(), (exponent + 127) << 23));
}

/// The elements begin at `at` in the whole block.
template <bool kResidual, bool kRest>
void SplitRuns(const Block& block, size_t at, int bits, float* rest, FixedCodes* out, Sums* sums) {
  static_assert(kSampleRun >= kRun, "room behind the lists");
  const F32 d;
  const I32 di;
  const U32 du;
  const hn::Rebind<uint8_t, F32> octets;
  const VF32 small_scale = Power(bits), small_step = Power(-bits);
  const VF32 medium_scale = Power(15), medium_step = Power(-15);
  const VF32 small_min = Power(-bits), medium_min = Power(7 - bits), large_min = Power(0);
  InputSums input;
  Energy lost;
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    const VF32 e = LoadSum<kResidual>(block, i);
    input.Add(e);
    const VF32 magnitude = hn::Abs(e);
    // Written so that NaN counts as large.
    const auto is_zero = hn::Lt(magnitude, small_min);
    const auto below_medium = hn::Lt(magnitude, medium_min);
    const auto below_large = hn::Lt(magnitude, large_min);
    const auto is_small = hn::AndNot(is_zero, below_medium);
    const auto is_medium = hn::AndNot(below_medium, below_large);
    const VF32 scale = hn::IfThenElse(below_medium, small_scale, medium_scale);
    const VF32 step = hn::IfThenElse(below_medium, small_step, medium_step);
    // Integers are at most 32767, so larger elements are kept out of the conversion.
    const VI32 number = hn::ConvertTo(di, hn::IfThenElseZero(below_large, hn::Mul(e, scale)));
    const VF32 cut = hn::Mul(hn::ConvertTo(d, number), step);
    const VF32 error = hn::IfThenElseZero(below_large, hn::Sub(e, cut));
    lost.Add(error);
    if constexpr (kRest) hn::StoreU(error, d, rest + i);
    // A mask is -1 where it holds, so the class is three less one for every bound that e is below.
    const VU32 zero = hn::BitCast(du, hn::VecFromMask(d, is_zero));
    const VU32 small = hn::BitCast(du, hn::VecFromMask(d, below_medium));
    const VU32 medium = hn::BitCast(du, hn::VecFromMask(d, below_large));
    const VU32 classes = hn::Add(hn::Add(zero, small), hn::Add(medium, hn::Set(du, 3u)));
    hn::StoreU(hn::TruncateTo(octets, classes), octets, out->classes + at + i);
    const auto small_mask = hn::RebindMask(di, is_small);
    hn::StoreU(hn::Compress(number, small_mask), di, out->small + out->smalls);
    out->smalls += hn::CountTrue(d, is_small);
    if (hn::AllTrue(d, below_medium)) continue;
    const auto medium_mask = hn::RebindMask(di, is_medium);
    hn::StoreU(hn::Compress(number, medium_mask), di, out->medium + out->mediums);
    out->mediums += hn::CountTrue(d, is_medium);
    hn::StoreU(hn::Compress(e, hn::Not(below_large)), d, out->large + out->larges);
    out->larges += hn::CountTrue(d, hn::Not(below_large));
  }
  input.Store(sums);
  sums->energy_lost += lost.Total();
}

void SplitFixed(const Block& block, int bits, float* rest, FixedCodes* out, Sums* sums) {
  out->smalls = out->mediums = out->larges = 0;
  const auto run = block.residual != nullptr
                       ? (rest != nullptr ? SplitRuns<true, true> : SplitRuns<true, false>)
                       : (rest != nullptr ? SplitRuns<false, true> : SplitRuns<false, false>);
  const Block whole = WholeRuns(block);
  run(whole, 0, bits, rest, out, sums);
  if (whole.size == block.size) return;
  // The padding is of class 0 and so is in no list.
  const PaddedTail tail(block, whole.size);
  float left[kRun];
  run(tail.block, whole.size, bits, rest == nullptr ? nullptr : left, out, sums);
  if (rest != nullptr) std::memcpy(rest + whole.size, left, tail.size * sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(SplitFixed);

void SplitFixed(const Block& block, int bits, float* rest, FixedCodes* out, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(SplitFixed)(block, bits, rest, out, sums);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
