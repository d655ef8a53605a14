// Kernels of the lane codecs: half precision, bfloat16, the 8-bit grid and plain floats.

#include "datapath/codec/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels_lanes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Compiled once per target from here on.
#include "datapath/codec/kernels_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

// Targets whose half-precision conversions are hardware and round to nearest even.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define WEIR_NATIVE_HALF 1
#else
#define WEIR_NATIVE_HALF 0
#endif

using U16 = hn::Rebind<uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using I8 = hn::Rebind<int8_t, F32>;
using VU16 = hn::Vec<U16>;

// --- Number formats. Each is Encode (finite f32 to lane bits), Decode and a test of lane validity.
// ---

/// IEEE half precision. Input within +-65504.
struct Half {
  static HWY_INLINE VU16 Encode(VF32 v) {
#if WEIR_NATIVE_HALF
    return hn::BitCast(U16(), hn::DemoteTo(F16(), v));
#else
    const U32 du;
    const VU32 bits = hn::BitCast(du, v);
    const VU32 sign = hn::And(bits, hn::Set(du, 0x80000000u));
    const VU32 magnitude = hn::Xor(bits, sign);
    // Normal: round the mantissa to 10 bits, ties to even, and rebias the exponent by 112.
    const VU32 odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const VU32 rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xFFFu)), odd);
    const VU32 normal = hn::Sub(hn::ShiftRight<13>(rounded), hn::Set(du, 112u << 10));
    // Subnormal: the last place of 0.5f is half precision's smallest step, so the adder rounds.
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
    // The product rebias the exponent by 112 and normalises subnormals, both exactly.
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

/// bfloat16. Input within the largest finite value.
struct Brain {
  static HWY_INLINE VU16 Encode(VF32 v) {
    const U32 du;
    const VU32 bits = hn::BitCast(du, v);
    const VU32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const VU32 rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
    return hn::TruncateTo(U16(), hn::ShiftRight<16>(rounded));
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

HWY_INLINE VF32 ClampTo(VF32 v, VF32 limit) { return hn::Max(hn::Min(v, limit), hn::Neg(limit)); }

// --- 16-bit lanes ------------------------------------------------------------------------------

template <class Format, bool kResidual, bool kRest>
void Encode16Runs(const Block& block, float scale, float limit, uint16_t* out, float* rest,
                  Sums* sums) {
  const F32 d;
  const VF32 to_lane = hn::Set(d, scale);
  const VF32 from_lane = hn::Set(d, 1.0f / scale);
  const VF32 bound = hn::Set(d, limit);
  InputSums input;
  Energy lost;
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    const VF32 e = LoadSum<kResidual>(block, i);
    input.Add(e);
    const VU16 lanes = Format::Encode(ClampTo(hn::Mul(e, to_lane), bound));
    hn::StoreU(lanes, U16(), out + i);
    const VF32 error = hn::Sub(e, hn::Mul(Format::Decode(lanes), from_lane));
    lost.Add(error);
    if constexpr (kRest) hn::StoreU(error, d, rest + i);
  }
  input.Store(sums);
  sums->energy_lost += lost.Total();
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

void RoundToHalf(float* values, size_t size, float scale, uint16_t* out) {
  const F32 d;
  const VF32 to_lane = hn::Set(d, scale);
  const VF32 from_lane = hn::Set(d, 1.0f / scale);
  float padded[kRun] = {};
  uint16_t lanes_out[kRun];
  for (size_t i = 0; i < size; i += kRun) {
    const size_t count = std::min(kRun, size - i);
    std::memcpy(padded, values + i, count * sizeof(float));
    for (size_t j = 0; j < kRun; j += hn::Lanes(d)) {
      const VF32 v = hn::LoadU(d, padded + j);
      const VU16 lanes = Half::Encode(ClampTo(hn::Mul(v, to_lane), hn::Set(d, Half::kLargest)));
      hn::StoreU(lanes, U16(), lanes_out + j);
      hn::StoreU(hn::Sub(v, hn::Mul(Half::Decode(lanes), from_lane)), d, padded + j);
    }
    std::memcpy(values + i, padded, count * sizeof(float));
    std::memcpy(out + i, lanes_out, count * sizeof(uint16_t));
  }
}

// --- The 8-bit grid ------------------------------------------------------------------------------

/// Uniform in [0, 1) from the element's number and the seed. Mixing constants: C. Wellons,
/// "Prospecting for hash functions" (lowbias32). The second key enters between the rounds, so that
/// the streams of two seeds are not shifts of each other.
HWY_INLINE VF32 Noise(VU32 counter, VU32 key0, VU32 key1) {
  const U32 du;
  VU32 x = hn::Xor(counter, key0);
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(du, 0x7FEB352Du));
  x = hn::Xor(hn::Xor(x, hn::ShiftRight<15>(x)), key1);
  x = hn::Mul(x, hn::Set(du, 0x846CA68Bu));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  const VI32 top = hn::BitCast(I32(), hn::ShiftRight<8>(x));
  return hn::Mul(hn::ConvertTo(F32(), top), hn::Set(F32(), 0x1p-24f));
}

template <bool kResidual, bool kRest>
void EncodeGridRuns(const Block& block, const Grid& grid, uint32_t counter, int8_t* out,
                    float* rest, Sums* sums) {
  const F32 d;
  const U32 du;
  const VF32 inverse_step = hn::Set(d, grid.inverse_step);
  const VF32 step = hn::Set(d, grid.step);
  const VF32 levels = hn::Set(d, grid.levels);
  const VU32 key0 = hn::Set(du, static_cast<uint32_t>(grid.seed));
  const VU32 key1 = hn::Set(du, static_cast<uint32_t>(grid.seed >> 32));
  const VU32 iota = hn::Iota(du, counter);  // costly to make, so once
  InputSums input;
  Energy lost;
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    const VF32 e = LoadSum<kResidual>(block, i);
    input.Add(e);
    const VU32 number = hn::Add(iota, hn::Set(du, static_cast<uint32_t>(i)));
    const VF32 u = Noise(number, key0, key1);
    // Clamped before rounding too: a value outside the shared range must not overflow the
    // conversion.
    const VF32 y = ClampTo(hn::Mul(e, inverse_step), levels);
    const VF32 q = ClampTo(hn::Floor(hn::Add(y, u)), levels);
    hn::StoreU(hn::DemoteTo(I8(), hn::ConvertTo(I32(), q)), I8(), out + i);
    const VF32 error = hn::Sub(e, hn::Mul(q, step));
    lost.Add(error);
    if constexpr (kRest) hn::StoreU(error, d, rest + i);
  }
  input.Store(sums);
  sums->energy_lost += lost.Total();
}

