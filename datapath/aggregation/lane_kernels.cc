// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/lane_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/aggregation/lane_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::aggregation {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename Lane>
HWY_INLINE Lane LaneAt(const std::byte* in, size_t i) {
  Lane lane;
  std::memcpy(&lane, in + i * sizeof lane, sizeof lane);
  return lane;
}

/// Returns the index of the first matching level, or 16 if there is none.
template <typename Lane>
HWY_INLINE int LevelIndex(const LevelLanes& lanes, size_t i) {
  const int level = LaneAt<Lane>(lanes.in, i) + lanes.half;
  int k = 0;
  while (k < 16 && lanes.levels[k] != level) ++k;
  return k;
}

template <typename Lane>
HWY_INLINE bool AreLevelsFrom(const LevelLanes& lanes, size_t i) {
  for (; i < lanes.count; ++i) {
    if (LevelIndex<Lane>(lanes, i) == 16) return false;
  }
  return true;
}

/// i: even.
template <typename Lane>
HWY_INLINE void PackLevelsFrom(const LevelLanes& lanes, size_t i, std::byte* out) {
  for (; i < lanes.count; i += 2) {
    const int even = std::min(LevelIndex<Lane>(lanes, i), 15);
    const int odd = i + 1 < lanes.count ? std::min(LevelIndex<Lane>(lanes, i + 1), 15) : 0;
    out[i / 2] = static_cast<std::byte>(even << 4 | odd);
  }
}

HWY_INLINE uint32_t MagnitudeBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7FFFFFFF;
}

// A double of this size has no bits below the unit, so adding it rounds as the hardware rounds.
constexpr double kUnit = 6755399441055744.0;  // 1.5 * 2^52

HWY_INLINE uint32_t RoundLane(float x, const LaneGrid& grid) {
  const double scaled = std::clamp(x * grid.scale, -grid.limit, grid.limit);
  return static_cast<uint32_t>(static_cast<int32_t>((scaled + kUnit) - kUnit));
}

HWY_INLINE float ScaleLane(uint32_t lane, double step) {
  return static_cast<float>(static_cast<int32_t>(lane) * step);
}

HWY_INLINE uint32_t HostLane(const std::byte* in, size_t i, bool little_endian) {
  uint32_t lane;
  std::memcpy(&lane, in + i * 4, sizeof lane);
  return little_endian ? lane : __builtin_bswap32(lane);
}

HWY_INLINE bool AddToFrom(const std::byte* in, bool little_endian, const uint32_t* state,
                          std::byte* out, size_t i, size_t count) {
  uint32_t wrapped = 0;
  for (; i < count; ++i) {
    const uint32_t addend = HostLane(in, i, little_endian);
    const uint32_t sum = state[i] + addend;
    wrapped |= (state[i] ^ sum) & (addend ^ sum);
    const uint32_t lane = little_endian ? sum : __builtin_bswap32(sum);
    std::memcpy(out + i * 4, &lane, sizeof lane);
  }
  return wrapped >> 31 != 0;
}

#if HWY_TARGET == HWY_SCALAR
uint32_t GreatestAll(const float* in, size_t count) {
  uint32_t greatest = 0;
  for (size_t i = 0; i < count; ++i) greatest = std::max(greatest, MagnitudeBits(in[i]));
  return greatest;
}

void RoundAll(const float* in, const LaneGrid& grid, uint32_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = RoundLane(in[i], grid);
}

void ScaleAll(const uint32_t* in, double step, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = ScaleLane(in[i], step);
}

void NarrowAll(const uint32_t* in, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(in[i]);
}

bool AddAll(const std::byte* in, bool little_endian, uint32_t* state, size_t count) {
  uint32_t wrapped = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t addend = HostLane(in, i, little_endian);
    const uint32_t sum = state[i] + addend;
    wrapped |= (state[i] ^ sum) & (addend ^ sum);
    state[i] = sum;
  }
  return wrapped >> 31 != 0;
}

bool AddToAll(const std::byte* in, bool little_endian, const uint32_t* state, std::byte* out,
              size_t count) {
  return AddToFrom(in, little_endian, state, out, 0, count);
}

void MaxAll(const std::byte* in, bool little_endian, uint32_t* state, size_t count) {
  for (size_t i = 0; i < count; ++i) state[i] = std::max(state[i], HostLane(in, i, little_endian));
}

void SwapAll(const std::byte* in, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t lane = HostLane(in, i, false);
    std::memcpy(out + i * 4, &lane, sizeof lane);
  }
}

void AddLevelsAll(const std::byte* in, const uint8_t* levels, uint32_t* state, size_t count) {
  for (size_t i = 0; i + 2 <= count; i += 2) {
    const auto pair = static_cast<uint8_t>(in[i / 2]);
    state[i] += levels[pair >> 4];
    state[i + 1] += levels[pair & 15];
  }
}

