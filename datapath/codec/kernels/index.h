#pragma once
// The kernels of index_coding: Rice codes whose quotients and plain bits stand apart.

#include <cstddef>
#include <cstdint>

namespace weir::kernels {

/// FindOnes writes up to so many entries more than it was asked for.
inline constexpr size_t kOnesSlack = 72;

/// Where the next `most` ones stand among the 8 * size bits at `bytes`, least significant first,
/// from *bit on, which all places count from (modulo 2^32). Returns how many there were; *bit is
/// then behind the last of them, or at the end where there were fewer. O(most + bits).
size_t FindOnes(const uint8_t* bytes, size_t size, size_t most, size_t* bit,
                uint32_t* ones) noexcept;

/// Positions of gaps: the zeros before ones[i], behind ones[i - 1], times 2^bits, plus plain[i];
/// bits <= 8, ones[-1] is readable and 2^32 - 1 at the start. The first gap begins at `next`;
/// returns where the one behind the last would. Positions are modulo 2^32, what is returned is not,
/// as long as no gap reaches 2^32. O(size).
uint64_t PlacePositions(const uint32_t* ones, const uint8_t* plain, size_t size, int bits,
                        uint64_t next, uint32_t* out) noexcept;

}  // namespace weir::kernels
