// SPDX-License-Identifier: Apache-2.0
// Kernels that pack codes into bits and unpack them, add lanes of a few bits, and compute the sums
// from which the scale of a bucket follows.

#include "datapath/codec/kernels/quantise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/pack.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

// --- Packing -------------------------------------------------------------------------------------
// Eight codes are the octets of a 64-bit word. Three steps join pairs of 8-, 16- and 32-bit fields:
// each moves the upper field of a pair down to the end of the lower. Unpacking reverses the steps.

using U64 = hn::CappedTag<uint64_t, 8>;
using VU64 = hn::Vec<U64>;

constexpr size_t kWordsMax = kBlockElements / 8;
constexpr uint64_t kLowFields[] = {0x00FF00FF00FF00FFull, 0x0000FFFF0000FFFFull,
                                   0x00000000FFFFFFFFull};

HWY_INLINE uint64_t LowBits(int count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

HWY_INLINE VU64 Join(VU64 words, uint64_t low_fields, int gap) {
  const VU64 mask = hn::Set(U64(), low_fields);
  return hn::Or(hn::And(words, mask), hn::ShiftRightSame(hn::AndNot(mask, words), gap));
}
HWY_INLINE VU64 Part(VU64 words, uint64_t low_fields, int gap) {
  const VU64 low = hn::And(words, hn::Set(U64(), low_fields));
  return hn::Or(low, hn::ShiftLeftSame(hn::Xor(words, low), gap));
}

#if HWY_TARGET != HWY_SCALAR
/// A vector of codes becomes one mask.
void PackSingleBits(const uint8_t* codes, size_t size, uint8_t* out) {
  const hn::CappedTag<uint8_t, 64> d;
  const auto one = hn::Set(d, uint8_t{1});
  size_t i = 0;
  for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d)) {
    hn::StoreMaskBits(d, hn::TestBit(hn::LoadU(d, codes + i), one), out + i / 8);
  }
  if (i == size) return;
  uint8_t padded[64] = {}, last[8];
  std::memcpy(padded, codes + i, size - i);
  hn::StoreMaskBits(d, hn::TestBit(hn::LoadU(d, padded), one), last);
  std::memcpy(out + i / 8, last, (size - i + 7) / 8);
}
#endif

void PackBits(const uint8_t* codes, size_t size, int bits, uint8_t* out) {
  if (bits == 8) {
    std::memcpy(out, codes, size);
    return;
  }
#if HWY_TARGET != HWY_SCALAR
  if (bits == 1) return PackSingleBits(codes, size, out);
#endif
  HWY_ALIGN uint64_t words[kWordsMax];
  const size_t count = (size + 7) / 8;
  const size_t padded = (count + hn::Lanes(U64()) - 1) / hn::Lanes(U64()) * hn::Lanes(U64());
  std::memset(words + size / 8, 0, (padded - size / 8) * sizeof(uint64_t));
  std::memcpy(words, codes, size);
  const VU64 keep = hn::Set(U64(), LowBits(bits) * 0x0101010101010101ull);
  const int gap = 8 - bits;
  for (size_t i = 0; i < count; i += hn::Lanes(U64())) {
    VU64 v = hn::And(hn::Load(U64(), words + i), keep);
    v = Join(v, kLowFields[0], gap);
    v = Join(v, kLowFields[1], 2 * gap);
    v = Join(v, kLowFields[2], 4 * gap);
    hn::Store(v, U64(), words + i);
  }
  // Each store also writes zeros after its octets, which the next store replaces.
  uint8_t packed[kBlockElements + 8];
  for (size_t i = 0; i < count; ++i) std::memcpy(packed + i * bits, words + i, 8);
  std::memcpy(out, packed, (size * bits + 7) / 8);
}

