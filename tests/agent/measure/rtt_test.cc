// SPDX-License-Identifier: Apache-2.0
// A burst of round trips gives a minimum, a median, and a deviation that a single spike does not
// determine.
#include "agent/measure/rtt.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir::agent {
namespace {

TEST(RttTest, EmptyBurstIsAllLoss) {
  const RttSummary summary = SummarizeRtts({}, 5);
  EXPECT_EQ(summary.received, 0u);
  EXPECT_DOUBLE_EQ(summary.loss_ratio(), 1.0);
  EXPECT_DOUBLE_EQ(summary.rtt_min_s, 0.0);
}

TEST(RttTest, SpikeMovesNeitherMedianNorDeviation) {
  const std::vector<double> rtts = {0.010, 0.500, 0.011, 0.012, 0.009};
  const RttSummary summary = SummarizeRtts(rtts, 5);
  EXPECT_DOUBLE_EQ(summary.rtt_min_s, 0.009);
  EXPECT_DOUBLE_EQ(summary.rtt_median_s, 0.011);
  EXPECT_NEAR(summary.rtt_deviation_s, 1.4826 * 0.001, 1e-9);
  EXPECT_DOUBLE_EQ(summary.loss_ratio(), 0.0);
}

TEST(RttTest, EvenCountTakesTheMiddle) {
  const std::vector<double> rtts = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(SummarizeRtts(rtts, 8).rtt_median_s, 2.5);
  EXPECT_DOUBLE_EQ(SummarizeRtts(rtts, 8).loss_ratio(), 0.5);
}

TEST(RttTest, ConstantBurstKeepsAFloorOfDeviation) {
  const std::vector<double> rtts = {0.1, 0.1, 0.1};
  EXPECT_DOUBLE_EQ(SummarizeRtts(rtts, 3).rtt_deviation_s, 0.002);
}

}  // namespace
}  // namespace weir::agent
