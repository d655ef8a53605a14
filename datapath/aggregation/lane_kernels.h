#pragma once
// The loops over lanes that every packet passes through, on the widest vectors that the CPU has.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir::aggregation {

/// Lanes are octets of a datagram, which no type aligns: `in` and `out` have count * 4 octets. What
/// is read and what is written is one place or two that do not overlap. All thread-safe, O(count),
/// the same results on every instruction set.

/// state[i] += lane i modulo 2^32. True when some sum, as numbers with sign, did not fit.
bool AddLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept;

/// The same sums and verdict, to the lanes of `out`, in the order of `in`.
bool AddLanesTo(const std::byte* in, bool little_endian, const uint32_t* state, std::byte* out,
                size_t count) noexcept;

/// state[i] = the greater of itself and lane i, as numbers without sign.
void RaiseLanes(const std::byte* in, bool little_endian, uint32_t* state, size_t count) noexcept;

/// Copies lanes and turns each one's octets round: between network and host order.
void SwapLanes(const std::byte* in, std::byte* out, size_t count) noexcept;

/// state[i] += levels[index i]: indices of four bits, the even lane's in the high half of an octet.
/// in: count / 2 octets, count even; levels: 16.
void AddLevels(const std::byte* in, const uint8_t* levels, uint32_t* state, size_t count) noexcept;

/// The greatest of what is left of each number's bits without its sign: of magnitudes, which order
/// as their bits do, infinity and NaN above all others.
uint32_t GreatestMagnitude(const float* in, size_t count) noexcept;

/// Factors of RoundLanes.
struct LaneGrid {
  double scale = 1;
  double limit = 0;  // at most 2^31 - 1
};

/// out[i] = in[i] * scale, exact in double, clamped to -limit .. limit and rounded, halves to even;
/// as int32. No number is NaN.
void RoundLanes(const float* in, const LaneGrid& grid, uint32_t* out, size_t count) noexcept;

/// out[i] = in[i], as int32, times step, rounded once to float32.
void ScaleLanes(const uint32_t* in, double step, float* out, size_t count) noexcept;

/// out[i] = the low octet of in[i]. out: count octets.
void NarrowLanes(const uint32_t* in, std::byte* out, size_t count) noexcept;

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
