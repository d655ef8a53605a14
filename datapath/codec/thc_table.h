// SPDX-License-Identifier: Apache-2.0
#pragma once
// Level tables of non-uniform tensor homomorphic compression: the points of a uniform grid that a
// sender may use, so that a sum of grid numbers decodes like that of a uniform grid. Source: Li et
// al., "THC: accelerating distributed deep learning using tensor homomorphic compression", NSDI
// 2024, section 5.3, which publishes tables but no construction.

#include <vector>

namespace weir {

/// A grid of granularity + 1 points over [-range, range] for a standard normal coordinate. At most
/// 2^bits of them, both ends included, are levels.
struct ThcTableSpec {
  int bits = 4;          // 1 .. 8
  int granularity = 30;  // at least 1
  double range = 0;      // positive; see ThcRange
};

/// The t with P(|z| > t) = tail for a standard normal z and 0 < tail < 1, within 1e-12.
double ThcRange(double tail);

/// The expected squared error of stochastic rounding of a standard normal coordinate inside the
/// range to one of the two adjacent `levels`: the sum over intervals [a, c] of the integral of (t -
/// a) (c - t) phi(t). levels: ascending grid numbers from 0 to spec.granularity.
double ThcRoundingError(const ThcTableSpec& spec, const std::vector<int>& levels);

/// The expected squared error of clamping a standard normal coordinate to +-range.
double ThcClippingError(double range);

/// The levels with the least ThcRoundingError among those with levels[i] + levels[last - i] =
/// granularity, as in the paper's tables (which name a level at the centre twice). All points of
/// the grid when there are few enough. Tables whose errors differ only by rounding count as equal,
/// so the result is the same on every machine. O(2^bits * granularity^2).
std::vector<int> SymmetricThcTable(const ThcTableSpec& spec);

/// The levels with the least ThcRoundingError. Same complexity.
std::vector<int> OptimalThcTable(const ThcTableSpec& spec);

}  // namespace weir