void UnpackWords(const uint8_t* in, size_t size, int bits, uint64_t flip, uint8_t* codes) {
  uint8_t packed[kBlockElements + 8];
  HWY_ALIGN uint64_t words[kWordsMax];
  const size_t bytes = (size * bits + 7) / 8, count = (size + 7) / 8;
  std::memcpy(packed, in, bytes);
  std::memset(packed + bytes, 0, 8);
  const size_t padded = (count + hn::Lanes(U64()) - 1) / hn::Lanes(U64()) * hn::Lanes(U64());
  for (size_t i = 0; i < count; ++i) std::memcpy(words + i, packed + i * bits, 8);
  std::fill(words + count, words + padded, 0);
  const VU64 keep = hn::Set(U64(), LowBits(8 * bits));
  const int gap = 8 - bits;
#if HWY_TARGET != HWY_SCALAR
  const hn::Repartition<int8_t, U64> octets;
  const auto sign = hn::BitCast(octets, hn::Set(U64(), flip));
#endif
  for (size_t i = 0; i < count; i += hn::Lanes(U64())) {
    VU64 v = hn::And(hn::Load(U64(), words + i), keep);
    v = Part(v, LowBits(4 * bits), 4 * gap);
    v = Part(v, LowBits(2 * bits) * 0x0000000100000001ull, 2 * gap);
    v = Part(v, LowBits(bits) * 0x0001000100010001ull, gap);
#if HWY_TARGET != HWY_SCALAR
    // x ^ m - m with the sign bit m extends the sign, and changes nothing for m = 0.
    const auto extended = hn::Sub(hn::Xor(hn::BitCast(octets, v), sign), sign);
    hn::Store(hn::BitCast(U64(), extended), U64(), words + i);
#else
    hn::Store(v, U64(), words + i);
#endif
  }
  std::memcpy(codes, words, size);
#if HWY_TARGET == HWY_SCALAR
  const auto m = static_cast<uint8_t>(flip);
  for (size_t i = 0; i < size; ++i) codes[i] = static_cast<uint8_t>((codes[i] ^ m) - m);
#endif
}

void UnpackBits(const uint8_t* in, size_t size, int bits, uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, in, size);
    return;
  }
  UnpackWords(in, size, bits, 0, codes);
}
void UnpackSigned(const uint8_t* in, size_t size, int bits, int8_t* codes) {
  UnpackWords(in, size, bits, (1ull << (bits - 1)) * 0x0101010101010101ull,
              reinterpret_cast<uint8_t*>(codes));
}

// --- Lanes ---------------------------------------------------------------------------------------

void AccumulateLanes(uint8_t* sum, const uint8_t* addend, size_t bytes, int bits) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  if (bits == 16) {
#if HWY_TARGET != HWY_SCALAR
    const hn::Repartition<uint16_t, decltype(d)> wide;
    for (; i + lanes <= bytes; i += lanes) {
      const auto a = hn::BitCast(wide, hn::LoadU(d, sum + i));
      const auto b = hn::BitCast(wide, hn::LoadU(d, addend + i));
      hn::StoreU(hn::BitCast(d, hn::Add(a, b)), d, sum + i);
    }
#endif
    for (; i + 2 <= bytes; i += 2) {
      uint16_t a, b;
      std::memcpy(&a, sum + i, 2);
      std::memcpy(&b, addend + i, 2);
      a = static_cast<uint16_t>(a + b);
      std::memcpy(sum + i, &a, 2);
    }
    return;
  }
  // The top bits of lanes are added without their carries, which would change the neighbouring
  // lanes.
  const uint8_t tops = bits == 1 ? 0xFF : bits == 2 ? 0xAA : bits == 4 ? 0x88 : 0x80;
  const auto top = hn::Set(d, tops);
  for (; i + lanes <= bytes; i += lanes) {
    const auto a = hn::LoadU(d, sum + i), b = hn::LoadU(d, addend + i);
    const auto low = hn::Add(hn::AndNot(top, a), hn::AndNot(top, b));
    hn::StoreU(hn::Xor(low, hn::And(hn::Xor(a, b), top)), d, sum + i);
  }
  for (; i < bytes; ++i) {
    const unsigned a = sum[i], b = addend[i], keep = 0xFFu & ~tops;
    sum[i] = static_cast<uint8_t>(((a & keep) + (b & keep)) ^ ((a ^ b) & tops));
  }
}

// --- Sums of a bucket ----------------------------------------------------------------------------
// Element i is added to partial sum i mod kRun on every target, and the partial sums are added in
// order.

constexpr size_t kVectors = kRun / hn::MaxLanes(F32());
/// Keeps partial sums in single precision from overflowing. It is a power of two, so it is exact.
constexpr float kShrink = 0x1p-12f;

