// SPDX-License-Identifier: Apache-2.0
// Decisions about collectives that need an aggregator's slots.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/lossless.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

constexpr double kMegabit = 1e6 / 8;

Snapshot WithSwitch(int world, double latency_s, double bandwidth) {
  Snapshot snapshot = test::MakeSnapshot(world, latency_s, bandwidth, 4);
  CollectiveModel through = test::Collective("switchml", "lanes");
  through.latency.constant = 2;
  through.latency.log2_n = 2;
  through.payload.constant = 1;
  through.needs_lease = through.lease_available = true;
  snapshot.collectives.push_back(through);
  return snapshot;
}

TEST(LeaseTest, PaysOnASlowNetworkAndDoesNotCountAsDense) {
  const Decision decision = test::Lossless(WithSwitch(8, 2e-4, 1000 * kMegabit));
  EXPECT_EQ(decision.chosen.label, "dense over switchml");
  EXPECT_FALSE(decision.chosen.dense) << "ranks alone could not run it";
  EXPECT_NE(decision.dense.choices[0].collective, "switchml");
  EXPECT_LT(decision.chosen.step_s, decision.dense.step_s);
  EXPECT_EQ(decision.chosen.gain, 1);
}

TEST(LeaseTest, DoesNotPayWhereTheNetworkIsHidden) {
  const Decision decision = test::Lossless(WithSwitch(8, 2e-5, 12.5e9));
  EXPECT_TRUE(decision.chosen.dense) << ReasonText(decision.facts);
}

TEST(LeaseTest, WithoutALeaseTheReasonIsGiven) {
  Snapshot snapshot = WithSwitch(8, 2e-4, 1000 * kMegabit);
  snapshot.collectives.back().lease_available = false;
  snapshot.collectives.back().lease_why_not = "switchml: no aggregator has 64 free slots";
  const Decision decision = test::Lossless(snapshot);
  EXPECT_TRUE(decision.chosen.dense);
  EXPECT_EQ(decision.facts.binding_constraint, "switchml: no aggregator has 64 free slots");
  bool told = false;
  for (const CandidatePlan& candidate : decision.top) {
    if (candidate.choices[0].collective != "switchml") continue;
    EXPECT_FALSE(candidate.feasible);
    const bool listed = candidate.choices[0].codec == "identity";
    told |= listed;
    EXPECT_EQ(candidate.excluded_by, listed ? snapshot.collectives.back().lease_why_not : "codecs");
  }
  EXPECT_TRUE(told);
  snapshot.collectives.back().lease_why_not.clear();
  EXPECT_EQ(test::Lossless(snapshot).facts.binding_constraint,
            "switchml: no aggregator is registered");
}

TEST(LeaseTest, ACollectiveExcludedByThePolicyDoesNotAskForALease) {
  Snapshot snapshot = WithSwitch(8, 2e-4, 1000 * kMegabit);
  snapshot.collectives.back().lease_available = false;
  CollectiveModel other = snapshot.collectives.back();
  other.name = "omnireduce";
  other.payload.constant = 0.5;  // better, if it were allowed
  snapshot.collectives.push_back(other);
  Policy policy;
  policy.codecs = {"identity"};
  policy.collectives = {"ring", "switchml"};
  const auto decision = Decide(snapshot, policy);
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision->facts.binding_constraint, "switchml: no aggregator is registered");
  bool told = false;
  for (const CandidatePlan& candidate : decision->top) {
    const ChoiceModel& choice = candidate.choices[0];
    if (choice.collective == "omnireduce") {
      EXPECT_THAT(candidate.excluded_by, testing::AnyOf("collectives", "codecs"));
    } else if (choice.collective == "switchml" && choice.codec == "identity") {
      told = true;
      EXPECT_EQ(candidate.excluded_by, "switchml: no aggregator is registered");
    }
  }
  EXPECT_TRUE(told) << "operators who run aggregators see why not";
  // If no bound excludes a candidate from the lists, the list is the constraint.
  policy.collectives = {"ring"};
  const auto listed = Decide(snapshot, policy);
  ASSERT_TRUE(listed.ok());
  EXPECT_THAT(listed->facts.binding_constraint, testing::AnyOf("collectives", "codecs"));
}

TEST(LeaseTest, ARunningPlanThatLostItsLeaseIsLeftAtOnce) {
  Snapshot snapshot = WithSwitch(8, 2e-4, 1000 * kMegabit);
  snapshot.incumbent.assign(snapshot.buckets.size(), {"identity", "switchml", 1, 0});
  snapshot.seconds_since_switch = 0.1;  // dwell does not hold it
  snapshot.measured_step_s = 0.2;
  EXPECT_FALSE(test::Lossless(snapshot).switched);
  snapshot.collectives.back().lease_available = false;
  snapshot.collectives.back().lease_why_not = "switchml: offload failed on rank 2";
  const Decision decision = test::Lossless(snapshot);
  EXPECT_TRUE(decision.switched);
  EXPECT_TRUE(decision.chosen.dense);
  EXPECT_THAT(ReasonText(decision.facts),
              HasSubstr("the running plan is excluded by switchml: offload failed"));
}

TEST(LeaseTest, PredictionsRespectTheAggregatorsGoodput) {
  Snapshot snapshot = WithSwitch(8, 2e-4, 1000 * kMegabit);
  const double free_s = test::Lossless(snapshot).chosen.step_s;
  snapshot.collectives.back().bandwidth_max_bytes_per_s = 900 * kMegabit;
  const Decision near = test::Lossless(snapshot);
  EXPECT_EQ(near.chosen.label, "dense over switchml");
  EXPECT_GT(near.chosen.step_s, free_s);
  snapshot.collectives.back().bandwidth_max_bytes_per_s = 200 * kMegabit;
  const Decision slow = test::Lossless(snapshot);
  EXPECT_TRUE(slow.chosen.dense) << ReasonText(slow.facts);
  const auto found = std::find_if(slow.top.begin(), slow.top.end(), [](const auto& candidate) {
    return candidate.label == "dense over switchml";
  });
  ASSERT_NE(found, slow.top.end());
  EXPECT_EQ(found->excluded_by, "never slower than dense");
}

TEST(LeaseTest, PoliciesMayExcludeItAndPinsCannotForceIt) {
  Snapshot snapshot = WithSwitch(8, 2e-4, 1000 * kMegabit);
  Policy policy;
  policy.codecs = {"identity"};
  policy.collectives = {"ring", "tree"};
  const auto allowed = Decide(snapshot, policy);
  ASSERT_TRUE(allowed.ok());
  EXPECT_NE(allowed->chosen.choices[0].collective, "switchml");
  policy.collectives = {"switchml"};
  ASSERT_TRUE(Decide(snapshot, policy).ok());
  snapshot.collectives.back().lease_available = false;
  const auto forced = Decide(snapshot, policy);
  EXPECT_EQ(forced.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(forced.status()), HasSubstr("switchml: no aggregator is registered"));
}

TEST(LeaseTest, SnapshotsKeepEveryField) {
  Snapshot snapshot = WithSwitch(8, 2e-4, 1000 * kMegabit);
  snapshot.collectives.back().lease_available = false;
  snapshot.collectives.back().lease_why_not = "switchml: why";
  snapshot.collectives.back().bandwidth_max_bytes_per_s = 123.5;
  const auto again = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, snapshot);
}

}  // namespace
}  // namespace weir
