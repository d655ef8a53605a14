#pragma once
// Floats in integer registers, as a switch without floating point can add them: exponent and signed
// mantissa apart, normalised only when read.
// Source: Yuan et al., "Unlocking the power of inline floating-point operations on programmable
// switches", NSDI 2022, sections 3 and 4; deviates: NaN and infinity make the lane NaN, which the
// paper leaves open; an overflow of the mantissa register is noticed.

#include <cstdint>

namespace weir::aggregation {

/// The two registers of a lane: the number is mantissa * 2^(exponent - 150). exponent 255: NaN.
struct FloatLane {
  int32_t exponent = 1;
  int32_t mantissa = 0;
  friend bool operator==(const FloatLane&, const FloatLane&) = default;
};

/// Bits of the mantissa register above a float's 24 and the sign.
inline constexpr int kFloatHeadRoom = 7;

/// The registers of one float; subnormal numbers have exponent 1. Exact.
FloatLane UnpackFloat(uint32_t bits);

/// lane += addend: the number of lower exponent shifts right, towards minus infinity. False when
/// the mantissa wrapped, which 128 addends cannot bring about.
bool AddFloatExact(const FloatLane& addend, FloatLane* lane);

/// As a pipeline does that cannot shift a register (FPISA-A): an addend of higher exponent shifts
/// left by up to kFloatHeadRoom bits, or overwrites the lane. False when the mantissa wrapped,
/// which the left shift makes possible for two addends.
bool AddFloatApproximate(const FloatLane& addend, FloatLane* lane);

/// The lane as a float: normalised, low bits cut off (towards zero), infinity beyond the greatest,
/// subnormal below the least normal number.
uint32_t PackFloat(const FloatLane& lane);

}  // namespace weir::aggregation
