// SPDX-License-Identifier: Apache-2.0
// The controller lets ranks synchronise as rarely as their network asks for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

constexpr double kMegabit = 125e3;
constexpr char kRarely[] = "name: p\njobs: ['*']\nsync: {every_max: 500}\n";

class LocalStepsFleetTest : public FleetFixture {
 protected:
  void Start(double megabits) {
    cluster_.local_steps = true;
    cluster_.network.bandwidth_bytes_per_s = megabits * kMegabit;
    cluster_.network.latency_s = 2e-4;
    cluster_.Connect(*plane_);
  }
  uint32_t Every() const { return std::max(1u, cluster_.active().sync().every()); }
  /// Steps of sessions until `done`, at most `most`.
  template <typename Done>
  int StepsUntil(int most, const Done& done) {
    int steps = 0;
    while (!done() && steps < most) {
      cluster_.Step();
      ++steps;
    }
    EXPECT_TRUE(done()) << "every " << Every() << " steps after " << steps;
    return steps;
  }
};

TEST_F(LocalStepsFleetTest, ThePeriodFollowsTheNetworkBothWays) {
  Apply(kRarely);
  Start(20);
  StepsUntil(100, [&] { return Every() >= 8; });
  for (int i = 0; i < 20; ++i) cluster_.Step();
  const uint32_t slow = Every();
  const v1::Job job = Job();
  EXPECT_LT(job.step_s(), 0.3) << "of one step of the optimiser; a synchronisation takes seconds";
  // Half of the movement, and what the codec leaves for later is no lack of agreement.
  EXPECT_GT(job.progress().signal_share(), 0.45);
  EXPECT_LT(job.progress().signal_share(), 0.75);
  EXPECT_GT(job.progress().sync_cost_deviation(), 0.01);
  cluster_.network.bandwidth_bytes_per_s = 40000 * kMegabit;
  StepsUntil(40, [&] { return Every() == 1; });
  cluster_.network.bandwidth_bytes_per_s = 20 * kMegabit;
  StepsUntil(200, [&] { return Every() >= slow / 4; });
  for (const v1::Decision& decision : PlansNewestFirst()) {
    v1::ReplayRequest again;
    again.set_id(decision.id());
    v1::ReplayResponse answer;
    ASSERT_TRUE(plane_->admin.Replay(again, &answer).ok());
    EXPECT_TRUE(answer.identical()) << decision.reason();
  }
}

TEST_F(LocalStepsFleetTest, NobodyGetsThemWhoHasNotAsked) {
  Start(20);
  for (int i = 0; i < 60; ++i) cluster_.Step();
  EXPECT_GT(cluster_.active().version(), 0u);
  EXPECT_FALSE(cluster_.active().has_sync());
}

TEST_F(LocalStepsFleetTest, OneRankThatCannotIsNamedAndAllSynchroniseInEveryStep) {
  cluster_.every_step_rank = 2;
  Apply(kRarely);
  Start(20);
  for (int i = 0; i < 60; ++i) cluster_.Step();
  EXPECT_EQ(Every(), 1u);
  v1::ExplainRequest request;
  request.set_job("lm");
  v1::Explanation explanation;
  ASSERT_TRUE(plane_->admin.Explain(request, &explanation).ok());
  EXPECT_THAT(explanation.text(), HasSubstr("rank 2 was attached without an optimizer"));
}

TEST_F(LocalStepsFleetTest, ExplainSaysWhatTheyCostAndSave) {
  Apply(kRarely);
  Start(20);
  StepsUntil(100, [&] { return Every() >= 8; });
  v1::ExplainRequest request;
  request.set_job("lm");
  v1::Explanation explanation;
  ASSERT_TRUE(plane_->admin.Explain(request, &explanation).ok());
  EXPECT_THAT(explanation.text(), HasSubstr("Local steps: every "));
  EXPECT_THAT(explanation.text(), HasSubstr("of progress"));
  EXPECT_EQ(explanation.decision().facts().local().sync().every(), Every());
}

TEST_F(LocalStepsFleetTest, ANewPolicyEndsThem) {
  Apply(kRarely);
  Start(20);
  StepsUntil(100, [&] { return Every() >= 8; });
  Apply("name: p\njobs: ['*']\n");
  StepsUntil(20, [&] { return Every() == 1; });
  EXPECT_THAT(PlansNewestFirst()[0].reason(), HasSubstr("sync.every_max 1"));
}

TEST_F(LocalStepsFleetTest, WhatTheyCostOutlivesTheController) {
  Apply(kRarely);
  Start(20);
  StepsUntil(100, [&] { return Every() >= 8; });
  const double believed = Job().progress().sync_cost_deviation();
  for (int i = 0; i < 300; ++i) cluster_.Step();
  clock_.Advance(std::chrono::minutes(1));
  cluster_.Step();  // and it is saved
  const double learnt = Job().progress().sync_cost_deviation();
  ASSERT_LT(learnt, 0.9 * believed);
  const uint32_t every = Every();
  plane_.reset();  // as kill -9: only what the store holds remains
  plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
  ASSERT_TRUE(plane_->Recover().ok());
  cluster_.Connect(*plane_);
  cluster_.Step();
  EXPECT_NEAR(Job().progress().sync_cost_deviation(), learnt, 0.1 * learnt);
  EXPECT_EQ(Every(), every);
}

}  // namespace
}  // namespace weir
