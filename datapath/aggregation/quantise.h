// SPDX-License-Identifier: Apache-2.0
#pragma once
// Conversion of floats to integers that an aggregator can add, with a power-of-two scale per chunk.

#include <cstdint>
#include <span>

namespace weir::aggregation {

/// Exponent codes on the wire (WIRE section 4): 0 if all elements are zero, kExponentNonFinite if
/// some element is not finite, else e + kExponentBias with the least e for which 2^e > max |x|.
inline constexpr int kExponentBias = 200;
inline constexpr uint16_t kExponentZero = 0;

/// The exponent code of `chunk`. O(n), thread-safe.
uint16_t ExponentCode(std::span<const float> chunk);

/// Bits of a lane's magnitude: the greatest k with workers * 2^k <= 2^31 - 1; workers 1 .. 4096.
///
/// Why no sum overflows: let e be from the greatest ExponentCode of all workers' chunks. Then |x| <
/// 2^e, so |x * 2^(k - e)| < 2^k. The product is exact in double, and rounding it to the nearest
/// integer gives at most 2^k. As workers * 2^k <= 2^31 - 1, no sum overflows in any order. For 64
/// workers k is 24, so an element as large as the chunk's largest keeps all its 24 bits. Source:
/// Sapio et al. 2021, section 3.7; deviates: the published scale (2^31 - 1) / (N * 2^e) is no power
/// of two, gains less than one bit, and rounds twice.
int LaneBits(int workers);

/// lanes[i] = chunk[i] * 2^(bits - e), rounded half to even; 0 after the end of the chunk and for
/// codes without a scale. code: at least ExponentCode(chunk). O(lanes), thread-safe.
void Quantise(std::span<const float> chunk, uint16_t code, int bits, std::span<uint32_t> lanes);

/// out[i] = lanes[i] * 2^(e - bits), rounded once to float; NaN for the non-finite code and 0 for
/// the zero code. O(out), thread-safe.
void Dequantise(std::span<const uint32_t> lanes, uint16_t code, int bits, std::span<float> out);

}  // namespace weir::aggregation
