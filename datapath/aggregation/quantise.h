#pragma once
// Floats as integers that an aggregator can add, with a power-of-two scale per chunk.

#include <cstdint>
#include <span>

namespace weir::aggregation {

/// Exponent codes as they travel (WIRE section 4): 0 all elements are zero, kExponentNonFinite some
/// element is not finite, else e + kExponentBias with the least e for which 2^e > max |x|.
inline constexpr int kExponentBias = 200;
inline constexpr uint16_t kExponentZero = 0;

/// O(n), thread-safe.
uint16_t ExponentCode(std::span<const float> chunk);

/// Bits of a lane's magnitude: the greatest k with workers * 2^k <= 2^31 - 1; workers 1 .. 4096.
///
/// Head-room. With e from ExponentCode of every worker's chunk (the greatest), |x| < 2^e, so
/// |x * 2^(k - e)| < 2^k; the product is exact in double; rounding to the nearest integer gives at
/// most 2^k, and workers * 2^k <= 2^31 - 1 by the choice of k. No sum overflows, in any order.
/// k is 24 for 64 workers: an element as large as the chunk's largest keeps all its 24 bits.
/// Source: Sapio et al. 2021, section 3.7; deviates: the published scale (2^31 - 1) / (N * 2^e) is
/// no power of two, wins less than one bit, and rounds twice.
int LaneBits(int workers);

/// lanes[i] = chunk[i] * 2^(bits - e) rounded to nearest, ties to even; 0 beyond the chunk's end
/// and for codes without a scale. code: not below ExponentCode(chunk). O(lanes), thread-safe.
void Quantise(std::span<const float> chunk, uint16_t code, int bits, std::span<uint32_t> lanes);

/// out[i] = lanes[i] * 2^(e - bits), rounded once, to float; NaN when `code` is non-finite, 0 when
/// it is zero. O(out), thread-safe.
void Dequantise(std::span<const uint32_t> lanes, uint16_t code, int bits, std::span<float> out);

}  // namespace weir::aggregation