template <typename Lane>
bool AreLevelsAll(const LevelLanes& lanes) {
  return AreLevelsFrom<Lane>(lanes, 0);
}

template <typename Lane>
void PackLevelsAll(const LevelLanes& lanes, std::byte* out) {
  PackLevelsFrom<Lane>(lanes, 0, out);
}
#else
uint32_t GreatestAll(const float* in, size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto magnitude = hn::Set(du, 0x7FFFFFFFu);
  auto greatest = hn::Zero(du);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto bits = hn::And(hn::BitCast(du, hn::LoadU(d, in + i)), magnitude);
    greatest = hn::Max(greatest, bits);
  }
  uint32_t all = hn::GetLane(hn::MaxOfLanes(du, greatest));
  for (; i < count; ++i) all = std::max(all, MagnitudeBits(in[i]));
  return all;
}

void RoundAll(const float* in, const LaneGrid& grid, uint32_t* out, size_t count) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const hn::Rebind<int32_t, decltype(d)> lanes;
  const auto scale = hn::Set(d, grid.scale), unit = hn::Set(d, kUnit);
  const auto most = hn::Set(d, grid.limit), least = hn::Set(d, -grid.limit);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto scaled = hn::Mul(hn::PromoteTo(d, hn::LoadU(narrow, in + i)), scale);
    const auto within = hn::Min(hn::Max(scaled, least), most);
    const auto rounded = hn::Sub(hn::Add(within, unit), unit);
    hn::StoreU(hn::DemoteTo(lanes, rounded), lanes, reinterpret_cast<int32_t*>(out + i));
  }
  for (; i < count; ++i) out[i] = RoundLane(in[i], grid);
}

void ScaleAll(const uint32_t* in, double step, float* out, size_t count) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const hn::Rebind<int32_t, decltype(d)> lanes;
  const auto factor = hn::Set(d, step);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto lane = hn::LoadU(lanes, reinterpret_cast<const int32_t*>(in + i));
    const auto scaled = hn::Mul(hn::PromoteTo(d, lane), factor);
    hn::StoreU(hn::DemoteTo(narrow, scaled), narrow, out + i);
  }
  for (; i < count; ++i) out[i] = ScaleLane(in[i], step);
}

void NarrowAll(const uint32_t* in, std::byte* out, size_t count) {
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint8_t, decltype(d)> octet;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(hn::TruncateTo(octet, hn::LoadU(d, in + i)), octet,
               reinterpret_cast<uint8_t*>(out + i));
  }
  for (; i < count; ++i) out[i] = static_cast<std::byte>(in[i]);
}

using U32 = hn::ScalableTag<uint32_t>;
using U8 = hn::Repartition<uint8_t, U32>;
using VU32 = hn::Vec<U32>;

HWY_INLINE hn::Vec<U8> SwapOrder() {
  alignas(16) static constexpr uint8_t kOrder[16] = {3,  2,  1, 0, 7,  6,  5,  4,
                                                     11, 10, 9, 8, 15, 14, 13, 12};
  return hn::LoadDup128(U8(), kOrder);
}

template <bool kSwap>
HWY_INLINE VU32 HostLanes(const std::byte* in, hn::Vec<U8> order) {
  const auto octets = hn::LoadU(U8(), reinterpret_cast<const uint8_t*>(in));
  if constexpr (kSwap) return hn::BitCast(U32(), hn::TableLookupBytes(octets, order));
  return hn::BitCast(U32(), octets);
}

/// Calls step(lanes of the packet, lanes of the state), which returns the new state, for all
/// vectors. The last few lanes go through padded copies.
template <bool kSwap, typename Step>
HWY_INLINE void EachVector(const std::byte* in, uint32_t* state, size_t count, Step step) {
  const U32 d;
  const size_t width = hn::Lanes(d);
  const auto order = SwapOrder();
  size_t i = 0;
  for (; i + width <= count; i += width) {
    hn::StoreU(step(HostLanes<kSwap>(in + i * 4, order), hn::LoadU(d, state + i)), d, state + i);
  }
  if (i == count) return;
  alignas(64) std::byte octets[hn::MaxLanes(U8())] = {};
  alignas(64) uint32_t rest[hn::MaxLanes(U32())] = {};
  std::memcpy(octets, in + i * 4, (count - i) * 4);
  std::memcpy(rest, state + i, (count - i) * 4);
  hn::Store(step(HostLanes<kSwap>(octets, order), hn::Load(d, rest)), d, rest);
  std::memcpy(state + i, rest, (count - i) * 4);
}

