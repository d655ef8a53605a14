// SPDX-License-Identifier: Apache-2.0
// The histogram against exact selection: kept count within 2 %, gain within 5e-4, on seven
// distributions.

#include "datapath/codec/residual/gradient_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

TEST(GradientStatisticsTest, KeptCountAndGainAgreeWithExactSelection) {
  const size_t n = 1 << 20;
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    const std::vector<float> x = test::Draw(distribution, n, 7);
    GradientStatistics statistics;
    statistics.Add(x);
    std::vector<float> sorted(n);
    std::transform(x.begin(), x.end(), sorted.begin(), [](float v) { return std::abs(v); });
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const size_t nonzero = std::count_if(x.begin(), x.end(), [](float v) { return v != 0; });
    std::vector<double> energy(n + 1, 0.0);
    for (size_t i = 0; i < n; ++i) {
      energy[i + 1] = energy[i] + static_cast<double>(sorted[i]) * sorted[i];
    }
    for (const double ratio : kGainCurveRatios) {
      const double k = ratio * n;
      const float threshold = statistics.ThresholdForRatio(ratio);
      const double kept =
          std::count_if(x.begin(), x.end(), [&](float v) { return std::abs(v) > threshold; });
      // Ranks among exact zeros are undefined: all that is not zero is kept.
      const double expected = std::min<double>(k, static_cast<double>(nonzero));
      const double noise =
          3 * std::sqrt(expected);  // the interpolation cannot know single elements
      const double tolerance = std::max(0.02 * expected, std::min(noise, 0.05 * expected));
      EXPECT_NEAR(kept, expected, tolerance) << distribution.name << " ratio " << ratio;
      EXPECT_NEAR(statistics.RatioAbove(threshold) * n, expected, 0.001 * expected + 1)
          << distribution.name << " ratio " << ratio;
      EXPECT_NEAR(statistics.GainAtRatio(ratio), energy[static_cast<size_t>(k)] / energy[n], 5e-4)
          << distribution.name << " ratio " << ratio;
    }
  }
}

TEST(GradientStatisticsTest, ZerosAreNeverAboveTheThreshold) {
  std::vector<float> x(1000, 0.0f);
  x[17] = 1e-42f;  // subnormal
  GradientStatistics statistics;
  statistics.Add(x);
  for (const double ratio : {1.0, 0.5, 0.001}) {
    EXPECT_GE(statistics.ThresholdForRatio(ratio), std::numeric_limits<float>::min());
    EXPECT_EQ(statistics.GainAtRatio(ratio), 1);
  }
  EXPECT_EQ(statistics.RatioAbove(0), 0);
}

TEST(GradientStatisticsTest, EmptyIsDefined) {
  const GradientStatistics statistics;
  EXPECT_EQ(statistics.count(), 0u);
  EXPECT_EQ(statistics.ThresholdForRatio(0.1), std::numeric_limits<float>::min());
  EXPECT_EQ(statistics.RatioAbove(1), 0);
  EXPECT_EQ(statistics.GainAtRatio(0.1), 1);
}

TEST(GradientStatisticsTest, MergeEqualsOneHistogramOfBoth) {
  const std::vector<float> a = test::NormalVector(5000, 1), b = test::NormalVector(777, 2, 10);
  std::vector<float> both = a;
  both.insert(both.end(), b.begin(), b.end());
  GradientStatistics merged, other, whole;
  merged.Add(a);
  other.Add(b);
  merged.Merge(other);
  whole.Add(both);
  EXPECT_EQ(merged.bins(), whole.bins());
  EXPECT_EQ(merged.count(), whole.count());
  EXPECT_EQ(merged.max_abs(), whole.max_abs());
  EXPECT_DOUBLE_EQ(merged.sum_squares(), whole.sum_squares());
  merged.Clear();
  EXPECT_EQ(merged.count(), 0u);
}

TEST(GradientStatisticsTest, NonFiniteIsSeenAndLeftOut) {
  std::vector<float> x = test::NormalVector(1000, 3);
  GradientStatistics clean, dirty;
  clean.Add(x);
  x.push_back(std::nanf(""));
  x.push_back(-std::numeric_limits<float>::infinity());
  dirty.Add(x);
  EXPECT_FALSE(clean.non_finite());
  EXPECT_TRUE(dirty.non_finite());
  EXPECT_EQ(dirty.max_abs(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(dirty.ThresholdForRatio(0.1), clean.ThresholdForRatio(0.1));
}

TEST(GradientStatisticsTest, GainCurveDescendsWithTheRatio) {
  GradientStatistics statistics;
  statistics.Add(test::NormalVector(100000, 4));
  const auto curve = statistics.GainCurve();
  EXPECT_EQ(curve[0], 1);
  for (size_t i = 1; i < curve.size(); ++i) EXPECT_LT(curve[i], curve[i - 1]);
}

TEST(GradientStatisticsTest, MaxAbsOfASum) {
  std::vector<float> g(100, 1.0f), r(100, 0.5f);
  r[99] = -4.0f;
  EXPECT_EQ(MaxAbs(g, r), 3.0f);
  EXPECT_EQ(MaxAbs(g, {}), 1.0f);
  EXPECT_EQ(MaxAbs({}, {}), 0.0f);
  g[50] = std::nanf("");
  EXPECT_EQ(MaxAbs(g, r), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace weir
