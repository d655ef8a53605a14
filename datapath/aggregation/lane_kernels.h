#pragma once
// The loops over lanes that every packet passes through, on the widest vectors that the CPU has.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir::aggregation {

/// Lanes are octets of a datagram, which no type aligns: `in` and `out` have count * 4 octets and
/// do not overlap. All thread-safe, O(count), the same results on every instruction set.

/// state[i] += lane i modulo 2^32. True when some sum, as numbers with sign, did not fit.
bool AddLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept;

/// state[i] = the greater of itself and lane i, as numbers without sign.
void RaiseLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept;

/// Copies lanes and turns each one's octets round: between network and host order.
void SwapLanes(const std::byte* in, std::byte* out, size_t count) noexcept;

/// state[i] += levels[index i]: indices of four bits, the even lane's in the high half of an octet.
/// in: count / 2 octets, count even; levels: 16.
void AddLevels(const std::byte* in, const uint8_t* levels, uint32_t* state, size_t count) noexcept;

/// Lanes of 1 or 2 octets in memory's order, each a level minus `half`.
struct LevelLanes {
  const std::byte* in = nullptr;
  size_t count = 0;
  size_t lane_bytes = 1;            // 1 or 2
  const uint8_t* levels = nullptr;  // 16, each of which minus `half` fits a lane
  int half = 0;
};

/// Whether each lane is one of the levels.
bool AreLevels(const LevelLanes& lanes) noexcept;

/// The inverse of what AddLevels reads: each lane's index among the levels, the first one that
/// matches, 15 where none does. out: (count + 1) / 2 octets; a missing odd lane has index 0.
void PackLevels(const LevelLanes& lanes, std::byte* out) noexcept;

}  // namespace weir::aggregation
