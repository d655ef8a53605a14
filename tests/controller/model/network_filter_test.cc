// SPDX-License-Identifier: Apache-2.0
#include "controller/model/network_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "controller/model/network_model.h"
#include "datapath/base/random.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

struct Truth {
  double alpha_s = 1e-3, bandwidth = 5e7, gamma = 3e-10, overhead_s = 8e-4;

  double Seconds(const CollectiveModel& collective, double payload) const {
    return overhead_s + collective.latency.At(4) * alpha_s +
           collective.payload.At(4) * payload / bandwidth +
           collective.reduce.At(4) * gamma * payload;
  }
};

class NetworkFilterTest : public testing::Test {
 protected:
  NetworkFilterTest() : filter_(4), collectives_(test::Collectives()) {
    filter_.SetCollectives(collectives_);
  }

  CollectiveSample Sample(int collective, double payload, double noise) {
    return {collective, 1, payload, 0,
            truth_.Seconds(collectives_[collective], payload) * std::exp(noise * random_.Normal())};
  }
  void Teach(int steps, int collective, const std::vector<double>& payloads, double noise) {
    for (int i = 0; i < steps; ++i) {
      std::vector<CollectiveSample> samples;
      for (const double payload : payloads) samples.push_back(Sample(collective, payload, noise));
      filter_.Age(0.2);
      filter_.Update(samples);
    }
  }

  Random random_{5};
  Truth truth_;
  NetworkFilter filter_;
  std::vector<CollectiveModel> collectives_;
};

TEST_F(NetworkFilterTest, FindsBandwidthAndLatencyFromCollectivesAndRoundTrips) {
  for (int i = 0; i < 10; ++i) filter_.ObserveAlpha(truth_.alpha_s, 0.2);
  Teach(60, 0, {4e5, 4e6, 2e6}, 0.05);
  EXPECT_NEAR(std::log(filter_.beta_s_per_byte() * truth_.bandwidth), 0, 0.15);
  EXPECT_NEAR(std::log(filter_.alpha_s() / truth_.alpha_s), 0, 0.3);
  EXPECT_NEAR(filter_.Predict({0, 1, 3e6, 0, 0}) / truth_.Seconds(collectives_[0], 3e6), 1, 0.05);
  EXPECT_LT(filter_.beta_log_deviation(), 0.2);
}

TEST_F(NetworkFilterTest, PredictsSizesItNeverSaw) {
  for (int i = 0; i < 10; ++i) filter_.ObserveAlpha(truth_.alpha_s, 0.2);
  Teach(80, 0, {1e5, 1e6, 4e6}, 0.05);
  for (const double payload : {3e5, 2e6, 1e7}) {
    EXPECT_NEAR(filter_.Predict({0, 1, payload, 0, 0}) / truth_.Seconds(collectives_[0], payload),
                1, 0.12)
        << payload;
  }
}

TEST_F(NetworkFilterTest, OutliersHardlyMoveIt) {
  Teach(60, 0, {4e6, 2e6}, 0.03);
  const double before = filter_.beta_s_per_byte();
  CollectiveSample stall = Sample(0, 4e6, 0);
  stall.seconds *= 30;
  filter_.Update({stall});
  EXPECT_NEAR(std::log(filter_.beta_s_per_byte() / before), 0, 0.25);
}

TEST_F(NetworkFilterTest, FollowsAJumpOnceOpened) {
  Teach(60, 0, {4e6, 2e6}, 0.03);
  truth_.bandwidth /= 20;
  filter_.Inflate(1, 1.5);
  Teach(2, 0, {4e6, 2e6}, 0.03);
  EXPECT_NEAR(std::log(filter_.beta_s_per_byte() * truth_.bandwidth), 0, 0.25);
}

TEST_F(NetworkFilterTest, FewBytesSayLittleAboutBandwidth) {
  Teach(60, 0, {4e6, 2e6}, 0.03);
  const double before = filter_.beta_s_per_byte();
  const double deviation = filter_.beta_log_deviation();
  truth_.bandwidth *= 10;  // nobody can tell from 2 kB
  for (int i = 0; i < 200; ++i) {
    filter_.Age(1);
    filter_.Update({Sample(2, 2000, 0.03)});
  }
  EXPECT_NEAR(std::log(filter_.beta_s_per_byte() / before), 0, 0.3);
  EXPECT_GT(filter_.beta_log_deviation(), deviation + 0.2);
  // A probe is believed the more for it.
  filter_.ObserveBandwidth(truth_.bandwidth, 0.25);
  EXPECT_NEAR(std::log(filter_.beta_s_per_byte() * truth_.bandwidth), 0, 1.2);
}

// A collective that runs on an aggregator, which is slower than the network.
class AggregatorRateTest : public NetworkFilterTest {
 protected:
  static constexpr int kSwitch = 1;
  static constexpr double kRate = 1e7;

