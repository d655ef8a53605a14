// SPDX-License-Identifier: Apache-2.0
// Kernels of the lane codecs: half precision, bfloat16 and plain floats.

#include "datapath/codec/kernels/kernels.h"

#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/lanes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

/// bfloat16. The input is within the range of finite values.
struct Brain {
  static constexpr bool kScaled = false;
  static HWY_INLINE VU16 Encode(VF32 v, VF32* value) {
    const U32 du;
    const VU32 bits = hn::BitCast(du, v);
    const VU32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const VU32 rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
    *value = hn::BitCast(F32(), hn::And(rounded, hn::Set(du, 0xFFFF0000u)));
    return hn::TruncateTo(U16(), hn::ShiftRight<16>(rounded));
  }
  static HWY_INLINE VU16 Encode(VF32 v) {
    VF32 ignored;
    return Encode(v, &ignored);
  }
  static HWY_INLINE VF32 Decode(VU16 lanes) {
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), lanes)));
  }
  static HWY_INLINE bool AnyNonFinite(VU16 lanes) {
    const VU16 exponent = hn::Set(U16(), 0x7F80);
    return !hn::AllFalse(U16(), hn::Eq(hn::And(lanes, exponent), exponent));
  }
  static constexpr float kLargest = 0x1.FEp127f;
};

// --- 16-bit lanes ------------------------------------------------------------------------------

template <class Format, bool kResidual, bool kRest>
void Encode16Runs(const Block& block, float scale, float limit, uint16_t* out, float* rest,
                  Sums* sums) {
  const F32 d;
  const VF32 to_lane = hn::Set(d, scale);
  const VF32 from_lane = hn::Set(d, 1.0f / scale);
  const VF32 bound = hn::Set(d, limit);
  InputSums input;
  Loss lost;
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    if (i % kRun == 0) {
      ReadAhead(block.gradient + i, kBlockElements);
      if constexpr (kResidual) ReadAhead(block.residual + i, kBlockElements);
    }
    const VF32 e = LoadSum<kResidual>(block, i);
    input.Add(e);
    VF32 value;
    const VF32 scaled = Format::kScaled ? hn::Mul(e, to_lane) : e;
    hn::StoreU(Format::Encode(ClampTo(scaled, bound), &value), U16(), out + i);
    const VF32 error = hn::Sub(e, Format::kScaled ? hn::Mul(value, from_lane) : value);
    lost.Add(error);
    if constexpr (kRest) hn::StoreU(error, d, rest + i);
  }
  const uint32_t max_bits = input.MaxBits();
  input.Store(sums);
  if (HWY_LIKELY(Loss::Holds(max_bits))) {
    sums->energy_lost += lost.Total();
  } else if constexpr (kRest) {
    sums->energy_lost += EnergyOf(rest, block.size);
  } else {
    float left[kBlockElements];
    Sums again;
    Encode16Runs<Format, kResidual, true>(block, scale, limit, out, left, &again);
    sums->energy_lost += again.energy_lost;
  }
}

template <class Format>
void Encode16Dispatch(const Block& block, float scale, float limit, uint16_t* out, float* rest,
                      Sums* sums) {
  const auto run =
      block.residual != nullptr
          ? (rest != nullptr ? Encode16Runs<Format, true, true> : Encode16Runs<Format, true, false>)
          : (rest != nullptr ? Encode16Runs<Format, false, true>
                             : Encode16Runs<Format, false, false>);
  run(block, scale, limit, out, rest, sums);
}

template <class Format>
void Encode16(const Block& block, float scale, float limit, uint16_t* out, float* rest,
              Sums* sums) {
  const Block whole = WholeRuns(block);
  if (whole.size > 0) Encode16Dispatch<Format>(whole, scale, limit, out, rest, sums);
  if (whole.size == block.size) return;
  const PaddedTail tail(block, whole.size);
  uint16_t lanes[kRun];
  float left[kRun];
  Encode16Dispatch<Format>(tail.block, scale, limit, lanes, left, sums);
  std::memcpy(out + whole.size, lanes, tail.size * sizeof(uint16_t));
  if (rest != nullptr) std::memcpy(rest + whole.size, left, tail.size * sizeof(float));
}