// The sign bit is set where the operands have the same sign and the sum has the other one.
HWY_INLINE VU32 Wrapped(VU32 a, VU32 b, VU32 sum) {
  return hn::And(hn::Xor(a, sum), hn::Xor(b, sum));
}

HWY_INLINE bool AnySignBit(VU32 lanes) {
  const hn::RebindToSigned<U32> ds;
  return !hn::AllFalse(ds, hn::Lt(hn::BitCast(ds, lanes), hn::Zero(ds)));
}

template <bool kSwap>
HWY_INLINE bool AddVectors(const std::byte* in, uint32_t* state, size_t count) {
  const U32 d;
  VU32 wrapped = hn::Zero(d);
  EachVector<kSwap>(in, state, count, [&wrapped](VU32 addend, VU32 before) HWY_ATTR {
    const VU32 sum = hn::Add(addend, before);
    wrapped = hn::Or(wrapped, Wrapped(addend, before, sum));
    return sum;
  });
  return AnySignBit(wrapped);
}

template <bool kSwap>
HWY_INLINE bool AddVectorsTo(const std::byte* in, const uint32_t* state, std::byte* out,
                             size_t count) {
  const U32 d;
  const size_t width = hn::Lanes(d);
  const auto order = SwapOrder();
  VU32 wrapped = hn::Zero(d);
  size_t i = 0;
  for (; i + width <= count; i += width) {
    const VU32 addend = HostLanes<kSwap>(in + i * 4, order), before = hn::LoadU(d, state + i);
    const VU32 sum = hn::Add(addend, before);
    wrapped = hn::Or(wrapped, Wrapped(addend, before, sum));
    auto octets = hn::BitCast(U8(), sum);
    if constexpr (kSwap) octets = hn::TableLookupBytes(octets, order);
    hn::StoreU(octets, U8(), reinterpret_cast<uint8_t*>(out + i * 4));
  }
  const bool rest = AddToFrom(in, !kSwap, state, out, i, count);
  return AnySignBit(wrapped) || rest;
}

template <bool kSwap>
HWY_INLINE void MaxVectors(const std::byte* in, uint32_t* state, size_t count) {
  EachVector<kSwap>(in, state, count,
                    [](VU32 lane, VU32 before) HWY_ATTR { return hn::Max(lane, before); });
}

bool AddAll(const std::byte* in, bool little_endian, uint32_t* state, size_t count) {
  return little_endian ? AddVectors<false>(in, state, count) : AddVectors<true>(in, state, count);
}

bool AddToAll(const std::byte* in, bool little_endian, const uint32_t* state, std::byte* out,
              size_t count) {
  return little_endian ? AddVectorsTo<false>(in, state, out, count)
                       : AddVectorsTo<true>(in, state, out, count);
}

void MaxAll(const std::byte* in, bool little_endian, uint32_t* state, size_t count) {
  little_endian ? MaxVectors<false>(in, state, count) : MaxVectors<true>(in, state, count);
}

void AddLevelsAll(const std::byte* in, const uint8_t* levels, uint32_t* state, size_t count) {
  const hn::CappedTag<uint8_t, 16> d8;  // as many as there are levels
  const hn::CappedTag<uint32_t, 16> d32;
  const hn::Rebind<uint8_t, decltype(d32)> narrow;
  const auto table = hn::LoadU(d8, levels);
  const auto low = hn::Set(d8, uint8_t{15});
  size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const auto pairs = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(in + i / 2));
    const auto even = hn::TableLookupBytes(table, hn::ShiftRight<4>(pairs));
    const auto odd = hn::TableLookupBytes(table, hn::And(pairs, low));
    alignas(64) uint8_t values[32];
    hn::Store(hn::InterleaveLower(d8, even, odd), d8, values);
    hn::Store(hn::InterleaveUpper(d8, even, odd), d8, values + 16);
    for (size_t k = 0; k < 32; k += hn::Lanes(d32)) {
      const auto addend = hn::PromoteTo(d32, hn::LoadU(narrow, values + k));
      hn::StoreU(hn::Add(hn::LoadU(d32, state + i + k), addend), d32, state + i + k);
    }
  }
  for (; i + 2 <= count; i += 2) {
    const auto pair = static_cast<uint8_t>(in[i / 2]);
    state[i] += levels[pair >> 4];
    state[i + 1] += levels[pair & 15];
  }
}

template <typename Lane>
HWY_INLINE Lane LaneOf(const LevelLanes& lanes, int k) {
  return static_cast<Lane>(lanes.levels[k] - lanes.half);
}

