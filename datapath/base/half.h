#pragma once
// Conversion of the caller's 16-bit floats to the float32 that sums and codecs work on, and back.
// Unlike the codecs' own kernels it must not saturate: an overflow has to reach the caller as
// infinity, because loss scalers look for it.

#include <cstdint>
#include <span>

namespace weir {

/// out[i] = in[i], exactly. Both hold n elements, no overlap. Thread-safe, O(n).
void HalfToFloat(std::span<const uint16_t> in, std::span<float> out) noexcept;
void BrainToFloat(std::span<const uint16_t> in, std::span<float> out) noexcept;

/// Round to nearest, ties to even; overflow becomes infinity, NaN stays NaN. Thread-safe, O(n).
void FloatToHalf(std::span<const float> in, std::span<uint16_t> out) noexcept;
void FloatToBrain(std::span<const float> in, std::span<uint16_t> out) noexcept;

}  // namespace weir
