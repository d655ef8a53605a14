// SPDX-License-Identifier: Apache-2.0
// Kernels that turn elements into codes of one or two octets, and codes into sums of values.

#include "datapath/codec/kernels/quantise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/quantise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

/// Added to a number below 2^22 in magnitude, it leaves the nearest integer, ties to even, in the
/// low bits of the pattern as two's complement. That is cheaper than a conversion, which must
/// handle values that no integer can hold.
HWY_INLINE VF32 Magic() { return hn::Set(F32(), 0x1.8p23f); }
HWY_INLINE VU32 IntegerBits(VF32 integer) { return hn::BitCast(U32(), hn::Add(integer, Magic())); }

// --- Quantisers. Each is a functor that returns the code of e and the value of that code. --------

struct GridQuantiser {
  static constexpr bool kReadsAhead = false;
  Noise noise;
  VF32 inverse_step, step, levels;

  HWY_INLINE GridQuantiser(const Grid& grid, uint32_t counter)
      : noise(grid.seed, counter),
        inverse_step(hn::Set(F32(), grid.inverse_step)),
        step(hn::Set(F32(), grid.step)),
        levels(hn::Set(F32(), grid.levels)) {}
  HWY_INLINE VF32 operator()(VF32 e, size_t, VU32* code) {
    // The lower clamp comes before the noise and the upper one after it, because the rounded sum
    // may exceed the levels by one.
    const VF32 y = hn::Max(hn::Mul(e, inverse_step), hn::Neg(levels));
    const VF32 q = hn::Min(hn::Floor(hn::Add(y, noise.Uniform())), levels);
    *code = IntegerBits(q);
    return hn::Mul(q, step);
  }
};

struct AffineQuantiser {
  static constexpr bool kReadsAhead = true;
  VF32 base, inverse_step, step, levels;

  HWY_INLINE explicit AffineQuantiser(const AffineGrid& grid, uint32_t)
      : base(hn::Set(F32(), grid.base)),
        inverse_step(hn::Set(F32(), grid.inverse_step)),
        step(hn::Set(F32(), grid.step)),
        levels(hn::Set(F32(), grid.levels)) {}
  HWY_INLINE VF32 operator()(VF32 e, size_t, VU32* code) {
    const VF32 y = hn::Mul(hn::Sub(e, base), inverse_step);
    const VF32 rounded = hn::Add(hn::Min(hn::Max(y, hn::Zero(F32())), levels), Magic());
    *code = hn::BitCast(U32(), rounded);
    return hn::Add(base, hn::Mul(hn::Sub(rounded, Magic()), step));
  }
};

struct VoteQuantiser {
  static constexpr bool kReadsAhead = false;
  VF32 negative, positive;
  const float* voters;

  HWY_INLINE VoteQuantiser(const Voters& votes, uint32_t position)
      : negative(hn::Set(F32(), -votes.magnitude)),
        positive(hn::Set(F32(), votes.magnitude)),
        voters(votes.voters + position) {}
  HWY_INLINE VF32 operator()(VF32, size_t i, VU32* code) {
    const auto is_positive = hn::Ge(hn::LoadU(F32(), voters + i), hn::Zero(F32()));
    *code = hn::IfThenElseZero(hn::RebindMask(U32(), is_positive), hn::Set(U32(), 1u));
    return hn::IfThenElse(is_positive, positive, negative);
  }
};

/// The magnitude of a float as a pattern.
HWY_INLINE VU32 Magnitude(VU32 bits) { return hn::And(bits, hn::Set(U32(), 0x7FFFFFFFu)); }

/// The sign goes to bit kSignBit of the code. For kSignBit = 0 it is not stored, and exponent_min
/// is 0.
template <int kSignBit>
struct PowerQuantiser {
  static constexpr bool kReadsAhead = false;
  Noise noise;
  VU32 least, most;