template <bool kResidual>
void SumHalvesRuns(const Block& block, double* positive, double* negative, size_t* negatives) {
  const F32 d;
  VF32 above[kVectors], below[kVectors];
  VI32 count = hn::Zero(I32());
  for (size_t v = 0; v < kVectors; ++v) above[v] = below[v] = hn::Zero(d);
  const VF32 shrink = hn::Set(d, kShrink), zero = hn::Zero(d);
  for (size_t i = 0; i < block.size; i += kRun) {
    for (size_t v = 0; v < kVectors; ++v) {
      const VF32 e = LoadSum<kResidual>(block, i + v * hn::Lanes(d));
      const VF32 small = hn::Mul(e, shrink);
      above[v] = hn::Add(above[v], hn::Max(small, zero));
      below[v] = hn::Add(below[v], hn::Min(small, zero));
      count = hn::Sub(count, hn::VecFromMask(I32(), hn::RebindMask(I32(), hn::Lt(e, zero))));
    }
  }
  HWY_ALIGN float partial[2][kRun];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(above[v], d, partial[0] + v * hn::Lanes(d));
    hn::Store(below[v], d, partial[1] + v * hn::Lanes(d));
  }
  for (size_t j = 0; j < kRun; ++j) {
    *positive += static_cast<double>(partial[0][j]) / kShrink;
    *negative += static_cast<double>(partial[1][j]) / kShrink;
  }
  *negatives += static_cast<size_t>(hn::GetLane(hn::SumOfLanes(I32(), count)));
}

Halves SumHalves(const Block& block) {
  Halves halves;
  const auto run = block.residual != nullptr ? SumHalvesRuns<true> : SumHalvesRuns<false>;
  const Block whole = WholeRuns(block);
  run(whole, &halves.positive, &halves.negative, &halves.negatives);
  if (whole.size < block.size) {
    const PaddedTail tail(block, whole.size);
    run(tail.block, &halves.positive, &halves.negative, &halves.negatives);
  }
  return halves;
}

/// Uses partial sums as SumHalvesRuns does. `others` counts the elements that are not negative.
template <bool kResidual>
void FindSignsRuns(const Block& block, uint8_t* bits, Halves* halves, size_t* others, Sums* sums) {
  const F32 d;
  VF32 above[kVectors], below[kVectors];
  for (size_t v = 0; v < kVectors; ++v) above[v] = below[v] = hn::Zero(d);
  const VF32 shrink = hn::Set(d, kShrink), zero = hn::Zero(d);
  VI32 count = hn::Zero(I32());
  InputSums input;
  for (size_t i = 0; i < block.size; i += kRun) {
    ReadAhead(block.gradient + i, kBlockElements);
    if constexpr (kResidual) ReadAhead(block.residual + i, kBlockElements);
    uint32_t word = 0;
    for (size_t v = 0; v < kVectors; ++v) {
      const VF32 e = LoadSum<kResidual>(block, i + v * hn::Lanes(d));
      input.Add(e);
      const VF32 small = hn::Mul(e, shrink);
      above[v] = hn::Add(above[v], hn::Max(small, zero));
      below[v] = hn::Add(below[v], hn::Min(small, zero));
      const auto set = hn::Ge(e, zero);
      count = hn::Sub(count, hn::VecFromMask(I32(), hn::RebindMask(I32(), set)));
      word |= BitsOf(set, v * hn::Lanes(d));
    }
    bits[i / 8] = static_cast<uint8_t>(word);
    bits[i / 8 + 1] = static_cast<uint8_t>(word >> 8);
  }
  HWY_ALIGN float partial[2][kRun];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(above[v], d, partial[0] + v * hn::Lanes(d));
    hn::Store(below[v], d, partial[1] + v * hn::Lanes(d));
  }
  for (size_t j = 0; j < kRun; ++j) {
    halves->positive += static_cast<double>(partial[0][j]) / kShrink;
    halves->negative += static_cast<double>(partial[1][j]) / kShrink;
  }
  *others += static_cast<size_t>(hn::GetLane(hn::SumOfLanes(I32(), count)));
  input.Store(sums);
}