template <typename Lane>
bool AreLevelsAll(const LevelLanes& lanes) {
  const hn::ScalableTag<Lane> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= lanes.count; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, reinterpret_cast<const Lane*>(lanes.in) + i);
    auto found = hn::Eq(v, hn::Set(d, LaneOf<Lane>(lanes, 0)));
    for (int k = 1; k < 16; ++k) {
      found = hn::Or(found, hn::Eq(v, hn::Set(d, LaneOf<Lane>(lanes, k))));
    }
    if (!hn::AllTrue(d, found)) return false;
  }
  return AreLevelsFrom<Lane>(lanes, i);
}

template <typename Lane>
void PackLevelsAll(const LevelLanes& lanes, std::byte* out) {
  const hn::ScalableTag<Lane> d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<decltype(d)> > pair;
  const hn::Rebind<uint8_t, decltype(pair)> octet;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= lanes.count; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, reinterpret_cast<const Lane*>(lanes.in) + i);
    auto index = hn::Set(d, Lane{15});
    for (int k = 14; k >= 0; --k) {  // downwards, so that the first match wins
      index = hn::IfThenElse(hn::Eq(v, hn::Set(d, LaneOf<Lane>(lanes, k))),
                             hn::Set(d, static_cast<Lane>(k)), index);
    }
    // In memory, the even lane is the lower half of a pair.
    const auto both = hn::BitCast(pair, index);
    const auto packed = hn::Or(hn::ShiftLeft<4>(both), hn::ShiftRight<sizeof(Lane) * 8>(both));
    hn::StoreU(hn::TruncateTo(octet, packed), octet, reinterpret_cast<uint8_t*>(out + i / 2));
  }
  PackLevelsFrom<Lane>(lanes, i, out);
}

void SwapAll(const std::byte* in, std::byte* out, size_t count) {
  const size_t width = hn::Lanes(U32());
  const auto order = SwapOrder();
  size_t i = 0;
  for (; i + width <= count; i += width) {
    const auto lanes = hn::BitCast(U8(), HostLanes<true>(in + i * 4, order));
    hn::StoreU(lanes, U8(), reinterpret_cast<uint8_t*>(out + i * 4));
  }
  for (; i < count; ++i) {
    uint32_t lane;
    std::memcpy(&lane, in + i * 4, sizeof lane);
    lane = __builtin_bswap32(lane);
    std::memcpy(out + i * 4, &lane, sizeof lane);
  }
}
#endif

bool AreLevels8Or16(const LevelLanes& lanes) {
  return lanes.lane_bytes == 1 ? AreLevelsAll<int8_t>(lanes) : AreLevelsAll<int16_t>(lanes);
}

void PackLevels8Or16(const LevelLanes& lanes, std::byte* out) {
  lanes.lane_bytes == 1 ? PackLevelsAll<int8_t>(lanes, out) : PackLevelsAll<int16_t>(lanes, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::aggregation
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::aggregation {

HWY_EXPORT(GreatestAll);
HWY_EXPORT(RoundAll);
HWY_EXPORT(ScaleAll);
HWY_EXPORT(NarrowAll);
HWY_EXPORT(AddAll);
HWY_EXPORT(AddToAll);
HWY_EXPORT(MaxAll);
HWY_EXPORT(SwapAll);
HWY_EXPORT(AddLevelsAll);
HWY_EXPORT(AreLevels8Or16);
HWY_EXPORT(PackLevels8Or16);

uint32_t GreatestMagnitude(const float* in, size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(GreatestAll)(in, count);
}
void RoundLanes(const float* in, const LaneGrid& grid, uint32_t* out, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(RoundAll)(in, grid, out, count);
}
void ScaleLanes(const uint32_t* in, double step, float* out, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(ScaleAll)(in, step, out, count);
}
void NarrowLanes(const uint32_t* in, std::byte* out, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(NarrowAll)(in, out, count);
}
bool AddLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(AddAll)(in, little_endian, state, count);
}
bool AddLanesTo(const std::byte* in, bool little_endian, const uint32_t* state, std::byte* out,
                size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(AddToAll)(in, little_endian, state, out, count);
}
void RaiseLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(MaxAll)(in, little_endian, state, count);
}
void SwapLanes(const std::byte* in, std::byte* out, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(SwapAll)(in, out, count);
}
void AddLevels(const std::byte* in, const uint8_t* levels, uint32_t* state, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(AddLevelsAll)(in, levels, state, count);
}
bool AreLevels(const LevelLanes& lanes) noexcept {
  return HWY_DYNAMIC_DISPATCH(AreLevels8Or16)(lanes);
}
void PackLevels(const LevelLanes& lanes, std::byte* out) noexcept {
  HWY_DYNAMIC_DISPATCH(PackLevels8Or16)(lanes, out);
}

}  // namespace weir::aggregation
#endif