template <class Format>
bool DecodeAdd16Runs(const uint16_t* in, size_t size, float factor, float* out) {
  const F32 d;
  const VF32 scale = hn::Set(d, factor);
  bool finite = true;
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    const VU16 lanes = hn::LoadU(U16(), in + i);
    finite = finite && !Format::AnyNonFinite(lanes);
    const VF32 term = hn::Mul(Format::Decode(lanes), scale);
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), term), d, out + i);
  }
  return finite;
}

template <class Format>
bool DecodeAdd16(const uint16_t* in, size_t size, float factor, float* out) {
  const size_t whole = size & ~(kRun - 1), left = size - whole;
  bool finite = DecodeAdd16Runs<Format>(in, whole, factor, out);
  if (left == 0) return finite;
  uint16_t lanes[kRun] = {};
  float sum[kRun] = {};
  std::memcpy(lanes, in + whole, left * sizeof(uint16_t));
  std::memcpy(sum, out + whole, left * sizeof(float));
  finite = DecodeAdd16Runs<Format>(lanes, kRun, factor, sum) && finite;
  std::memcpy(out + whole, sum, left * sizeof(float));
  return finite;
}

template <class Format>
void Accumulate16Runs(uint16_t* sum, const uint16_t* addend, size_t size) {
  const F32 d;
  const VF32 bound = hn::Set(d, Format::kLargest);
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    const VF32 a = Format::Decode(hn::LoadU(U16(), sum + i));
    const VF32 b = Format::Decode(hn::LoadU(U16(), addend + i));
    hn::StoreU(Format::Encode(ClampTo(hn::Add(a, b), bound)), U16(), sum + i);
  }
}

template <class Format>
void Accumulate16(uint16_t* sum, const uint16_t* addend, size_t size) {
  const size_t whole = size & ~(kRun - 1), left = size - whole;
  Accumulate16Runs<Format>(sum, addend, whole);
  if (left == 0) return;
  uint16_t a[kRun] = {}, b[kRun] = {};
  std::memcpy(a, sum + whole, left * sizeof(uint16_t));
  std::memcpy(b, addend + whole, left * sizeof(uint16_t));
  Accumulate16Runs<Format>(a, b, kRun);
  std::memcpy(sum + whole, a, left * sizeof(uint16_t));
}

void EncodeHalf(const Block& block, float scale, float limit, uint16_t* out, float* rest,
                Sums* sums) {
  Encode16<Half>(block, scale, limit, out, rest, sums);
}
bool DecodeAddHalf(const uint16_t* in, size_t size, float factor, float* out) {
  return DecodeAdd16<Half>(in, size, factor, out);
}
void AccumulateHalf(uint16_t* sum, const uint16_t* addend, size_t size) {
  Accumulate16<Half>(sum, addend, size);
}
void EncodeBrain(const Block& block, uint16_t* out, float* rest, Sums* sums) {
  Encode16<Brain>(block, 1.0f, Brain::kLargest, out, rest, sums);
}
bool DecodeAddBrain(const uint16_t* in, size_t size, float factor, float* out) {
  return DecodeAdd16<Brain>(in, size, factor, out);
}
void AccumulateBrain(uint16_t* sum, const uint16_t* addend, size_t size) {
  Accumulate16<Brain>(sum, addend, size);
}