Halves FindSigns(const Block& block, uint8_t* bits, Sums* sums) {
  const auto run = block.residual != nullptr ? FindSignsRuns<true> : FindSignsRuns<false>;
  const Block whole = WholeRuns(block);
  Halves halves;
  size_t others = 0;
  run(whole, bits, &halves, &others, sums);
  if (whole.size < block.size) {
    const PaddedTail tail(block, whole.size);
    uint8_t last[kRun / 8];
    run(tail.block, last, &halves, &others, sums);
    // The padding was counted as not negative.
    others -= kRun - tail.size;
    const uint32_t word = (last[0] | uint32_t{last[1]} << 8) & ((1u << tail.size) - 1);
    bits[whole.size / 8] = static_cast<uint8_t>(word);
    if (tail.size > 8) bits[whole.size / 8 + 1] = static_cast<uint8_t>(word >> 8);
  }
  halves.negatives = block.size - others;
  return halves;
}

template <bool kResidual>
void SubtractSignsRuns(const Block& block, const SignValues& values, float* rest) {
  const F32 d;
  const VF32 negative = hn::Set(d, values.negative), positive = hn::Set(d, values.positive);
  for (size_t i = 0; i < block.size; i += hn::Lanes(d)) {
    const VF32 e = LoadSum<kResidual>(block, i);
    const VF32 value = hn::IfThenElse(hn::Ge(e, hn::Zero(d)), positive, negative);
    hn::StoreU(hn::Sub(e, value), d, rest + i);
  }
}

void SubtractSigns(const Block& block, const SignValues& values, float* rest) {
  const auto run = block.residual != nullptr ? SubtractSignsRuns<true> : SubtractSignsRuns<false>;
  const Block whole = WholeRuns(block);
  run(whole, values, rest);
  if (whole.size == block.size) return;
  const PaddedTail tail(block, whole.size);
  float left[kRun];
  run(tail.block, values, left);
  std::memcpy(rest + whole.size, left, tail.size * sizeof(float));
}

template <bool kResidual>
double SumSquaresRuns(const Block& block) {
#if HWY_TARGET == HWY_SCALAR
  double partial[kRun] = {};
  for (size_t i = 0; i < block.size; ++i) {
    const double e = hn::GetLane(LoadSum<kResidual>(block, i));
    partial[i % kRun] += e * e;
  }
#else
  VF64 sums[2 * kVectors];
  for (VF64& sum : sums) sum = hn::Zero(F64());
  for (size_t i = 0; i < block.size; i += kRun) {
    for (size_t v = 0; v < kVectors; ++v) {
      const VF32 e = LoadSum<kResidual>(block, i + v * hn::Lanes(F32()));
      const VF64 low = hn::PromoteTo(F64(), hn::LowerHalf(F32Half(), e));
      const VF64 high = hn::PromoteTo(F64(), hn::UpperHalf(F32Half(), e));
      // The product of two floats is exact in double, so fused and separate operations give the
      // same.
      sums[2 * v] = hn::MulAdd(low, low, sums[2 * v]);
      sums[2 * v + 1] = hn::MulAdd(high, high, sums[2 * v + 1]);
    }
  }
  HWY_ALIGN double partial[kRun];
  for (size_t v = 0; v < 2 * kVectors; ++v) {
    hn::Store(sums[v], F64(), partial + v * hn::Lanes(F64()));
  }
#endif
  double total = 0;
  for (const double p : partial) total += p;
  return total;
}

double SumSquares(const Block& block) {
  const auto run = block.residual != nullptr ? SumSquaresRuns<true> : SumSquaresRuns<false>;
  const Block whole = WholeRuns(block);
  double total = run(whole);
  if (whole.size < block.size) total += run(PaddedTail(block, whole.size).block);
  return total;
}

template <bool kResidual>
Extremes FindExtremesRuns(const Block& block) {
  const F32 d;
  VF32 least = LoadSum<kResidual>(block, 0), largest = least;
  for (size_t i = hn::Lanes(d); i < block.size; i += hn::Lanes(d)) {
    const VF32 e = LoadSum<kResidual>(block, i);
    least = hn::Min(least, e);
    largest = hn::Max(largest, e);
  }
  return {hn::GetLane(hn::MinOfLanes(d, least)), hn::GetLane(hn::MaxOfLanes(d, largest))};
}

