// SPDX-License-Identifier: Apache-2.0
#pragma once
// exp, log and the normal distribution from additions and multiplications only. The C library picks
// its versions by CPU and they differ in the last bit, which would break the promise that a stored
// snapshot replays to the identical decision on every machine of one architecture.

namespace weir {

/// Natural logarithm, relative error below 1e-14. x > 0; x <= 0 gives -1e9.
double DetLog(double x);
/// e^x, relative error below 1e-13; x is clamped to [-700, 700].
double DetExp(double x);
/// x^y for x >= 0; DetPow(0, y) is 0 for y > 0 and 1 for y == 0. Exact for y == 1 and y == 0.
double DetPow(double x, double y);
/// Square root by the IEEE operation, which is exactly rounded everywhere.
double DetSqrt(double x);
/// P(Z <= z) of a standard normal Z, absolute error below 2e-7 (Abramowitz and Stegun 26.2.17).
double DetNormalCdf(double z);

}  // namespace weir