  HWY_INLINE PowerQuantiser(const PowersOfTwo& powers, uint32_t counter)
      : noise(powers.seed, counter),
        least(hn::Set(U32(), static_cast<uint32_t>(powers.exponent_min))),
        most(hn::Set(U32(), static_cast<uint32_t>(powers.exponent_max))) {}
  HWY_INLINE VF32 operator()(VF32 e, size_t, VU32* code) {
    const U32 du;
    const VU32 bits = hn::BitCast(du, e);
    const VU32 magnitude = Magnitude(bits);
    const VU32 sign = hn::Xor(bits, magnitude);
    // A mantissa m carries into the exponent with probability m / 2^23, so the mean is exact, also
    // for subnormal numbers.
    const VU32 drawn = hn::ShiftRight<23>(hn::Add(magnitude, hn::ShiftRight<9>(noise.Bits())));
    if constexpr (kSignBit == 0) {  // from 0, so zero needs no special case
      *code = hn::Min(drawn, most);
      return hn::BitCast(F32(), hn::Or(hn::ShiftLeft<23>(*code), sign));
    }
    const VU32 exponent = hn::Min(hn::Max(drawn, least), most);
    const VU32 level = hn::Sub(exponent, least);
    *code = hn::Or(level, hn::ShiftRight<31 - kSignBit>(sign));
    const auto is_zero = hn::Eq(level, hn::Zero(du));
    return hn::BitCast(F32(),
                       hn::IfThenZeroElse(is_zero, hn::Or(hn::ShiftLeft<23>(exponent), sign)));
  }
};

struct TreeQuantiser {
  static constexpr bool kReadsAhead = true;
  VF32 scale, inverse_scale;

  HWY_INLINE explicit TreeQuantiser(const DynamicTree& tree, uint32_t)
      : scale(hn::Set(F32(), tree.scale)), inverse_scale(hn::Set(F32(), tree.inverse_scale)) {}
  HWY_INLINE VF32 operator()(VF32 e, size_t, VU32* code) {
    const F32 d;
    const U32 du;
    const VU32 bits = hn::BitCast(du, e);
    const VU32 sign = hn::Xor(bits, Magnitude(bits));
    // Keep it below 1, so that the largest element is in the first decade.
    const VF32 y = hn::Min(hn::Mul(hn::Abs(e), inverse_scale), hn::Set(d, 0x1.FFFFFEp-1f));
    VF32 begin = hn::Zero(d), parts = begin, width = begin, inverse_width = begin;
    for (const TreeDecade& decade : kTreeDecades) {
      const auto inside = hn::Lt(y, hn::Set(d, decade.end));
      begin = hn::IfThenElse(inside, hn::Set(d, decade.begin), begin);
      parts = hn::IfThenElse(inside, hn::Set(d, decade.parts), parts);
      width = hn::IfThenElse(inside, hn::Set(d, decade.width), width);
      inverse_width = hn::IfThenElse(inside, hn::Set(d, decade.inverse_width), inverse_width);
    }
    const VF32 part =
        hn::Min(hn::Max(hn::Floor(hn::Mul(hn::Sub(y, begin), inverse_width)), hn::Zero(d)),
                hn::Sub(parts, hn::Set(d, 1.0f)));
    // Nearer to zero than to the smallest value.
    const auto is_zero = hn::Lt(y, hn::Set(d, 2.75e-7f));
    const VU32 magnitude = hn::And(IntegerBits(hn::Add(parts, part)), hn::Set(du, 0x7Fu));
    const VU32 signed_code = hn::Or(magnitude, hn::ShiftRight<24>(sign));
    *code = hn::IfThenZeroElse(hn::RebindMask(du, is_zero), signed_code);
    const VF32 middle = hn::Add(begin, hn::Mul(hn::Add(part, hn::Set(d, 0.5f)), width));
    const VF32 value = hn::BitCast(d, hn::Or(hn::BitCast(du, hn::Mul(middle, scale)), sign));
    return hn::IfThenZeroElse(is_zero, value);
  }
};

// --- The loop around them ------------------------------------------------------------------------

