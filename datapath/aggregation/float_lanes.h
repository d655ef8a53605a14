// SPDX-License-Identifier: Apache-2.0
#pragma once
// Floats in integer registers, as a switch without floating point can add them: exponent and signed
// mantissa are separate and normalised only when read.
// Source: Yuan et al., "Unlocking the power of inline floating-point operations on programmable
// switches", NSDI 2022, sections 3 and 4; deviates: NaN and infinity make the lane NaN, which the
// paper leaves open, and an overflow of the mantissa register is detected.

#include <cstdint>

namespace weir::aggregation {

/// The two registers of a lane, whose value is mantissa * 2^(exponent - 150). Exponent 255 means
/// NaN.
struct FloatLane {
  int32_t exponent = 1;
  int32_t mantissa = 0;
  friend bool operator==(const FloatLane&, const FloatLane&) = default;
};

/// Bits of the mantissa register above a float's 24 bits and the sign.
inline constexpr int kFloatHeadRoom = 7;

/// The registers of one float, exact. Subnormal numbers have exponent 1.
FloatLane UnpackFloat(uint32_t bits);

/// lane += addend. The number with the lower exponent is shifted right, rounding towards minus
/// infinity. Returns false when the mantissa wrapped, which 128 addends cannot cause.
bool AddFloatExact(const FloatLane& addend, FloatLane* lane);

/// Adds as a pipeline does that cannot shift a register (FPISA-A): an addend of higher exponent is
/// shifted left by up to kFloatHeadRoom bits, or overwrites the lane. Returns false when the
/// mantissa wrapped, which the left shift makes possible with two addends.
bool AddFloatApproximate(const FloatLane& addend, FloatLane* lane);

/// The lane as a float: normalised, with low bits truncated towards zero. Beyond the greatest float
/// it is infinity, below the least normal number subnormal.
uint32_t PackFloat(const FloatLane& lane);

}  // namespace weir::aggregation