RoundingEnergy RoundToHalf(const float* values, size_t size, float scale, uint16_t* out,
                           float* errors) {
  const F32 d;
  const VF32 to_lane = hn::Set(d, scale);
  const VF32 from_lane = hn::Set(d, 1.0f / scale);
  const VF32 bound = hn::Set(d, Half::kLargest);
  Energy value_energy, error_energy;
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    // Elements after the end may hold anything.
    const VF32 v = hn::IfThenElseZero(hn::FirstN(d, size - i), hn::LoadU(d, values + i));
    const VU16 lanes = Half::Encode(ClampTo(hn::Mul(v, to_lane), bound));
    const VF32 error = hn::Sub(v, hn::Mul(Half::Decode(lanes), from_lane));
    hn::StoreU(lanes, U16(), out + i);
    hn::StoreU(error, d, errors + i);
    value_energy.Add(v);
    error_energy.Add(error);
  }
  return {value_energy.Total(), error_energy.Total()};
}

// --- Plain floats
// ----------------------------------------------------------------------------------

// The addresses may be unaligned for float, so they are loaded as bytes.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE VF32 LoadBytes(const uint8_t* bytes) {
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return hn::Set(F32(), value);
}
HWY_INLINE void StoreBytes(VF32 v, uint8_t* bytes) {
  const float value = hn::GetLane(v);
  std::memcpy(bytes, &value, sizeof(value));
}
#else
using U8 = hn::Repartition<uint8_t, F32>;
HWY_INLINE VF32 LoadBytes(const uint8_t* bytes) {
  return hn::BitCast(F32(), hn::LoadU(U8(), bytes));
}
HWY_INLINE void StoreBytes(VF32 v, uint8_t* bytes) {
  hn::StoreU(hn::BitCast(U8(), v), U8(), bytes);
}
#endif

template <bool kResidual>
void MeasureToBytesRuns(const Block& block, uint8_t* out, Sums* sums) {
  InputSums input;
  for (size_t i = 0; i < block.size; i += hn::Lanes(F32())) {
    const VF32 e = LoadSum<kResidual>(block, i);
    input.Add(e);
    StoreBytes(e, out + i * sizeof(float));
  }
  input.Store(sums);
}

void MeasureToBytes(const Block& block, uint8_t* out, Sums* sums) {
  const auto run = block.residual != nullptr ? MeasureToBytesRuns<true> : MeasureToBytesRuns<false>;
  const Block whole = WholeRuns(block);
  run(whole, out, sums);
  if (whole.size == block.size) return;
  const PaddedTail tail(block, whole.size);
  uint8_t bytes[kRun * sizeof(float)];
  run(tail.block, bytes, sums);
  std::memcpy(out + whole.size * sizeof(float), bytes, tail.size * sizeof(float));
}

bool DecodeAddFloatRuns(const uint8_t* in, size_t size, float factor, float* out) {
  const F32 d;
  const VF32 scale = hn::Set(d, factor);
  VI32 max_bits = hn::Zero(I32());
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    const VF32 v = LoadBytes(in + i * sizeof(float));
    max_bits = hn::Max(max_bits, hn::BitCast(I32(), hn::Abs(v)));
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), hn::Mul(v, scale)), d, out + i);
  }
  return hn::GetLane(hn::MaxOfLanes(I32(), max_bits)) < 0x7F800000;
}

bool DecodeAddFloat(const uint8_t* in, size_t size, float factor, float* out) {
  const size_t whole = size & ~(kRun - 1), left = size - whole;
  bool finite = DecodeAddFloatRuns(in, whole, factor, out);
  if (left == 0) return finite;
  uint8_t bytes[kRun * sizeof(float)] = {};
  float sum[kRun] = {};
  std::memcpy(bytes, in + whole * sizeof(float), left * sizeof(float));
  std::memcpy(sum, out + whole, left * sizeof(float));
  finite = DecodeAddFloatRuns(bytes, kRun, factor, sum) && finite;
  std::memcpy(out + whole, sum, left * sizeof(float));
  return finite;
}

void AccumulateFloat(uint8_t* sum, const uint8_t* addend, size_t size) {
  size_t i = 0;
  for (; i + hn::Lanes(F32()) <= size; i += hn::Lanes(F32())) {
    StoreBytes(hn::Add(LoadBytes(sum + i * 4), LoadBytes(addend + i * 4)), sum + i * 4);
  }
  for (; i < size; ++i) {
    float a, b;
    std::memcpy(&a, sum + i * 4, 4);
    std::memcpy(&b, addend + i * 4, 4);
    a += b;
    std::memcpy(sum + i * 4, &a, 4);
  }
}

