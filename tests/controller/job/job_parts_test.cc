// SPDX-License-Identifier: Apache-2.0
// Parts of a job that depend on no other part.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "controller/job/decision_record.h"
#include "controller/job/job_plan.h"
#include "controller/job/plan_monitor.h"
#include "controller/job/step_series.h"

namespace weir {
namespace {

TEST(PlanMonitorTest, SlowTwiceInARowOnlyWhereDenseWouldBeFaster) {
  PlanMonitor monitor;
  StepObservation step;
  const auto observe = [&](uint64_t number, double seconds) {
    step.step = number;
    step.step_s = seconds;
    return monitor.OnStep(step, 0);
  };
  monitor.Begin(10, true, 0.1, 0.2);
  EXPECT_FALSE(observe(10, 9).has_value()) << "the switching step itself";
  EXPECT_FALSE(observe(11, 0.3).has_value());
  EXPECT_FALSE(observe(12, 0.1).has_value());
  EXPECT_FALSE(observe(13, 0.3).has_value());
  const auto found = observe(14, 0.3);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->reason, testing::HasSubstr("2 times in a row"));
  EXPECT_FALSE(found->unsafe) << "a wrong prediction is cured by a new decision";
  EXPECT_FALSE(observe(15, 0.3).has_value()) << "said once";
  monitor.Begin(20, true, 0.1, 0.5);
  EXPECT_FALSE(observe(21, 0.3).has_value());
  EXPECT_FALSE(observe(22, 0.3).has_value()) << "dense would be slower still";
  monitor.Begin(30, false, 0.1, 0.1);
  EXPECT_FALSE(observe(31, 1).has_value());
  EXPECT_FALSE(observe(32, 1).has_value()) << "dense has nothing to return to";
  monitor.Begin(40, true, 0.1, 0.2);
  monitor.ForgivePrediction();
  EXPECT_FALSE(observe(41, 1).has_value());
  EXPECT_FALSE(observe(42, 1).has_value());
}

TEST(PlanMonitorTest, NonFiniteStepsAndResidualBlowUp) {
  PlanMonitor monitor;
  StepObservation step;
  step.skipped = true;
  monitor.Begin(0, true, 0, 0);
  std::vector<bool> said;
  for (step.step = 1; step.step <= 3; ++step.step)
    said.push_back(monitor.OnStep(step, 0).has_value());
  EXPECT_THAT(said, testing::ElementsAre(false, false, true));
  step.skipped = false;
  step.buckets.resize(1);
  step.buckets[0].residual_ratio = 6;
  monitor.Begin(10, true, 0, 0);
  said.clear();
  for (step.step = 11; step.step <= 13; ++step.step)
    said.push_back(monitor.OnStep(step, 5).value_or(PlanMisbehaviour{}).unsafe);
  EXPECT_THAT(said, testing::ElementsAre(false, false, true));
}

TEST(StepSeriesTest, BoundedAndCorrectedByPredictions) {
  StepSeries series;
  for (uint64_t step = 1; step <= 2500; ++step) {
    StepPoint point;
    point.step = step;
    series.Add(point);
  }
  EXPECT_EQ(series.Points(0).size(), 2000u);
  EXPECT_EQ(series.Points(2500).size(), 1u);
  series.AddPredictions({{2499, "b", "ring", "identity", 1.1, 1.0},
                         {2499, "c", "ring", "identity", 0.6, 1.0},
                         {2500, "b", "ring", "identity", 1.2, 1.0},
                         {2500, "b", "ring", "identity", 1.0, 0.0}});
  EXPECT_NEAR(series.Points(2499)[0].predicted_network_s, 1.7, 1e-12);
  EXPECT_EQ(series.Points(2499)[0].measured_network_s, 2.0);
  EXPECT_NEAR(series.PredictionErrorMedian(), 0.2, 1e-12);
  EXPECT_EQ(series.predictions(), 3u);
}

TEST(JobPlanTest, DigestIgnoresVersionOnly) {
  const std::vector<BucketDefinition> buckets = {{"k0", 10, 0}, {"k1", 20, 1}};
  const PlanModel choices = {{"identity", "ring", 1, 0}, {"top_k", "sparse_all_gather", 0.01, 0}};
  const JobPlan one = MakePlan("j", 1, buckets, choices, {}, {});
  const JobPlan two = MakePlan("j", 2, buckets, choices, {}, {});
  EXPECT_EQ(one.digest, two.digest);
  EXPECT_EQ(one.digest.size(), 16u);
  PlanModel other = choices;
  other[1].ratio = 0.02;
  const PlanLayout ring = {{0, 2, 1}, {}}, shards = {{}, {0, 32768, 32768}};
  const JobPlan around = MakePlan("j", 1, buckets, choices, ring, {});
  const JobPlan shared = MakePlan("j", 1, buckets, choices, shards, {});
  EXPECT_NE(around.digest, one.digest);
  EXPECT_NE(shared.digest, one.digest);
  EXPECT_NE(MakePlan("j", 1, buckets, other, {}, {}).digest, one.digest);
  EXPECT_NE(MakePlan("j", 1, buckets, choices, {}, {"fp16", "ring", 1, 0}).digest, one.digest);
  EXPECT_EQ(ChoicesFor(one, buckets), choices);
  EXPECT_EQ(ChoicesFor(one, {{"k9", 1, 0}, {"k1", 20, 1}})[0], ChoiceModel{}) << "fallback";
}

TEST(DecisionRecordTest, DenseIsAlwaysAmongTheCandidates) {
  Decision decision;
  decision.chosen.choices = {{"top_k", "sparse_all_gather", 0.01, 0}};
  decision.chosen.label = "top_k";
  decision.chosen.objective = std::numeric_limits<double>::infinity();
  decision.dense.choices = {{"identity", "ring", 1, 0}};
  decision.dense.label = "identity";
  decision.dense.dense = true;
  decision.top = {decision.chosen};
  const DecisionRecord out = RecordOf(decision, 0);
  ASSERT_EQ(out.candidates.size(), 2u);
  EXPECT_TRUE(out.candidates[0].chosen);
  EXPECT_EQ(out.candidates[0].objective, 0) << "not finite must not reach JSON";
  EXPECT_TRUE(out.candidates[1].dense);
}

}  // namespace
}  // namespace weir
