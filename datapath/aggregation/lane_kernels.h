// SPDX-License-Identifier: Apache-2.0
#pragma once
// The loops over lanes that run for every packet, on the widest vectors of the CPU.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir::aggregation {

/// Lanes are octets of a datagram without alignment: `in` and `out` have count * 4 octets. Input
/// and output are the same memory or do not overlap. All functions are thread-safe, O(count), and
/// give the same results on every instruction set.

/// state[i] += lane i modulo 2^32. Returns true when some sum overflows as a signed number.
bool AddLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept;

/// Writes the same sums to the lanes of `out`, in the byte order of `in`, and returns the same.
bool AddLanesTo(const std::byte* in, bool little_endian, const uint32_t* state, std::byte* out,
                size_t count) noexcept;

/// state[i] = max(state[i], lane i), as unsigned numbers.
void RaiseLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept;

/// Copies lanes and reverses the octets of each, between network and host order.
void SwapLanes(const std::byte* in, std::byte* out, size_t count) noexcept;

/// state[i] += levels[index i]. Indices have four bits; that of an even lane is in the high half of
/// its octet. in: count / 2 octets, count even; levels: 16.
void AddLevels(const std::byte* in, const uint8_t* levels, uint32_t* state, size_t count) noexcept;

/// The greatest bit pattern of the numbers without their signs. Bit patterns of magnitudes order as
/// the magnitudes do, with infinity and NaN above all others.
uint32_t GreatestMagnitude(const float* in, size_t count) noexcept;

/// The parameters of RoundLanes.
struct LaneGrid {
  double scale = 1;
  double limit = 0;  // at most 2^31 - 1
};

/// out[i] = in[i] * scale, exact in double, clamped to -limit .. limit and rounded half to even, as
/// int32. No number in `in` may be NaN.
void RoundLanes(const float* in, const LaneGrid& grid, uint32_t* out, size_t count) noexcept;

/// out[i] = in[i], as int32, times step, rounded once to float32.
void ScaleLanes(const uint32_t* in, double step, float* out, size_t count) noexcept;

/// out[i] = the low octet of in[i]. out: count octets.
void NarrowLanes(const uint32_t* in, std::byte* out, size_t count) noexcept;

/// Lanes of 1 or 2 octets in the byte order of memory, each a level minus `half`.
struct LevelLanes {
  const std::byte* in = nullptr;
  size_t count = 0;
  size_t lane_bytes = 1;            // 1 or 2
  const uint8_t* levels = nullptr;  // 16, each of which minus `half` fits a lane
  int half = 0;
};

/// Returns whether each lane is one of the levels.
bool AreLevels(const LevelLanes& lanes) noexcept;

/// The inverse of what AddLevels reads: writes for each lane the index of the first level that
/// matches, or 15 where none does. out: (count + 1) / 2 octets; a missing odd lane has index 0.
void PackLevels(const LevelLanes& lanes, std::byte* out) noexcept;

}  // namespace weir::aggregation