  AggregatorRateTest() {
    for (int i = 0; i < 20; ++i) filter_.ObserveAlpha(truth_.alpha_s, 0.1);
    Teach(60, 0, {4e6, 2e6}, 0.03);
    filter_.SetRateMax(kSwitch, kRate);
  }
  void Sum(int steps) {
    const double network = truth_.bandwidth;
    truth_.bandwidth = std::min(network, kRate);
    Teach(steps, kSwitch, {4e6, 2e6}, 0.03);
    truth_.bandwidth = network;
  }
  double LogError() const { return std::log(filter_.beta_s_per_byte() * truth_.bandwidth); }
};

TEST_F(AggregatorRateTest, WhatItLimitsSaysNothingOfTheNetwork) {
  const double deviation = filter_.beta_log_deviation();
  Sum(200);
  EXPECT_NEAR(LogError(), 0, 0.2);
  EXPECT_GT(filter_.beta_log_deviation(), 0.8 * deviation) << "no surer than before";
  const double payload = collectives_[kSwitch].payload.At(4) * 3e6;
  EXPECT_GT(filter_.Predict({kSwitch, 1, 3e6, 0, 0}), 0.9 * payload / kRate);
  EXPECT_LT(filter_.BetaShare({kSwitch, 1, 3e6, 0, 0}), 0.05);
}

TEST_F(AggregatorRateTest, FindsASlowNetworkInFrontOfIt) {
  Sum(20);
  truth_.bandwidth = 2e6;
  filter_.Inflate(1, 1.5);
  Sum(4);
  EXPECT_NEAR(LogError(), 0, 0.35);
}

TEST_F(AggregatorRateTest, ANetworkThatBecameFasterIsUncertainUntilAProbeTells) {
  truth_.bandwidth = 2e6;
  filter_.Inflate(1, 1.5);
  Sum(40);
  truth_.bandwidth = 1e8;
  filter_.Inflate(1, 1.5);
  Sum(20);
  EXPECT_GT(filter_.beta_log_deviation(), 0.3);
  filter_.ObserveBandwidth(truth_.bandwidth, 0.25);
  Sum(20);
  EXPECT_NEAR(LogError(), 0, 0.5);
}

TEST_F(AggregatorRateTest, AnotherRateOrNoneHoldsFromThenOn) {
  filter_.SetRateMax(kSwitch, 1e-300);  // absurd, but a number
  EXPECT_TRUE(std::isfinite(filter_.Predict({kSwitch, 1, 3e6, 0, 0})));
  filter_.SetRateMax(-1, 1);
  filter_.SetRateMax(1000, 1);
  filter_.SetRateMax(kSwitch, 0);
  const double payload = collectives_[kSwitch].payload.At(4) * 3e6;
  EXPECT_LT(filter_.Predict({kSwitch, 1, 3e6, 0, 0}), 0.5 * payload / kRate);
}

TEST(NetworkModelTest, WhatIsLearnedAgainKnowsTheAggregatorsRate) {
  std::vector<CollectiveModel> collectives = test::Collectives();
  NetworkModel model(4);
  model.SetCollectives(collectives);
  double now_s = 0;
  const auto steps = [&](int count, double bandwidth) {
    bool changed = false;
    for (int i = 0; i < count; ++i, now_s += 0.2) {
      const double seconds = 1e-3 + collectives[1].payload.At(4) * 4e6 / bandwidth;
      changed |= model.AddStep(now_s, {{1, 1, 4e6, 0, seconds}}, 0.5).has_value();
    }
    return changed;
  };
  steps(60, 1e6);
  model.SetRateMax(1, 1e7);
  EXPECT_TRUE(steps(30, 1e7)) << "the network is so fast by now that the aggregator limits it";
  EXPECT_THAT(model.ProbeReason(), testing::HasSubstr("bandwidth is uncertain"));
}

TEST_F(NetworkFilterTest, EveryEstimateStaysPositiveAndFinite) {
  Random random(9);
  for (int i = 0; i < 2000; ++i) {
    CollectiveSample sample{static_cast<int>(random.Below(4)), 1, 1e7 * random.Uniform(),
                            1e5 * random.Uniform(), std::exp(20 * random.Uniform() - 14)};
    filter_.Age(10 * random.Uniform());
    filter_.Update({sample});
    if (i % 50 == 0) filter_.Inflate(1, 1.5);
    if (i % 7 == 0) filter_.ObserveAlpha(std::exp(-14 * random.Uniform()), 0.2);
    for (const double value :
         {filter_.alpha_s(), filter_.beta_s_per_byte(), filter_.gamma_s_per_byte(),
          filter_.alpha_log_deviation(), filter_.beta_log_deviation()}) {
      ASSERT_TRUE(std::isfinite(value) && value > 0) << i;
    }
    ASSERT_GE(filter_.LogVariance({sample}), 0);
  }
}

