// SPDX-License-Identifier: Apache-2.0
// Kernels that draw random numbers: for sums of powers of two, and for signs.

#include "datapath/codec/kernels/quantise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/random.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

using U8 = hn::Rebind<uint8_t, F32>;

// --- Sums of powers of two -----------------------------------------------------------------------
// A code is converted to the float whose exponent is its level, so that a sum of two stays in the
// range of normal numbers: it cancels to zero, or is at least the smaller power.

HWY_INLINE VF32 PowerOfCode(VU32 code) {
  const U32 du;
  const VU32 level = hn::And(code, hn::Set(du, 0x3Fu));
  const VU32 sign = hn::ShiftLeft<31>(hn::ShiftRight<7>(code));
  return hn::BitCast(F32(), hn::Or(hn::ShiftLeft<23>(level), sign));
}

/// `size` is a multiple of kRun.
HWY_INLINE void AccumulatePowerRuns(uint8_t* sum, const uint8_t* addend, size_t size, Noise noise) {
  const U32 du;
  for (size_t i = 0; i < size; i += hn::Lanes(du)) {
    const VF32 a = PowerOfCode(hn::PromoteTo(du, hn::LoadU(U8(), sum + i)));
    const VF32 b = PowerOfCode(hn::PromoteTo(du, hn::LoadU(U8(), addend + i)));
    const VU32 bits = hn::BitCast(du, hn::Add(a, b));
    const VU32 magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    // As in the quantiser, a mantissa m carries into the exponent with probability m / 2^23.
    const VU32 random = noise.Bits();
    const VU32 drawn = hn::ShiftRight<23>(hn::Add(magnitude, hn::ShiftRight<9>(random)));
    const VU32 level = hn::Min(drawn, hn::Set(du, 0x3Fu));
    const VU32 salt = hn::ShiftLeft<6>(hn::And(random, hn::Set(du, 1u)));
    const VU32 sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(bits));
    hn::StoreU(hn::TruncateTo(U8(), hn::Or(level, hn::Or(salt, sign))), U8(), sum + i);
  }
}

void AccumulatePowers(uint8_t* sum, const uint8_t* addend, size_t size, uint64_t seed,
                      uint32_t counter) {
  const size_t whole = size & ~(kRun - 1), left = size - whole;
  AccumulatePowerRuns(sum, addend, whole, Noise(seed, counter));
  if (left == 0) return;
  uint8_t a[kRun] = {}, b[kRun] = {};
  std::memcpy(a, sum + whole, left);
  std::memcpy(b, addend + whole, left);
  AccumulatePowerRuns(a, b, kRun, Noise(seed, counter + static_cast<uint32_t>(whole)));
  std::memcpy(sum + whole, a, left);
}

void SaltPowers(uint8_t* codes, size_t size, uint64_t seed, uint32_t counter) {
  const U32 du;
  Noise noise(seed, counter);
  const auto salted = [&](const uint8_t* from) HWY_ATTR {
    const VU32 salt = hn::ShiftLeft<6>(hn::And(noise.Bits(), hn::Set(du, 1u)));
    return hn::TruncateTo(U8(), hn::Or(hn::PromoteTo(du, hn::LoadU(U8(), from)), salt));
  };
  const size_t whole = size & ~(kRun - 1), left = size - whole;
  for (size_t i = 0; i < whole; i += hn::Lanes(du)) {
    hn::StoreU(salted(codes + i), U8(), codes + i);
  }
  uint8_t padded[kRun] = {};
  std::memcpy(padded, codes + whole, left);
  for (size_t i = 0; i < left; i += hn::Lanes(du)) {
    hn::StoreU(salted(padded + i), U8(), padded + i);
  }
  std::memcpy(codes + whole, padded, left);
}

// --- Signs by chance -----------------------------------------------------------------------------

template <bool kResidual>
HWY_INLINE void DrawSignRuns(const Block& block, float magnitude, Noise noise, uint8_t* out,
                             float* rest, InputSums* input) {
  const F32 d;
  const VF32 plus = hn::Set(d, magnitude), minus = hn::Set(d, -magnitude), one = hn::Set(d, 1.0f);
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    const VF32 e = LoadSum<kResidual>(block, i);
    input->Add(e);
    const VF32 u = noise.Uniform();
    const VF32 voter = hn::Add(e, hn::Mul(plus, hn::Sub(one, hn::Add(u, u))));
    const auto up = hn::Ge(voter, hn::Zero(d));
    const VU32 code = hn::IfThenElseZero(hn::RebindMask(U32(), up), hn::Set(U32(), 1u));
    hn::StoreU(hn::TruncateTo(U8(), code), U8(), out + i);
    hn::StoreU(hn::Sub(e, hn::IfThenElse(up, plus, minus)), d, rest + i);
  }
}

void DrawSigns(const Block& block, float magnitude, uint64_t seed, uint32_t counter, uint8_t* out,
               float* rest, Sums* sums) {
  const auto run = block.residual != nullptr ? DrawSignRuns<true> : DrawSignRuns<false>;
  float unwanted[kBlockElements];
  if (rest == nullptr) rest = unwanted;
  InputSums input;
  const Block whole = WholeRuns(block);
  run(whole, magnitude, Noise(seed, counter), out, rest, &input);
  if (whole.size < block.size) {
    const PaddedTail tail(block, whole.size);
    uint8_t codes[kRun];
    float left[kRun];
    run(tail.block, magnitude, Noise(seed, counter + static_cast<uint32_t>(whole.size)), codes,
        left, &input);
    std::memcpy(out + whole.size, codes, tail.size);
    std::memcpy(rest + whole.size, left, tail.size * sizeof(float));
  }
  input.Store(sums);
  Energy lost;
  size_t i = 0;
  for (; i + hn::Lanes(F32()) <= block.size; i += hn::Lanes(F32())) {
    lost.Add(hn::LoadU(F32(), rest + i));
  }
  sums->energy_lost += lost.Total();
  for (; i < block.size; ++i) sums->energy_lost += static_cast<double>(rest[i]) * rest[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(AccumulatePowers);
HWY_EXPORT(SaltPowers);
HWY_EXPORT(DrawSigns);

void AccumulatePowers(uint8_t* sum, const uint8_t* addend, size_t size, uint64_t seed,
                      uint32_t counter) noexcept {
  HWY_DYNAMIC_DISPATCH(AccumulatePowers)(sum, addend, size, seed, counter);
}
void SaltPowers(uint8_t* codes, size_t size, uint64_t seed, uint32_t counter) noexcept {
  HWY_DYNAMIC_DISPATCH(SaltPowers)(codes, size, seed, counter);
}
void DrawSigns(const Block& block, float magnitude, uint64_t seed, uint32_t counter, uint8_t* out,
               float* rest, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(DrawSigns)(block, magnitude, seed, counter, out, rest, sums);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