template <typename Lane, bool kResidual, bool kRest, class Quantiser>
HWY_INLINE void QuantiseRuns(const Block& block, Quantiser quantise, Lane* out, float* rest,
                             InputSums* input, Loss* lost) {
  const F32 d;
  const hn::Rebind<Lane, F32> lanes;
  const hn::Rebind<hwy::MakeUnsigned<Lane>, F32> unsigned_lanes;
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    if (Quantiser::kReadsAhead && i % kRun == 0) {
      ReadAhead(block.gradient + i, kBlockElements);
      if constexpr (kResidual) ReadAhead(block.residual + i, kBlockElements);
    }
    const VF32 e = LoadSum<kResidual>(block, i);
    input->Add(e);
    VU32 code;
    const VF32 error = hn::Sub(e, quantise(e, i, &code));
    hn::StoreU(hn::BitCast(lanes, hn::TruncateTo(unsigned_lanes, code)), lanes, out + i);
    lost->Add(error);
    if constexpr (kRest) hn::StoreU(error, d, rest + i);
  }
}

/// The energy lost in whole runs, in double, for the few blocks for which Loss is not valid.
template <class Quantiser, bool kResidual, bool kRest, typename Lane, class Parameters>
double ExactLoss(const Block& whole, const Parameters& parameters, uint32_t counter,
                 const float* rest) {
  if constexpr (kRest) return EnergyOf(rest, whole.size);
  Lane codes[kBlockElements];
  float left[kBlockElements];
  InputSums ignored_input;
  Loss ignored;
  QuantiseRuns<Lane, kResidual, true>(whole, Quantiser(parameters, counter), codes, left,
                                      &ignored_input, &ignored);
  return EnergyOf(left, whole.size);
}

template <class Quantiser, bool kResidual, bool kRest, typename Lane, class Parameters>
void Quantise(const Block& block, const Parameters& parameters, uint32_t counter, Lane* out,
              float* rest, Sums* sums) {
  InputSums input;
  Loss lost;
  const Block whole = WholeRuns(block);
  QuantiseRuns<Lane, kResidual, kRest>(whole, Quantiser(parameters, counter), out, rest, &input,
                                       &lost);
  sums->energy_lost +=
      HWY_LIKELY(Loss::Holds(input.MaxBits()))
          ? lost.Total()
          : ExactLoss<Quantiser, kResidual, kRest, Lane>(whole, parameters, counter, rest);
  if (whole.size < block.size) {
    const PaddedTail tail(block, whole.size);
    const Quantiser quantise(parameters, counter + static_cast<uint32_t>(whole.size));
    Lane codes[kRun];
    float left[kRun];
    Loss padded;
    QuantiseRuns<Lane, kResidual, true>(tail.block, quantise, codes, left, &input, &padded);
    std::memcpy(out + whole.size, codes, tail.size * sizeof(Lane));
    if constexpr (kRest) std::memcpy(rest + whole.size, left, tail.size * sizeof(float));
    // Zero may not be a value of the quantiser, so the errors of the padding are excluded.
    for (size_t j = 0; j < tail.size; ++j) {
      sums->energy_lost += static_cast<double>(left[j]) * left[j];
    }
  }
  input.Store(sums);
}

template <class Quantiser, typename Lane, class Parameters>
void QuantiseAny(const Block& block, const Parameters& parameters, uint32_t counter, Lane* out,
                 float* rest, Sums* sums) {
  const auto run = block.residual != nullptr
                       ? (rest != nullptr ? Quantise<Quantiser, true, true, Lane, Parameters>
                                          : Quantise<Quantiser, true, false, Lane, Parameters>)
                       : (rest != nullptr ? Quantise<Quantiser, false, true, Lane, Parameters>
                                          : Quantise<Quantiser, false, false, Lane, Parameters>);
  run(block, parameters, counter, out, rest, sums);
}