TEST_F(NetworkFilterTest, LearnsWhatOneCollectiveCostsBesides) {
  for (int i = 0; i < 20; ++i) filter_.ObserveAlpha(truth_.alpha_s, 0.1);
  truth_.overhead_s = 0.02;
  Teach(60, 2, {1e4, 3e4}, 0.03);
  CollectiveModel gather = collectives_[2], ring = collectives_[0];
  filter_.Calibrate(2, &gather);
  filter_.Calibrate(0, &ring);
  EXPECT_NEAR(gather.overhead_s, 0.02, 0.006);
  EXPECT_LT(ring.overhead_s, 0.002);
  EXPECT_LT(gather.relative_deviation, ring.relative_deviation + 0.2);
}

// The sums of callers, which go 200 times as fast over another way.
class CallerSumsTest : public NetworkFilterTest {
 protected:
  static constexpr int kCallers = 4;
  static constexpr double kFaster = 200;

  CallerSumsTest() {
    collectives_.push_back(test::ByCaller());
    filter_.SetCollectives(collectives_);
    for (int i = 0; i < 20; ++i) filter_.ObserveAlpha(truth_.alpha_s, 0.1);
  }
  CollectiveSample SumOf(double payload) {
    CollectiveSample sample = Sample(kCallers, payload, 0.03);
    sample.seconds /= kFaster;
    return sample;
  }
};

TEST_F(CallerSumsTest, TeachTheirOwnCostAndNotTheNetworks) {
  Teach(60, 0, {4e6, 2e6}, 0.03);
  const double beta = filter_.beta_s_per_byte(), alpha_s = filter_.alpha_s();
  const double gamma = filter_.gamma_s_per_byte(), ring = filter_.Predict({0, 1, 4e6, 0, 0});
  for (int i = 0; i < 60; ++i) {
    filter_.Age(0.2);
    filter_.Update({SumOf(4e6), SumOf(2e5), SumOf(2e6)});
  }
  EXPECT_EQ(filter_.beta_s_per_byte(), beta);
  EXPECT_EQ(filter_.alpha_s(), alpha_s);
  EXPECT_EQ(filter_.gamma_s_per_byte(), gamma);
  EXPECT_EQ(filter_.Predict({0, 1, 4e6, 0, 0}), ring);
  const double truth = truth_.Seconds(collectives_[kCallers], 4e6) / kFaster;
  EXPECT_NEAR(filter_.Predict({kCallers, 1, 4e6, 0, 0}) / truth, 1, 0.1);
}

TEST_F(CallerSumsTest, AreNoChangeOfTheNetwork) {
  NetworkModel network(4);
  network.SetCollectives(collectives_);
  double now_s = 0;
  for (int i = 0; i < 40; ++i) {
    EXPECT_FALSE(network.AddStep(now_s += 0.2, {Sample(0, 4e6, 0.03)}, 0.2).has_value());
  }
  const double before = network.Bandwidth(now_s).value;
  for (int i = 0; i < 40; ++i) {  // they become slower for good
    CollectiveSample sample = SumOf(4e6);
    if (i > 20) sample.seconds *= 20;
    EXPECT_FALSE(network.AddStep(now_s += 0.2, {sample}, 0.2).has_value()) << i;
  }
  EXPECT_NEAR(network.Bandwidth(now_s).value / before, 1, 1e-9);
  EXPECT_NEAR(network.filter().Predict({kCallers, 1, 4e6, 0, 0}) / (20 * SumOf(4e6).seconds), 1,
              0.3);
}

// A job that has never sent anything by itself, and no probes, must begin somewhere.
TEST_F(CallerSumsTest, TeachTheNetworkAsLongAsNothingElseDoes) {
  NetworkModel network(4);
  network.SetCollectives(collectives_);
  double now_s = 0;
  for (int i = 0; i < 40; ++i) network.AddStep(now_s += 0.2, {Sample(kCallers, 4e6, 0.03)}, 0.2);
  EXPECT_TRUE(network.has_bandwidth());
  EXPECT_NEAR(std::log(network.Bandwidth(now_s).value / truth_.bandwidth), 0, 0.7);
  for (int i = 0; i < 60; ++i)
    network.AddStep(now_s += 0.2, {Sample(0, 4e6, 0.03), SumOf(4e6)}, 0.2);
  EXPECT_NEAR(std::log(network.Bandwidth(now_s).value / truth_.bandwidth), 0, 0.3);
}

TEST_F(NetworkFilterTest, KnownCollectivesKeepTheirCalibration) {
  Teach(60, 0, {4e6, 2e6}, 0.03);
  const double before = filter_.Predict({0, 1, 4e6, 0, 0});
  std::vector<CollectiveModel> fewer = {collectives_[2], collectives_[0]};
  filter_.SetCollectives(fewer);
  EXPECT_DOUBLE_EQ(filter_.Predict({1, 1, 4e6, 0, 0}), before);
}

}  // namespace
}  // namespace weir
