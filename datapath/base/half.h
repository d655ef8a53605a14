// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts the caller's 16-bit floats to float32, which sums and codecs use, and back. Unlike the
// codecs' own kernels it must not saturate: an overflow must reach the caller as infinity, because
// loss scalers check for that.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir {

/// The types of the caller's elements.
enum class Dtype { kFloat32, kFloat16, kBrain16 };
constexpr size_t DtypeBytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

/// out[i] = in[i], exactly. Both have n elements and do not overlap. Thread-safe, O(n).
void HalfToFloat(std::span<const uint16_t> in, std::span<float> out) noexcept;
void BrainToFloat(std::span<const uint16_t> in, std::span<float> out) noexcept;

/// Rounds to nearest, ties to even. Overflow becomes infinity, and NaN stays NaN. Thread-safe,
/// O(n).
void FloatToHalf(std::span<const float> in, std::span<uint16_t> out) noexcept;
void FloatToBrain(std::span<const float> in, std::span<uint16_t> out) noexcept;

}  // namespace weir