void EncodeGrid8(const Block& block, const Grid& grid, uint32_t counter, int8_t* out, float* rest,
                 Sums* sums) {
  QuantiseAny<GridQuantiser>(block, grid, counter, out, rest, sums);
}
void EncodeGrid16(const Block& block, const Grid& grid, uint32_t counter, int16_t* out, float* rest,
                  Sums* sums) {
  QuantiseAny<GridQuantiser>(block, grid, counter, out, rest, sums);
}
void EncodeAffine(const Block& block, const AffineGrid& grid, uint8_t* out, float* rest,
                  Sums* sums) {
  QuantiseAny<AffineQuantiser>(block, grid, 0, out, rest, sums);
}
void EncodeVotes(const Block& block, const Voters& votes, uint8_t* out, float* rest, Sums* sums) {
  QuantiseAny<VoteQuantiser>(block, votes, 0, out, rest, sums);
}
void EncodePowers8(const Block& block, const PowersOfTwo& powers, uint32_t counter, uint8_t* out,
                   float* rest, Sums* sums) {
  QuantiseAny<PowerQuantiser<7>>(block, powers, counter, out, rest, sums);
}
void EncodeExponents(const Block& block, const PowersOfTwo& powers, uint32_t counter, uint8_t* out,
                     float* rest, Sums* sums) {
  QuantiseAny<PowerQuantiser<0>>(block, powers, counter, out, rest, sums);
}

template <bool kResidual>
void SignBitsRuns(const Block& block, uint8_t* bits) {
  const F32 d;
  for (size_t i = 0; i < block.size; i += kRun) {
    uint32_t word = 0;
    for (size_t j = 0; j < kRun; j += hn::Lanes(d)) {
      const VI32 pattern = hn::BitCast(I32(), LoadSum<kResidual>(block, i + j));
      word |= BitsOf(hn::RebindMask(d, hn::Lt(pattern, hn::Zero(I32()))), j);
    }
    bits[i / 8] = static_cast<uint8_t>(word);
    bits[i / 8 + 1] = static_cast<uint8_t>(word >> 8);
  }
}

void SignBits(const Block& block, uint8_t* bits) {
  const auto run = block.residual != nullptr ? SignBitsRuns<true> : SignBitsRuns<false>;
  const Block whole = WholeRuns(block);
  run(whole, bits);
  if (whole.size == block.size) return;
  const PaddedTail tail(block, whole.size);
  uint8_t last[kRun / 8];
  run(tail.block, last);
  std::memcpy(bits + whole.size / 8, last, (tail.size + 7) / 8);
}

void EncodeTree(const Block& block, const DynamicTree& tree, uint8_t* out, float* rest,
                Sums* sums) {
  QuantiseAny<TreeQuantiser>(block, tree, 0, out, rest, sums);
}

// --- Decoding: out += value of a code ------------------------------------------------------------

template <typename Lane, class Value>
HWY_INLINE void DecodeAdd(const Lane* in, size_t size, const Value& value, float* out) {
  const F32 d;
  const hn::Rebind<Lane, F32> lanes;
  const size_t whole = size & ~(kRun - 1), left = size - whole;
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const VI32 code = hn::PromoteTo(I32(), hn::LoadU(lanes, in + i));
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), value(code)), d, out + i);
  }
  if (left == 0) return;
  Lane codes[kRun] = {};
  float sum[kRun] = {};
  std::memcpy(codes, in + whole, left * sizeof(Lane));
  std::memcpy(sum, out + whole, left * sizeof(float));
  for (size_t i = 0; i < kRun; i += hn::Lanes(d)) {
    const VI32 code = hn::PromoteTo(I32(), hn::LoadU(lanes, codes + i));
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), value(code)), d, sum + i);
  }
  std::memcpy(out + whole, sum, left * sizeof(float));
}

struct GridValue {
  VF32 factor;
  HWY_INLINE explicit GridValue(float f) : factor(hn::Set(F32(), f)) {}
  HWY_INLINE VF32 operator()(VI32 code) const {
    return hn::Mul(hn::ConvertTo(F32(), code), factor);
  }
};
struct AffineValue {
  VF32 base, step;
  HWY_INLINE AffineValue(float b, float s) : base(hn::Set(F32(), b)), step(hn::Set(F32(), s)) {}
  HWY_INLINE VF32 operator()(VI32 code) const {
    return hn::Add(base, hn::Mul(hn::ConvertTo(F32(), code), step));
  }
};
template <int kSignBit>
struct PowerValue {
  VU32 least;
  VF32 factor;
  HWY_INLINE PowerValue(int exponent_min, float f)
      : least(hn::Set(U32(), static_cast<uint32_t>(exponent_min))), factor(hn::Set(F32(), f)) {}
  HWY_INLINE VF32 operator()(VI32 code) const {
    const U32 du;
    const VU32 bits = hn::BitCast(du, code);
    const VU32 level = hn::And(bits, hn::Set(du, (1u << kSignBit) - 1));
    const VU32 sign = hn::ShiftLeft<31>(hn::ShiftRight<kSignBit>(bits));
    const VU32 pattern = hn::Or(hn::ShiftLeft<23>(hn::Add(level, least)), sign);
    const auto is_zero = hn::Eq(level, hn::Zero(du));
    return hn::Mul(hn::BitCast(F32(), hn::IfThenZeroElse(is_zero, pattern)), factor);
  }
};