template <bool kScales>
bool ScaleFiniteRuns(float* x, size_t size, float scale) {
  // A magnitude with all exponent bits set carries into the sign bit.
  constexpr uint32_t kMagnitude = 0x7FFFFFFF, kCarry = 0x00800000;
  const F32 d;
  const U32 du;
  const VU32 magnitude = hn::Set(du, kMagnitude), carry = hn::Set(du, kCarry);
  const VF32 factor = hn::Set(d, scale);
  VU32 carried = hn::Zero(du);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d)) {
    VF32 v = hn::LoadU(d, x + i);
    if constexpr (kScales) {
      v = hn::Mul(v, factor);
      hn::StoreU(v, d, x + i);
    }
    carried = hn::Or(carried, hn::Add(hn::And(hn::BitCast(du, v), magnitude), carry));
  }
  uint32_t rest = 0;
  for (; i < size; ++i) {
    if constexpr (kScales) x[i] *= scale;
    rest |= (std::bit_cast<uint32_t>(x[i]) & kMagnitude) + kCarry;
  }
  const I32 di;
  return hn::AllFalse(di, hn::Lt(hn::BitCast(di, carried), hn::Zero(di))) && rest >> 31 == 0;
}

bool ScaleFinite(float* x, size_t size, float scale) {
  return scale == 1 ? ScaleFiniteRuns<false>(x, size, scale)
                    : ScaleFiniteRuns<true>(x, size, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(EncodeHalf);
HWY_EXPORT(DecodeAddHalf);
HWY_EXPORT(AccumulateHalf);
HWY_EXPORT(RoundToHalf);
HWY_EXPORT(EncodeBrain);
HWY_EXPORT(DecodeAddBrain);
HWY_EXPORT(AccumulateBrain);
HWY_EXPORT(MeasureToBytes);
HWY_EXPORT(DecodeAddFloat);
HWY_EXPORT(AccumulateFloat);
HWY_EXPORT(ScaleFinite);

void EncodeHalf(const Block& block, float scale, float limit, uint16_t* out, float* rest,
                Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeHalf)(block, scale, limit, out, rest, sums);
}
bool DecodeAddHalf(const uint16_t* in, size_t size, float factor, float* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(DecodeAddHalf)(in, size, factor, out);
}
void AccumulateHalf(uint16_t* sum, const uint16_t* addend, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(AccumulateHalf)(sum, addend, size);
}
RoundingEnergy RoundToHalf(const float* values, size_t size, float scale, uint16_t* out,
                           float* errors) noexcept {
  return HWY_DYNAMIC_DISPATCH(RoundToHalf)(values, size, scale, out, errors);
}
void EncodeBrain(const Block& block, uint16_t* out, float* rest, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeBrain)(block, out, rest, sums);
}
bool DecodeAddBrain(const uint16_t* in, size_t size, float factor, float* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(DecodeAddBrain)(in, size, factor, out);
}
void AccumulateBrain(uint16_t* sum, const uint16_t* addend, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(AccumulateBrain)(sum, addend, size);
}
void MeasureToBytes(const Block& block, void* out, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(MeasureToBytes)(block, static_cast<uint8_t*>(out), sums);
}
bool DecodeAddFloat(const void* in, size_t size, float factor, float* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(DecodeAddFloat)(static_cast<const uint8_t*>(in), size, factor, out);
}
void AccumulateFloat(void* sum, const void* addend, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(AccumulateFloat)
  (static_cast<uint8_t*>(sum), static_cast<const uint8_t*>(addend), size);
}
bool ScaleFinite(float* x, size_t size, float scale) noexcept {
  return HWY_DYNAMIC_DISPATCH(ScaleFinite)(x, size, scale);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
