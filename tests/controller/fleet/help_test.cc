// SPDX-License-Identifier: Apache-2.0
// Whether a job's plans help: what losses say of progress, dense steps now and then, and what
// becomes of plans that cost time or quality.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

class HelpTest : public FleetFixture {
 protected:
  int PlansFor(const std::string& trigger) {
    const auto plans = PlansNewestFirst();
    return static_cast<int>(std::count_if(plans.begin(), plans.end(), [&](const auto& decision) {
      return decision.trigger() == trigger;
    }));
  }
  /// Decisions whose note begins like that.
  int NotesOf(const std::string& begin) {
    v1::ListDecisionsRequest request;
    request.set_page_size(500);
    v1::ListDecisionsResponse all;
    EXPECT_TRUE(plane_->admin.ListDecisions(request, &all).ok());
    return static_cast<int>(
        std::count_if(all.decisions().begin(), all.decisions().end(),
                      [&](const auto& decision) { return decision.note().rfind(begin, 0) == 0; }));
  }
  /// Trains for so long; the share of it that dense steps took after the first plan.
  void Train(double seconds) {
    const TimePoint end = clock_.Now() + FromSeconds(seconds);
    while (clock_.Now() < end && !HasFatalFailure()) {
      const bool planned = cluster_.active().version() != 0;
      const bool dense = cluster_.ActiveCodec() == "identity";
      const double step_s = cluster_.Step();
      total_s_ += step_s;
      if (planned && dense) dense_s_ += step_s;
      worst_share_ = std::max(worst_share_, dense_s_ / total_s_);
    }
  }
  void ExpectReplays() {
    for (const v1::Decision& decision : PlansNewestFirst()) {
      v1::ReplayRequest again;
      again.set_id(decision.id());
      v1::ReplayResponse answer;
      ASSERT_TRUE(plane_->admin.Replay(again, &answer).ok());
      EXPECT_TRUE(answer.identical()) << decision.id() << " " << decision.trigger();
    }
  }

  double total_s_ = 0, dense_s_ = 0, worst_share_ = 0;
};

TEST_F(HelpTest, AFewDenseStepsMeasureWhatAPlanSavesWithinTheirBudget) {
  // Half of the time of dense, at a gain of 0.7.
  cluster_.half_gain = 0.7;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  Apply("name: p\njobs: ['*']\nbounds: {codecs: [identity, fp16]}\n");
  cluster_.Connect(*plane_);
  Train(3600);
  EXPECT_EQ(cluster_.ActiveCodec(), "fp16");
  const v1::Job job = Job();
  EXPECT_GE(PlansFor("dense_check"), 2) << "there and back";
  EXPECT_LE(worst_share_, 0.005);
  EXPECT_NEAR(job.benefit().dense_checks_share(), dense_s_ / total_s_, 0.002);
  EXPECT_EQ(job.benefit().basis(), v1::BENEFIT_BASIS_MEASURED);
  EXPECT_EQ(job.benefit().verdict(), v1::BENEFIT_VERDICT_SAVES);
  EXPECT_GT(job.benefit().saved_share(), 0.2);
  EXPECT_LT(job.benefit().saved_share(), 0.55);
  EXPECT_THAT(job.benefit().text(), testing::StartsWith("saves "));
  EXPECT_THAT(plane_->admin.MetricsText({}), testing::HasSubstr("weir_job_saved_time_ratio{"));
  ExpectReplays();
}

TEST_F(HelpTest, APolicyMayForbidDenseSteps) {
  cluster_.half_gain = 0.7;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  Apply(
      "name: p\njobs: ['*']\nbounds: {codecs: [identity, fp16]}\nswitching: {dense_checks: "
      "never}\n");
  cluster_.Connect(*plane_);
  Train(1800);
  EXPECT_EQ(PlansFor("dense_check"), 0);
  EXPECT_EQ(dense_s_, 0);
}

TEST_F(HelpTest, DenseIsNotTriedWhereItIsHopeless) {
  cluster_.network.bandwidth_bytes_per_s = 2e6;
  cluster_.Connect(*plane_);
  Train(3600);
  EXPECT_EQ(cluster_.ActiveCodec(), "top_k");
  EXPECT_EQ(PlansFor("dense_check"), 0);
  EXPECT_EQ(Job().benefit().verdict(), v1::BENEFIT_VERDICT_SAVES);
  EXPECT_GT(Job().benefit().saved_share_low(), 0.5);
}

TEST_F(HelpTest, APlanThatCostsIsLeftAndNotTriedAgainForAWhile) {
  cluster_.half_gain = 0.99;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  Apply("name: p\njobs: ['*']\nbounds: {codecs: [identity, fp16]}\n");
  cluster_.Connect(*plane_);
  Train(60);
  cluster_.lossy_extra_s = 0.6;  // dense takes 0.82 s, fp16 1.0 s with it
  const TimePoint end = clock_.Now() + std::chrono::hours(3);
  while (NotesOf("the plan costs ") == 0 && clock_.Now() < end) Train(5);
  ASSERT_EQ(NotesOf("the plan costs "), 1);
  Train(30);
  const double dense_s = dense_s_;
  Train(60);
  EXPECT_GT(dense_s_ - dense_s, 59) << "held for two minutes";
  EXPECT_EQ(Job().benefit().basis(), v1::BENEFIT_BASIS_MEASURED);
}

TEST_F(HelpTest, LossesTeachTheExponentAndTheIntervalNarrows) {
  cluster_.progress = [](double gain) { return std::pow(gain, 0.4); };
  cluster_.Connect(*plane_);
  Train(20);
  const v1::Progress before = Job().progress();
  for (int i = 0; i < 6; ++i) {
    cluster_.network.bandwidth_bytes_per_s = i % 2 == 0 ? 3e6 : 60e6;
    for (int step = 0; step < 150; ++step) cluster_.Step();
  }
  const v1::Progress after = Job().progress();
  EXPECT_GT(after.losses(), 800u);
  EXPECT_LE(after.exponent_low(), 0.45);
  EXPECT_LT(after.exponent_high(), 0.9);
  EXPECT_LT(after.exponent_high() - after.exponent_low(),
            before.exponent_high() - before.exponent_low());
  ExpectReplays();
}

TEST_F(HelpTest, LossesBehindTheCurveBringTheNextGentlerPlan) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  Apply("name: p\njobs: ['*']\nswitching: {loss_tolerance: 0.05, loss_patience_steps: 30}\n");
  cluster_.Connect(*plane_);
  for (int step = 0; step < 200; ++step) cluster_.Step();
  ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  cluster_.lossy_damage = 0.01;
  for (int step = 0; step < 400 && PlansFor("loss") == 0; ++step) cluster_.Step();
  ASSERT_EQ(PlansFor("loss"), 1);
  const auto plans = PlansNewestFirst();
  const auto gentler = std::find_if(plans.begin(), plans.end(),
                                    [](const auto& one) { return one.trigger() == "loss"; });
  ASSERT_EQ(gentler->changes_size(), 1);
  EXPECT_EQ(gentler->changes(0).of(), v1::Change::OF_LOSS);
  EXPECT_GT(gentler->changes(0).after(), 1.05 * gentler->changes(0).before());
  EXPECT_GT(gentler->facts().chosen().gain(), gentler->facts().incumbent().gain() + 0.1);
  EXPECT_THAT(gentler->reason(), testing::HasSubstr("where the fitted curve has"));
  ExpectReplays();
}

}  // namespace
}  // namespace weir
