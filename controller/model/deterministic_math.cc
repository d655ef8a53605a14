// SPDX-License-Identifier: Apache-2.0
// See deterministic_math.h. Built with -ffp-contract=off so that no product and sum are fused.

#include "controller/model/deterministic_math.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {
constexpr double kLn2 = 0.693147180559945309417232121458;
}  // namespace

double DetLog(double x) {
  if (!(x > 0)) return -1e9;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // exact
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  // log m = 2 atanh((m-1)/(m+1)), |argument| < 0.172: 11 terms leave less than 1e-16.
  const double t = (mantissa - 1) / (mantissa + 1);
  const double square = t * t;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return 2 * t * sum + exponent * kLn2;
}

double DetExp(double x) {
  x = std::clamp(x, -700.0, 700.0);
  const double turns = std::floor(x / kLn2 + 0.5);
  const double rest = x - turns * kLn2;  // |rest| <= 0.35
  double sum = 1;
  for (int k = 14; k >= 1; --k) sum = 1 + sum * rest / k;
  return std::ldexp(sum, static_cast<int>(turns));
}

double DetPow(double x, double y) {
  if (y == 0) return 1;
  if (y == 1) return x;
  if (!(x > 0)) return 0;
  return DetExp(y * DetLog(x));
}

double DetSqrt(double x) { return x > 0 ? std::sqrt(x) : 0; }

double DetNormalCdf(double z) {
  const double magnitude = z < 0 ? -z : z;
  if (magnitude > 30) return z < 0 ? 0 : 1;
  const double t = 1 / (1 + 0.2316419 * magnitude);
  const double polynomial =
      t *
      (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
  const double tail = 0.398942280401432678 * DetExp(-0.5 * magnitude * magnitude) * polynomial;
  return z < 0 ? tail : 1 - tail;
}

}  // namespace weir