Extremes FindExtremes(const Block& block) {
  const auto at = [&](size_t i) {
    return block.residual != nullptr ? block.gradient[i] + block.residual[i] : block.gradient[i];
  };
  const Block whole = WholeRuns(block);
  Extremes found{at(block.size - 1), at(block.size - 1)};
  if (whole.size > 0) {
    found =
        block.residual != nullptr ? FindExtremesRuns<true>(whole) : FindExtremesRuns<false>(whole);
  }
  for (size_t i = whole.size; i < block.size; ++i) {
    found.least = std::min(found.least, at(i));
    found.largest = std::max(found.largest, at(i));
  }
  // Whether -0 or +0 is found depends on the order of visiting; adding 0 gives +0 for both.
  return {found.least + 0.0f, found.largest + 0.0f};
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>

namespace weir::kernels {

HWY_EXPORT(PackBits);
HWY_EXPORT(UnpackBits);
HWY_EXPORT(UnpackSigned);
HWY_EXPORT(AccumulateLanes);
HWY_EXPORT(SumHalves);
HWY_EXPORT(FindSigns);
HWY_EXPORT(SubtractSigns);
HWY_EXPORT(SumSquares);
HWY_EXPORT(FindExtremes);

void PackBits(const uint8_t* codes, size_t size, int bits, uint8_t* out) noexcept {
  HWY_DYNAMIC_DISPATCH(PackBits)(codes, size, bits, out);
}
void UnpackBits(const uint8_t* in, size_t size, int bits, uint8_t* codes) noexcept {
  HWY_DYNAMIC_DISPATCH(UnpackBits)(in, size, bits, codes);
}
void UnpackSigned(const uint8_t* in, size_t size, int bits, int8_t* codes) noexcept {
  HWY_DYNAMIC_DISPATCH(UnpackSigned)(in, size, bits, codes);
}
void AccumulateLanes(uint8_t* sum, const uint8_t* addend, size_t bytes, int bits) noexcept {
  HWY_DYNAMIC_DISPATCH(AccumulateLanes)(sum, addend, bytes, bits);
}
Halves SumHalves(const Block& block) noexcept { return HWY_DYNAMIC_DISPATCH(SumHalves)(block); }
Halves FindSigns(const Block& block, uint8_t* bits, Sums* sums) noexcept {
  return HWY_DYNAMIC_DISPATCH(FindSigns)(block, bits, sums);
}
void SubtractSigns(const Block& block, const SignValues& values, float* rest) noexcept {
  HWY_DYNAMIC_DISPATCH(SubtractSigns)(block, values, rest);
}

double EnergyBesideSigns(double energy, const Halves& halves, size_t size,
                         const SignValues& values) noexcept {
  const double negative = values.negative, positive = values.positive;
  const auto negatives = static_cast<double>(halves.negatives);
  const auto others = static_cast<double>(size - halves.negatives);
  const double left = energy + negative * (negative * negatives - 2 * halves.negative) +
                      positive * (positive * others - 2 * halves.positive);
  return std::max(0.0, left);
}

namespace {

/// Moves bit i of an octet to bit i * kGap.
template <size_t kGap>
void SpreadOctets(const uint8_t* bits, size_t size, uint8_t* lanes) {
  static constexpr auto kSpread = [] {
    std::array<uint64_t, 256> table{};
    for (size_t octet = 0; octet < 256; ++octet) {
      for (size_t i = 0; i < 8; ++i) table[octet] |= uint64_t{octet >> i & 1} << (i * kGap);
    }
    return table;
  }();
  const size_t whole = size / 8;
  for (size_t i = 0; i < whole; ++i) std::memcpy(lanes + i * kGap, &kSpread[bits[i]], kGap);
  if (size % 8 == 0) return;
  std::memcpy(lanes + whole * kGap, &kSpread[bits[whole]], (size % 8 * kGap + 7) / 8);
}

}  // namespace

void SpreadBits(const uint8_t* bits, size_t size, int lane_bits, uint8_t* lanes) noexcept {
  switch (lane_bits) {
    case 1:
      std::memcpy(lanes, bits, (size + 7) / 8);
      return;
    case 2:
      return SpreadOctets<2>(bits, size, lanes);
    case 4:
      return SpreadOctets<4>(bits, size, lanes);
    default:
      return SpreadOctets<8>(bits, size, lanes);
  }
}

double SumSquares(const Block& block) noexcept { return HWY_DYNAMIC_DISPATCH(SumSquares)(block); }
Extremes FindExtremes(const Block& block) noexcept {
  return HWY_DYNAMIC_DISPATCH(FindExtremes)(block);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
