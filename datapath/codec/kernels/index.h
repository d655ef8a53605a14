// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of index_coding, for Rice codes whose quotients and plain bits are stored separately.

#include <cstddef>
#include <cstdint>

namespace weir::kernels {

/// FindOnes writes up to this many entries more than requested.
inline constexpr size_t kOnesSlack = 72;

/// Finds the next `most` ones among the 8 * size bits at `bytes`, least significant first, from
/// *bit on. Their positions are relative to the initial *bit (modulo 2^32). Returns the number
/// found. Afterwards *bit is just after the last one, or at the end if there were fewer. O(most +
/// bits).
size_t FindOnes(const uint8_t* bytes, size_t size, size_t most, size_t* bit,
                uint32_t* ones) noexcept;

/// Computes positions from gaps. A gap is the number of zeros between ones[i - 1] and ones[i],
/// times 2^bits, plus plain[i]. bits <= 8; ones[-1] is readable and 2^32 - 1 at the start. The
/// first gap begins at `next`; returns where the gap after the last one would begin. Positions are
/// modulo 2^32; the returned value is not, as long as no gap reaches 2^32. O(size).
uint64_t PlacePositions(const uint32_t* ones, const uint8_t* plain, size_t size, int bits,
                        uint64_t next, uint32_t* out) noexcept;

}  // namespace weir::kernels
