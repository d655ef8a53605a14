// SPDX-License-Identifier: Apache-2.0
#include "controller/model/link_estimator.h"

#include <gtest/gtest.h>

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
  link.AddBandwidth(1, 1e8, 0.2, "iperf3");
  link.ForgetBandwidthBefore(2);
  EXPECT_FALSE(link.Bandwidth(2).has_value());
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

TEST(LinkEstimatorTest, AJumpRestartsTheFilter) {
  LinkEstimator link;
  for (int i = 0; i < 20; ++i) link.AddBandwidth(i, 1e8, 0.25, "iperf3");
  link.AddBandwidth(21, 6e6, 0.25, "iperf3");
  EXPECT_NEAR(link.Bandwidth(21)->value, 6e6, 1);
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