struct TableValue {
  const float* table;
  HWY_INLINE explicit TableValue(const float* t) : table(t) {}
  HWY_INLINE VF32 operator()(VI32 code) const { return hn::GatherIndex(F32(), table, code); }
};

void DecodeAddTable(const uint8_t* in, size_t size, const float* table, float* out) {
  DecodeAdd(in, size, TableValue(table), out);
}
void DecodeAddGrid8(const int8_t* in, size_t size, float factor, float* out) {
  DecodeAdd(in, size, GridValue(factor), out);
}
void DecodeAddGrid16(const int16_t* in, size_t size, float factor, float* out) {
  DecodeAdd(in, size, GridValue(factor), out);
}
void DecodeAddAffine(const uint8_t* in, size_t size, float base, float step, float* out) {
  DecodeAdd(in, size, AffineValue(base, step), out);
}
void DecodeAddPowers8(const uint8_t* in, size_t size, int exponent_min, float factor, float* out) {
  DecodeAdd(in, size, PowerValue<7>(exponent_min, factor), out);
}
void DecodeAddPowers16(const uint16_t* in, size_t size, int exponent_min, float factor,
                       float* out) {
  DecodeAdd(in, size, PowerValue<8>(exponent_min, factor), out);
}

// --- Octets of 16-bit codes ---

void JoinOctets(const uint8_t* low, const uint8_t* high, size_t size, uint16_t* out) {
  const hn::Rebind<uint16_t, F32> wide;
  const hn::Rebind<uint8_t, F32> narrow;
  size_t i = 0;
  for (; i + kRun <= size; i += hn::Lanes(wide)) {
    const auto upper = hn::ShiftLeft<8>(hn::PromoteTo(wide, hn::LoadU(narrow, high + i)));
    hn::StoreU(hn::Or(upper, hn::PromoteTo(wide, hn::LoadU(narrow, low + i))), wide, out + i);
  }
  for (; i < size; ++i) out[i] = static_cast<uint16_t>(high[i] << 8 | low[i]);
}

// --- Signs and momentum --------------------------------------------------------------------------

void SignsTimes(float magnitude, float* values, size_t size) {
  const F32 d;
  const VF32 m = hn::Set(d, magnitude);
  const size_t whole = size & ~(kRun - 1);
  const auto apply = [&](float* at) HWY_ATTR {
    const VF32 v = hn::LoadU(d, at);
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(v, hn::Zero(d)), hn::CopySign(m, v)), d, at);
  };
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) apply(values + i);
  float padded[kRun] = {};
  std::memcpy(padded, values + whole, (size - whole) * sizeof(float));
  for (size_t i = 0; i < kRun; i += hn::Lanes(d)) apply(padded + i);
  std::memcpy(values + whole, padded, (size - whole) * sizeof(float));
}

template <bool kResidual>
void MixRuns(const Block& block, const float* momentum, float decay, float weight, float* out) {
  const F32 d;
  const VF32 keep = hn::Set(d, decay), take = hn::Set(d, weight);
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    VF32 mixed = hn::Mul(LoadSum<kResidual>(block, i), take);
    if (momentum != nullptr) mixed = hn::Add(hn::Mul(hn::LoadU(d, momentum + i), keep), mixed);
    hn::StoreU(mixed, d, out + i);
  }
}