void EncodeGridDispatch(const Block& block, const Grid& grid, uint32_t counter, int8_t* out,
                        float* rest, Sums* sums) {
  const auto run =
      block.residual != nullptr
          ? (rest != nullptr ? EncodeGridRuns<true, true> : EncodeGridRuns<true, false>)
          : (rest != nullptr ? EncodeGridRuns<false, true> : EncodeGridRuns<false, false>);
  run(block, grid, counter, out, rest, sums);
}

void EncodeGrid(const Block& block, const Grid& grid, uint32_t counter, int8_t* out, float* rest,
                Sums* sums) {
  const Block whole = WholeRuns(block);
  if (whole.size > 0) EncodeGridDispatch(whole, grid, counter, out, rest, sums);
  if (whole.size == block.size) return;
  // Zeros stay zeros: floor(0 + u) = 0, so padding adds nothing to the sums.
  const PaddedTail tail(block, whole.size);
  int8_t lanes[kRun];
  float left[kRun];
  EncodeGridDispatch(tail.block, grid, counter + static_cast<uint32_t>(whole.size), lanes, left,
                     sums);
  std::memcpy(out + whole.size, lanes, tail.size);
  if (rest != nullptr) std::memcpy(rest + whole.size, left, tail.size * sizeof(float));
}

void DecodeAddGridRuns(const int8_t* in, size_t size, float factor, float* out) {
  const F32 d;
  const VF32 scale = hn::Set(d, factor);
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    const VF32 q = hn::ConvertTo(d, hn::PromoteTo(I32(), hn::LoadU(I8(), in + i)));
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), hn::Mul(q, scale)), d, out + i);
  }
}

void DecodeAddGrid(const int8_t* in, size_t size, float factor, float* out) {
  const size_t whole = size & ~(kRun - 1), left = size - whole;
  DecodeAddGridRuns(in, whole, factor, out);
  if (left == 0) return;
  int8_t lanes[kRun] = {};
  float sum[kRun] = {};
  std::memcpy(lanes, in + whole, left);
  std::memcpy(sum, out + whole, left * sizeof(float));
  DecodeAddGridRuns(lanes, kRun, factor, sum);
  std::memcpy(out + whole, sum, left * sizeof(float));
}

void AccumulateGrid(int8_t* sum, const int8_t* addend, size_t size) {
  const hn::ScalableTag<int8_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::LoadU(d, addend + i)), d, sum + i);
  }
  for (; i < size; ++i)
    sum[i] = static_cast<int8_t>(static_cast<uint8_t>(sum[i]) + static_cast<uint8_t>(addend[i]));
}

// --- Plain floats
// ----------------------------------------------------------------------------------

// Their addresses need not be aligned for float, so they are loaded through bytes.
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

#undef WEIR_NATIVE_HALF

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
HWY_EXPORT(EncodeGrid);
HWY_EXPORT(DecodeAddGrid);
HWY_EXPORT(AccumulateGrid);
HWY_EXPORT(MeasureToBytes);
HWY_EXPORT(DecodeAddFloat);
HWY_EXPORT(AccumulateFloat);

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
void RoundToHalf(float* values, size_t size, float scale, uint16_t* out) noexcept {
  HWY_DYNAMIC_DISPATCH(RoundToHalf)(values, size, scale, out);
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
void EncodeGrid(const Block& block, const Grid& grid, uint32_t counter, int8_t* out, float* rest,
                Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeGrid)(block, grid, counter, out, rest, sums);
}
void DecodeAddGrid(const int8_t* in, size_t size, float factor, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeAddGrid)(in, size, factor, out);
}
void AccumulateGrid(int8_t* sum, const int8_t* addend, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(AccumulateGrid)(sum, addend, size);
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

}  // namespace weir::kernels
#endif  // HWY_ONCE
