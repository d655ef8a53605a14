// SPDX-License-Identifier: Apache-2.0
// Both tables are shortest paths over the grid. A path visits the levels from left to right, and
// each of its intervals costs the variance that stochastic rounding adds there. A symmetric table
// is a path over the left half, which counts twice, and the interval that spans the centre.

#include "datapath/codec/thc_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "datapath/base/check.h"

namespace weir {
namespace {

double Density(double t) { return std::exp(-t * t / 2) / std::sqrt(2 * std::numbers::pi); }
double UpperTail(double t) { return std::erfc(t / std::numbers::sqrt2) / 2; }

/// Costs whose relative difference is below this count as equal.
constexpr double kTie = 1e-9;

/// Costs of intervals between grid points from the integrals of 1, t and t^2 times the density.
class IntervalCosts {
 public:
  explicit IntervalCosts(const ThcTableSpec& spec) {
    const int g = spec.granularity;
    WEIR_CHECK(spec.bits >= 1 && spec.bits <= 8 && g >= 1 && spec.range > 0);
    for (int i = 0; i <= g; ++i) {
      const double t = spec.range * (2.0 * i / g - 1);
      at_.push_back(t);
      mass_.push_back(-UpperTail(t));
      first_.push_back(-Density(t));
      second_.push_back(-UpperTail(t) - t * Density(t));
    }
  }
  double operator()(int i, int j) const {
    return (at_[i] + at_[j]) * (first_[j] - first_[i]) - (second_[j] - second_[i]) -
           at_[i] * at_[j] * (mass_[j] - mass_[i]);
  }

 private:
  std::vector<double> at_, mass_, first_, second_;
};

/// The cheapest paths from grid point 0 with a given number of levels.
class Paths {
 public:
  /// cost[k][j]: the least cost of k + 1 levels, the first of which is 0 and the last j.
  Paths(const IntervalCosts& costs, int levels, int points) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    cost_.assign(levels, std::vector<double>(points, kNone));
    previous_.assign(levels, std::vector<int>(points, -1));
    cost_[0][0] = 0;
    for (int k = 1; k < levels; ++k) {
      for (int j = k; j < points; ++j) {
        for (int i = k - 1; i < j; ++i) {
          const double cost = cost_[k - 1][i] + costs(i, j);
          // Mirror images have the same cost except for rounding, which must not decide between
          // them.
          if (!(cost < cost_[k][j] * (1 - kTie))) continue;
          cost_[k][j] = cost;
          previous_[k][j] = i;
        }
      }
    }
  }
  double Cost(int levels, int last) const { return cost_[levels - 1][last]; }
  std::vector<int> Levels(int levels, int last) const {
    std::vector<int> path;
    for (int k = levels - 1, j = last; k >= 0; --k) {
      path.push_back(j);
      j = previous_[k][j];
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  std::vector<std::vector<double>> cost_;
  std::vector<std::vector<int>> previous_;
};

/// All points when the table has room for them, or else nothing.
std::vector<int> WholeGrid(const ThcTableSpec& spec) {
  std::vector<int> levels;
  if (spec.granularity + 1 > 1 << spec.bits) return levels;
  for (int i = 0; i <= spec.granularity; ++i) levels.push_back(i);
  return levels;
}

}  // namespace

double ThcRange(double tail) {
  WEIR_CHECK(tail > 0 && tail < 1);
  double low = 0, high = 40;
  while (high - low > 1e-13) {
    const double middle = (low + high) / 2;
    (2 * UpperTail(middle) > tail ? low : high) = middle;
  }
  return (low + high) / 2;
}

double ThcRoundingError(const ThcTableSpec& spec, const std::vector<int>& levels) {
  const IntervalCosts costs(spec);
  WEIR_CHECK(levels.size() >= 2 && levels.front() == 0 && levels.back() == spec.granularity);
  double error = 0;
  for (size_t i = 1; i < levels.size(); ++i) error += costs(levels[i - 1], levels[i]);
  return error;
}

double ThcClippingError(double range) {
  return 2 * ((1 + range * range) * UpperTail(range) - range * Density(range));
}

std::vector<int> SymmetricThcTable(const ThcTableSpec& spec) {
  const std::vector<int> whole = WholeGrid(spec);
  if (!whole.empty()) return whole;
  const IntervalCosts costs(spec);
  const int g = spec.granularity, half = 1 << (spec.bits - 1);
  const int points = g / 2 + 1;  // up to the centre, which may be a level itself
  const Paths paths(costs, half, points);
  int best = -1;
  double least = std::numeric_limits<double>::infinity();
  for (int last = half - 1; last < points; ++last) {
    const double cost = 2 * paths.Cost(half, last) + costs(last, g - last);
    if (!(cost < least * (1 - kTie))) continue;
    least = cost;
    best = last;
  }
  std::vector<int> levels = paths.Levels(half, best);
  // The centre is its own mirror image, as in the tables that the authors published.
  const int mirrored = 2 * best == g ? half - 1 : half;
  for (int i = mirrored - 1; i >= 0; --i) levels.push_back(g - levels[i]);
  return levels;
}

std::vector<int> OptimalThcTable(const ThcTableSpec& spec) {
  const std::vector<int> whole = WholeGrid(spec);
  if (!whole.empty()) return whole;
  const int levels = 1 << spec.bits;
  return Paths(IntervalCosts(spec), levels, spec.granularity + 1).Levels(levels, spec.granularity);
}

}  // namespace weir