void MixMomentum(const Block& block, const float* momentum, float decay, float weight, float* out) {
  const auto run = block.residual != nullptr ? MixRuns<true> : MixRuns<false>;
  const Block whole = WholeRuns(block);
  run(whole, momentum, decay, weight, out);
  if (whole.size == block.size) return;
  const PaddedTail tail(block, whole.size);
  float moved[kRun] = {}, mixed[kRun];
  if (momentum != nullptr) {
    std::memcpy(moved, momentum + whole.size, tail.size * sizeof(float));
  }
  run(tail.block, momentum != nullptr ? moved : nullptr, decay, weight, mixed);
  std::memcpy(out + whole.size, mixed, tail.size * sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(EncodeGrid8);
HWY_EXPORT(EncodeGrid16);
HWY_EXPORT(EncodeAffine);
HWY_EXPORT(EncodeVotes);
HWY_EXPORT(EncodePowers8);
HWY_EXPORT(EncodeExponents);
HWY_EXPORT(SignBits);
HWY_EXPORT(DecodeAddGrid8);
HWY_EXPORT(DecodeAddGrid16);
HWY_EXPORT(DecodeAddAffine);
HWY_EXPORT(DecodeAddPowers8);
HWY_EXPORT(DecodeAddPowers16);
HWY_EXPORT(EncodeTree);
HWY_EXPORT(DecodeAddTable);
HWY_EXPORT(JoinOctets);
HWY_EXPORT(SignsTimes);
HWY_EXPORT(MixMomentum);

void EncodeGrid(const Block& block, const Grid& grid, uint32_t counter, int8_t* out, float* rest,
                Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeGrid8)(block, grid, counter, out, rest, sums);
}
void EncodeGrid(const Block& block, const Grid& grid, uint32_t counter, int16_t* out, float* rest,
                Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeGrid16)(block, grid, counter, out, rest, sums);
}
void EncodeAffine(const Block& block, const AffineGrid& grid, uint8_t* out, float* rest,
                  Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeAffine)(block, grid, out, rest, sums);
}
void EncodeVotes(const Block& block, const Voters& votes, uint8_t* out, float* rest,
                 Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeVotes)(block, votes, out, rest, sums);
}
void EncodePowers(const Block& block, const PowersOfTwo& powers, uint32_t counter, uint8_t* out,
                  float* rest, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodePowers8)(block, powers, counter, out, rest, sums);
}
void EncodeExponents(const Block& block, const PowersOfTwo& powers, uint32_t counter, uint8_t* out,
                     float* rest, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeExponents)(block, powers, counter, out, rest, sums);
}
void SignBits(const Block& block, uint8_t* bits) noexcept {
  HWY_DYNAMIC_DISPATCH(SignBits)(block, bits);
}
void DecodeAddGrid(const int8_t* in, size_t size, float factor, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeAddGrid8)(in, size, factor, out);
}
void DecodeAddGrid(const int16_t* in, size_t size, float factor, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeAddGrid16)(in, size, factor, out);
}
void DecodeAddAffine(const uint8_t* in, size_t size, float base, float step, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeAddAffine)(in, size, base, step, out);
}
void DecodeAddPowers(const uint8_t* in, size_t size, int exponent_min, float factor,
                     float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeAddPowers8)(in, size, exponent_min, factor, out);
}
void DecodeAddPowers(const uint16_t* in, size_t size, int exponent_min, float factor,
                     float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeAddPowers16)(in, size, exponent_min, factor, out);
}
void EncodeTree(const Block& block, const DynamicTree& tree, uint8_t* out, float* rest,
                Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(EncodeTree)(block, tree, out, rest, sums);
}
void DecodeAddTable(const uint8_t* in, size_t size, const float* table, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeAddTable)(in, size, table, out);
}
void JoinOctets(const uint8_t* low, const uint8_t* high, size_t size, uint16_t* out) noexcept {
  HWY_DYNAMIC_DISPATCH(JoinOctets)(low, high, size, out);
}
void SignsTimes(float magnitude, float* values, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(SignsTimes)(magnitude, values, size);
}
void MixMomentum(const Block& block, const float* momentum, float decay, float weight,
                 float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(MixMomentum)(block, momentum, decay, weight, out);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
