// SPDX-License-Identifier: Apache-2.0
#pragma once
// One-pass statistics of |x|: a histogram over the top 12 bits of the float's pattern (8 exponent
// and 4 mantissa bits). The kept count and the gain follow from it for every ratio.

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "datapath/base/status.h"

namespace weir {

/// The ratios for which a gain curve is reported, in descending order.
inline constexpr std::array<double, 13> kGainCurveRatios = {
    1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.001, 0.0003};

/// The first bin of exponent 255, that is of infinity and NaN.
inline constexpr int kFirstNonFiniteBin = 4080;

/// The least threshold, so that exact zeros are never selected.
inline constexpr float kSmallestNormal = std::numeric_limits<float>::min();

/// A mergeable histogram of magnitudes. A sampled element counts kHistogramSampling times, so that
/// histograms of different buckets merge with their true weights. Not thread-safe.
class GradientStatistics {
 public:
  static constexpr int kBins = 4096;

  void Clear();
  /// Adds every element of x to the counts. O(n), one pass.
  void Add(std::span<const float> x);
  void Merge(const GradientStatistics& other);

  /// The magnitude above which a fraction `ratio` of the elements lies, interpolated within the
  /// bin; 0 < ratio <= 1. It is at least the smallest normal float, so that exact zeros are never
  /// selected, and equal to it when nothing was counted. O(bins).
  float ThresholdForRatio(double ratio) const;
  /// The fraction of the elements above `threshold`; 0 when nothing was counted. O(bins).
  double RatioAbove(float threshold) const;
  /// The fraction of the sum of squares that the largest `ratio` of the elements holds, in [0, 1];
  /// 1 when the sum is zero. O(bins).
  double GainAtRatio(double ratio) const;
  std::array<double, kGainCurveRatios.size()> GainCurve() const;

  uint64_t count() const { return count_; }            // number of elements seen, sampled or not
  double sum_squares() const { return sum_squares_; }  // exact to rounding, also when sampled
  float max_abs() const { return max_abs_; }           // largest magnitude; +inf when non_finite()
  bool non_finite() const { return non_finite_; }

  /// Direct access for the fused passes, which fill the bins and then call Finish once.
  std::array<uint32_t, kBins>& bins() { return bins_; }
  const std::array<uint32_t, kBins>& bins() const { return bins_; }
  /// Adds the results of a pass over `count` elements other than the bins.
  void Finish(uint64_t count, double sum_squares, float max_abs, bool non_finite);

 private:
  std::array<uint32_t, kBins> bins_{};
  uint64_t count_ = 0;
  double sum_squares_ = 0;
  float max_abs_ = 0;
  bool non_finite_ = false;
};

/// Sampling of the fused passes: of every 8 runs of 16 elements one is counted, selected by a hash
/// of their position.
inline constexpr uint32_t kHistogramSampling = 8;

/// max |gradient + residual|, for codecs that share it before they encode. `residual` is empty or
/// as long as `gradient`. +infinity when a sum is NaN or infinite; 0 for no elements. O(n).
float MaxAbs(std::span<const float> gradient, std::span<const float> residual);

}  // namespace weir
