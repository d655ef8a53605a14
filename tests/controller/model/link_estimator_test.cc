// SPDX-License-Identifier: Apache-2.0
#include "controller/model/link_estimator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "datapath/base/random.h"

namespace weir {
namespace {

TEST(LinkEstimatorTest, RttIsTheLeastOfTheWindow) {
  LinkEstimator link;
  EXPECT_FALSE(link.Rtt(0).has_value());
  link.AddRtt(0, 0.010, "udp_echo");
  link.AddRtt(1, 0.002, "udp_echo");
  link.AddRtt(2, 0.020, "udp_echo");
  EXPECT_DOUBLE_EQ(link.Rtt(2)->value, 0.002);
  EXPECT_DOUBLE_EQ(link.Rtt(5)->age_s, 3);
  // The 2 ms leave the window.
  EXPECT_DOUBLE_EQ(link.Rtt(11.5)->value, 0.020);
  // Nothing fresh: the last word stands, with its age.
  EXPECT_DOUBLE_EQ(link.Rtt(100)->value, 0.020);
  EXPECT_DOUBLE_EQ(link.Rtt(100)->age_s, 98);
}

TEST(LinkEstimatorTest, TcpInfoCountsOnlyWithoutProbes) {
  LinkEstimator link;
  link.AddRtt(0, 0.001, "tcp_info");
  EXPECT_TRUE(link.rtt_is_loaded(0));
  link.AddRtt(1, 0.004, "udp_echo");
  EXPECT_FALSE(link.rtt_is_loaded(1));
  EXPECT_DOUBLE_EQ(link.Rtt(1)->value, 0.004);
  link.AddRtt(2, 0.0001, "tcp_info");
  EXPECT_DOUBLE_EQ(link.Rtt(2)->value, 0.004);
  link.AddRtt(12, 0.050, "tcp_info");
  EXPECT_DOUBLE_EQ(link.Rtt(12)->value, 0.050);
}

TEST(LinkEstimatorTest, ForgettingDropsWhatCameBefore) {
  LinkEstimator link;
  link.AddRtt(0, 0.001, "udp_echo");
  link.AddRtt(1, 0.050, "udp_echo");
  link.ForgetRttBefore(0.5);
  EXPECT_DOUBLE_EQ(link.Rtt(1)->value, 0.050);
  link.AddLowerBound(1, 1e8);
  link.ForgetBoundsBefore(1);
  EXPECT_EQ(link.LowerBound(2), 1e8);
  link.ForgetBoundsBefore(2);
  EXPECT_EQ(link.LowerBound(2), 0);
}

TEST(LinkEstimatorTest, BandwidthAveragesNoiseAndItsVarianceGrowsWithAge) {
  LinkEstimator link;
  link.AddBandwidth(0, 1e8, 0.25, "iperf3");
  const double first = link.Bandwidth(0)->deviation;
  EXPECT_NEAR(first, 0.25e8, 1);
  link.AddBandwidth(1, 1.2e8, 0.25, "iperf3");
  EXPECT_GT(link.Bandwidth(1)->value, 1.05e8);
  EXPECT_LT(link.Bandwidth(1)->value, 1.15e8);
  EXPECT_LT(link.Bandwidth(1)->deviation, first);
  EXPECT_GT(link.Bandwidth(300)->deviation, 2 * first);
  EXPECT_EQ(link.bandwidth_samples(), 2u);
  EXPECT_EQ(link.bandwidth_method(), "iperf3");
}

TEST(LinkEstimatorTest, AJumpThatASecondSampleConfirmsRestartsTheFilter) {
  LinkEstimator link;
  for (int i = 0; i < 20; ++i) link.AddBandwidth(i, 1e8, 0.25, "iperf3");
  EXPECT_FALSE(link.AddBandwidth(21, 6e6, 0.25, "iperf3"));
  EXPECT_NEAR(link.Bandwidth(21)->value, 1e8, 1e6) << "one sample may be a busy host";
  EXPECT_TRUE(link.in_doubt());
  EXPECT_TRUE(link.AddBandwidth(24, 5e6, 0.25, "iperf3"));
  EXPECT_NEAR(link.Bandwidth(24)->value, 5.5e6, 1e5);
  EXPECT_FALSE(link.in_doubt());
  EXPECT_EQ(link.bandwidth_windows(), 1);
}

TEST(LinkEstimatorTest, StraysThatDoNotAgreeChangeNothing) {
  LinkEstimator link;
  for (int i = 0; i < 20; ++i) link.AddBandwidth(i, 1e8, 0.1, "iperf3");
  link.AddBandwidth(21, 6e6, 0.1, "iperf3");
  link.AddBandwidth(22, 1e9, 0.1, "iperf3");
  link.AddBandwidth(23, 2e6, 0.1, "iperf3");
  link.AddBandwidth(24, 6e6, 0.1, "iperf3");
  EXPECT_NEAR(link.Bandwidth(24)->value, 1e8, 1e6);
}

TEST(LinkEstimatorTest, WhatIsInDoubtDoesNotBecomeYounger) {
  LinkEstimator link;
  for (int i = 0; i < 20; ++i) link.AddBandwidth(i, 1e8, 0.1, "iperf3");
  link.AddBandwidth(40, 6e6, 0.1, "iperf3");
  EXPECT_EQ(link.Bandwidth(41)->age_s, 22);
}

TEST(LinkEstimatorTest, AThirdSampleOnTheSameSideEndsTheDoubt) {
  LinkEstimator link;
  for (int i = 0; i < 20; ++i) link.AddBandwidth(i, 1e8, 0.1, "iperf3");
  EXPECT_FALSE(link.AddBandwidth(21, 6e6, 0.1, "iperf3"));
  EXPECT_FALSE(link.AddBandwidth(22, 2e7, 0.1, "iperf3"));
  EXPECT_TRUE(link.AddBandwidth(23, 8e6, 0.1, "iperf3"));
  EXPECT_NEAR(link.Bandwidth(23)->value, 1.26e7, 1e6);
}

TEST(LinkEstimatorTest, ASmallLastingShiftIsFoundByItsSum) {
  LinkEstimator link;
  Random random(3);
  for (int i = 0; i < 100; ++i) {
    link.AddBandwidth(0.3 * i, 1e8 * std::exp(0.1 * random.Normal()), 0.1, "iperf3");
  }
  int samples = 0;
  while (link.Bandwidth(30 + 0.3 * samples)->value > 0.85e8 && samples < 100) {
    ++samples;
    link.AddBandwidth(30 + 0.3 * samples, 0.77e8 * std::exp(0.1 * random.Normal()), 0.1, "iperf3");
  }
  EXPECT_LE(samples, 8);
}

TEST(LinkEstimatorTest, SamplesOfOneMomentAreOneWindow) {
  LinkEstimator link;
  for (int i = 0; i < 10; ++i) link.AddBandwidth(0.1 * i, 1e8, 0.25, "iperf3");
  EXPECT_EQ(link.bandwidth_windows(), 1);
  link.AddBandwidth(2.1, 1e8, 0.25, "iperf3");
  EXPECT_EQ(link.bandwidth_windows(), 2);
}

TEST(LinkEstimatorTest, BoundsOnlyContradictWhatIsBelowThem) {
  LinkEstimator link;
  link.AddLowerBound(0, 2e7);
  EXPECT_FALSE(link.Bandwidth(0).has_value());
  EXPECT_EQ(link.LowerBound(0), 2e7);
  EXPECT_EQ(link.LowerBound(11), 0);
  for (int i = 0; i < 5; ++i) link.AddBandwidth(i, 1e8, 0.1, "iperf3");
  for (int i = 5; i < 50; ++i) link.AddLowerBound(i, 1e5);
  EXPECT_NEAR(link.Bandwidth(50)->value, 1e8, 1);
  link.AddLowerBound(51, 9e8);
  link.AddLowerBound(52, 8e8);
  EXPECT_NEAR(link.Bandwidth(52)->value, 8.5e8, 1e7);
  EXPECT_EQ(link.LowerBound(52), 9e8);
}

TEST(LinkEstimatorTest, NonsenseIsIgnored) {
  LinkEstimator link;
  link.AddRtt(0, 0, "udp_echo");
  link.AddRtt(0, -1, "udp_echo");
  link.AddBandwidth(0, 0, 0.2, "iperf3");
  link.AddBandwidth(0, -5, 0.2, "iperf3");
  EXPECT_FALSE(link.Rtt(0).has_value());
  EXPECT_FALSE(link.Bandwidth(0).has_value());
}

}  // namespace
}  // namespace weir
