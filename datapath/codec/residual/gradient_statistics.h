#pragma once
// One-pass statistics of |x|: a histogram over the top 12 bits of the float pattern (8 exponent and
// 4 mantissa bits), from which the kept count and the gain follow for every ratio.

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "datapath/base/status.h"

namespace weir {

/// The ratios at which a gain curve is reported, descending.
inline constexpr std::array<double, 13> kGainCurveRatios = {
    1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.001, 0.0003};

/// The bin of the histogram where exponent 255 begins.
inline constexpr int kFirstNonFiniteBin = 4080;

/// No threshold is below it, so exact zeros are never selected.
inline constexpr float kSmallestNormal = std::numeric_limits<float>::min();

/// Mergeable histogram of magnitudes. A sampled element counts kHistogramSampling times, so that
/// histograms of different buckets merge with their true weights. Not thread-safe.
class GradientStatistics {
 public:
  static constexpr int kBins = 4096;

  void Clear();
  /// Counts every element of x, on top of what is there. O(n), one pass.
  void Add(std::span<const float> x);
  void Merge(const GradientStatistics& other);

  /// The magnitude above which a fraction `ratio` of the elements lies, interpolated inside the
  /// bin. At least the smallest normal float, so exact zeros are never selected. 0 < ratio <= 1;
  /// that smallest float when nothing was counted. O(bins).
  float ThresholdForRatio(double ratio) const;
  /// Fraction of the elements above `threshold`; 0 when nothing was counted. O(bins).
  double RatioAbove(float threshold) const;
  /// Fraction of the sum of squares held by the largest `ratio` of the elements, in [0, 1]; 1 when
  /// the sum is zero. O(bins).
  double GainAtRatio(double ratio) const;
  std::array<double, kGainCurveRatios.size()> GainCurve() const;

  uint64_t count() const { return count_; }            // elements seen, sampled or not
  double sum_squares() const { return sum_squares_; }  // exact to rounding, also when sampled
  float max_abs() const { return max_abs_; }           // largest magnitude; +inf when non_finite()
  bool non_finite() const { return non_finite_; }

  /// Direct access for the fused passes, which fill the bins and then call Finish once.
  std::array<uint32_t, kBins>& bins() { return bins_; }
  const std::array<uint32_t, kBins>& bins() const { return bins_; }
  /// Adds what a pass over `count` elements found besides the bins.
  void Finish(uint64_t count, double sum_squares, float max_abs, bool non_finite);

 private:
  std::array<uint32_t, kBins> bins_{};
  uint64_t count_ = 0;
  double sum_squares_ = 0;
  float max_abs_ = 0;
  bool non_finite_ = false;
};

/// Sampling of the fused passes: of every 8 runs of 16 elements one is counted, chosen by a hash of
/// their position.
inline constexpr uint32_t kHistogramSampling = 8;

/// max |gradient + residual| for codecs that need it shared before they encode; `residual` is empty
/// or as long as `gradient`. +infinity when a sum is NaN or infinite; 0 for no elements. O(n).
float MaxAbs(std::span<const float> gradient, std::span<const float> residual);

}  // namespace weir
