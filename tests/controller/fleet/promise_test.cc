// SPDX-License-Identifier: Apache-2.0
// Plans that do not keep their promise: the plan before comes back, and the same change waits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

constexpr char kTwoCodecs[] = "name: p\njobs: ['*']\nbounds: {codecs: [identity, fp16]}\n";

class PromiseTest : public FleetFixture {
 protected:
  /// Seconds until a step runs `codec`; fails after `limit_s`.
  double TrainUntil(const std::string& codec, double limit_s) {
    const TimePoint begin = clock_.Now();
    while (cluster_.ActiveCodec() != codec && ToSeconds(clock_.Now() - begin) < limit_s) {
      cluster_.Step();
    }
    EXPECT_EQ(cluster_.ActiveCodec(), codec);
    return ToSeconds(clock_.Now() - begin);
  }
  int StepsOf(const std::string& codec) {
    int steps = 0;
    while (cluster_.ActiveCodec() == codec && steps < 1000) {
      cluster_.Step();
      ++steps;
    }
    return steps;
  }
  v1::Decision NewestWith(v1::DecisionRule rule) {
    for (const v1::Decision& decision : PlansNewestFirst()) {
      if (decision.facts().rule() == rule) return decision;
    }
    ADD_FAILURE() << "no plan by rule " << rule;
    return {};
  }
};

TEST_F(PromiseTest, AFirstPlanThatSavesNothingMakesWayForDenseAndIsTriedAgainMoreAndMoreRarely) {
  cluster_.half_gain = 0.99;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  cluster_.lossy_extra_s = 0.6;  // dense takes 0.82 s, fp16 1.0 s with it
  Apply(kTwoCodecs);
  cluster_.Connect(*plane_);
  double wait_s = 0;
  for (int failures = 1; failures <= 3; ++failures) {
    const double waited_s = TrainUntil("fp16", 3600);
    EXPECT_GE(waited_s, 0.9 * wait_s);
    EXPECT_LE(StepsOf("fp16"), 10) << "two that settle, two that are judged, and the roll-out";
    const v1::Decision back = NewestWith(v1::DECISION_RULE_PROMISE_BROKEN);
    EXPECT_EQ(back.trigger(), "rollback");
    ASSERT_EQ(back.changes_size(), 1);
    EXPECT_EQ(back.changes(0).of(), v1::Change::OF_STEP_TIME);
    EXPECT_GT(back.changes(0).after(), 1.5 * back.changes(0).before());
    EXPECT_EQ(back.facts().failures(), static_cast<uint32_t>(failures));
    wait_s = 60 * std::pow(2, failures - 1);
    EXPECT_NEAR(back.facts().held_s(), wait_s, 1);
    v1::ReplayRequest again;
    again.set_id(back.id());
    v1::ReplayResponse answer;
    ASSERT_TRUE(plane_->admin.Replay(again, &answer).ok());
    EXPECT_TRUE(answer.identical());
  }
}

TEST_F(PromiseTest, ThePlanBeforeComesBackAndADifferentChangeIsStillMade) {
  cluster_.half_gain = 1;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  Apply(kTwoCodecs);
  cluster_.Connect(*plane_);
  for (int i = 0; i < 50; ++i) cluster_.Step();
  ASSERT_EQ(cluster_.ActiveCodec(), "fp16");
  cluster_.extra_codec = "top_k";
  cluster_.lossy_extra_s = 1;
  Apply(
      "name: p\njobs: ['*']\nobjective: {name: time_to_accuracy, progress_exponent: 0.2, "
      "progress_deviation: 0}\n");
  TrainUntil("top_k", 60);
  EXPECT_LE(StepsOf("top_k"), 10);
  EXPECT_EQ(cluster_.ActiveCodec(), "fp16");
  const v1::Decision back = NewestWith(v1::DECISION_RULE_PROMISE_BROKEN);
  EXPECT_THAT(back.from(), testing::HasSubstr("top_k"));
  EXPECT_THAT(back.to(), testing::HasSubstr("fp16"));
  EXPECT_THAT(back.reason(), testing::HasSubstr("does not keep its promise"));
}

TEST_F(PromiseTest, ARollBackThatARankRefusesIsOfferedAgain) {
  cluster_.half_gain = 0.99;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  cluster_.lossy_extra_s = 0.6;
  Apply(kTwoCodecs);
  cluster_.Connect(*plane_);
  TrainUntil("fp16", 60);
  cluster_.nack = true;
  for (int i = 0; i < 10; ++i) cluster_.Step();
  ASSERT_EQ(cluster_.ActiveCodec(), "fp16");
  cluster_.nack = false;
  EXPECT_LT(TrainUntil("identity", 120), 60);
  EXPECT_EQ(PlansNewestFirst()[0].facts().rule(), v1::DECISION_RULE_PROMISE_BROKEN);
}

TEST_F(PromiseTest, AnotherNetworkForgets) {
  cluster_.half_gain = 0.99;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  cluster_.lossy_extra_s = 0.6;
  Apply(kTwoCodecs);
  cluster_.Connect(*plane_);
  TrainUntil("fp16", 60);
  StepsOf("fp16");
  cluster_.lossy_extra_s = 0;
  cluster_.network.bandwidth_bytes_per_s = 5e6;
  EXPECT_LT(TrainUntil("fp16", 120), 40) << "it need not wait";
}

TEST_F(PromiseTest, ANetworkThatGetsSlowerAfterASwitchBreaksNoPromise) {
  cluster_.half_gain = 0.99;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  Apply(kTwoCodecs);
  cluster_.Connect(*plane_);
  TrainUntil("fp16", 60);
  cluster_.network.bandwidth_bytes_per_s = 4e6;
  for (int i = 0; i < 100; ++i) cluster_.Step();
  for (const v1::Decision& decision : PlansNewestFirst()) {
    EXPECT_NE(decision.facts().rule(), v1::DECISION_RULE_PROMISE_BROKEN) << decision.reason();
  }
  EXPECT_EQ(cluster_.ActiveCodec(), "fp16");
}

}  // namespace
}  // namespace weir
