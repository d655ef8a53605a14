// SPDX-License-Identifier: Apache-2.0
// Which samples of TCP_INFO are accepted as evidence, and which are not.
#include "agent/measure/passive.h"

#include "datapath/base/status.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weir::agent {
namespace {

const PathKey kPath{"rank 0", "rank 1"};

TimePoint At(double s) { return TimePoint(FromSeconds(s)); }

PathObservation Free(double rtt_s, double rate) {
  PathObservation observation;
  observation.rtt_s = rtt_s;
  observation.delivery_rate_bytes_per_s = rate;
  return observation;
}

TEST(ExponentialEstimateTest, MeanAndDeviationFollowTheSamples) {
  ExponentialEstimate estimate(0.5);
  estimate.Add(10);
  EXPECT_DOUBLE_EQ(estimate.mean(), 10);
  EXPECT_DOUBLE_EQ(estimate.deviation(), 0);
  estimate.Add(20);
  EXPECT_DOUBLE_EQ(estimate.mean(), 15);
  EXPECT_DOUBLE_EQ(estimate.deviation(), 5);
}

TEST(PassiveTest, DiscardsDeliveryRateWhileTheApplicationIsTheLimit) {
  PassiveEstimator estimator;
  PathObservation observation = Free(0.01, 1e9);
  observation.application_limited = true;
  const auto sample = estimator.Observe(kPath, "b", observation, At(1));
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->bandwidth_bytes_per_s, 0);
  EXPECT_DOUBLE_EQ(sample->rtt_s, 0.01);
}

TEST(PassiveTest, CountersOfABusyConnectionGiveALowerBound) {
  PassiveEstimator estimator;
  PathObservation observation = Free(0.01, 1e9);
  observation.application_limited = true;
  observation.bytes_acked = 1'000'000;
  observation.busy_s = 1;
  (void)estimator.Observe(kPath, "b", observation, At(1));
  observation.bytes_acked += 2'000'000;
  observation.busy_s += 1.0;
  observation.receive_window_limited_s = 0.2;
  observation.send_buffer_limited_s = 0.3;
  const auto sample = estimator.Observe(kPath, "b", observation, At(3));
  ASSERT_TRUE(sample);
  EXPECT_TRUE(sample->application_limited);
  EXPECT_NEAR(sample->bandwidth_bytes_per_s, 4e6, 1);
}

TEST(PassiveTest, CountersOfANewConnectionGiveNoRate) {
  PassiveEstimator estimator;
  PathObservation observation = Free(0.01, 0);
  observation.application_limited = true;
  observation.bytes_acked = 90'000'000;
  observation.busy_s = 9;
  (void)estimator.Observe(kPath, "b", observation, At(1));
  observation.bytes_acked = 1'000'000;
  observation.busy_s = 0.5;
  const auto sample = estimator.Observe(kPath, "b", observation, At(3));
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->bandwidth_bytes_per_s, 0);
}

TEST(PassiveTest, OneSamplePerNodeAndSecondWithTheLowestRoundTrip) {
  PassiveEstimator estimator;
  EXPECT_TRUE(estimator.Observe(kPath, "b", Free(0.010, 1e6), At(1)));
  EXPECT_FALSE(estimator.Observe(kPath, "b", Free(0.050, 1e6), At(1.5)));
  EXPECT_FALSE(estimator.Observe(kPath, "b", Free(0.020, 1e6), At(1.9)));
  const auto sample = estimator.Observe(kPath, "b", Free(0.080, 1e6), At(2.1));
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->rtt_s, 0.020);
  EXPECT_EQ(sample->samples, 3u);
  EXPECT_TRUE(estimator.Observe(kPath, "c", Free(0.010, 1e6), At(2.2)));
}

TEST(PassiveTest, RiseOfLatencyShowsInTheNextWindow) {
  PassiveEstimator estimator;
  (void)estimator.Observe(kPath, "b", Free(0.001, 0), At(1));
  const auto sample = estimator.Observe(kPath, "b", Free(0.050, 0), At(2.5));
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->rtt_s, 0.050);
}

TEST(PassiveTest, LargestConnectionCounts) {
  PassiveEstimator estimator;
  (void)estimator.Observe(kPath, "b", Free(0.01, 1e6), At(1));
  EXPECT_FALSE(estimator.Observe({"rank 2", "rank 1"}, "b", Free(0.01, 5e6), At(1.2)));
  const auto sample = estimator.Observe(kPath, "b", Free(0.01, 1e6), At(2.2));
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->bandwidth_bytes_per_s, 5e6);
  EXPECT_FALSE(sample->application_limited);
}

TEST(PassiveTest, NonsenseIsIgnored) {
  PassiveEstimator estimator;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(estimator.Observe(kPath, "b", Free(nan, infinity), At(1)));
  EXPECT_FALSE(estimator.Observe(kPath, "b", Free(-1, -1), At(3)));
  const auto sample = estimator.Observe(kPath, "b", Free(0.01, 1e6), At(5));
  ASSERT_TRUE(sample);
  EXPECT_TRUE(std::isfinite(sample->rtt_s) && std::isfinite(sample->bandwidth_bytes_per_s));
}

TEST(PassiveTest, ForgetsAnObserverAndBoundsConnections) {
  PassiveEstimator estimator;
  for (int i = 0; i < 5000; ++i) {
    (void)estimator.Observe({"rank 0", StrCat("peer ", i)}, "b", Free(0.01, 1e6), At(1));
  }
  EXPECT_EQ(estimator.connection_count(), 4096u);
  estimator.Forget("rank 0");
  EXPECT_EQ(estimator.connection_count(), 0u);
}

}  // namespace
}  // namespace weir::agent
