#pragma once
// Level tables of non-uniform tensor homomorphic compression: which points of a uniform grid a
// sender may use, so that the sum of grid numbers decodes as a uniform grid does.
// Source: Li et al., "THC: accelerating distributed deep learning using tensor homomorphic
// compression", NSDI 2024, section 5.3, which publishes tables but no construction.

#include <vector>

namespace weir {

/// A grid of granularity + 1 points over [-range, range] for a standard normal coordinate, of which
/// at most 2^bits, the ends among them, are levels.
struct ThcTableSpec {
  int bits = 4;          // 1 .. 8
  int granularity = 30;  // at least 1
  double range = 0;      // positive; see ThcRange
};

/// t with P(|z| > t) = tail for a standard normal z, 0 < tail < 1. Within 1e-12.
double ThcRange(double tail);

/// Expected squared error of stochastic rounding of a standard normal coordinate inside the range
/// to the nearest of `levels` below or above: the sum over intervals [a, c] of the integral of (t -
/// a) (c - t) phi(t). levels: ascending grid numbers from 0 to spec.granularity.
double ThcRoundingError(const ThcTableSpec& spec, const std::vector<int>& levels);

/// Expected squared error of clamping a standard normal coordinate to +-range.
double ThcClippingError(double range);

/// The levels of least ThcRoundingError with levels[i] + levels[last - i] = granularity, as the
/// paper's tables have them (which name a level at the centre twice); all points of the grid when
/// they are few enough. Of
/// tables that differ by rounding only, the same one everywhere. O(2^bits * granularity^2).
std::vector<int> SymmetricThcTable(const ThcTableSpec& spec);

/// The levels of least ThcRoundingError. Same complexity.
std::vector<int> OptimalThcTable(const ThcTableSpec& spec);

}  // namespace weir
