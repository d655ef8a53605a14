// SPDX-License-Identifier: Apache-2.0
// Changes that failed lately, and the plan that comes back for one that broke its promise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/model/held_change.h"
#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

const ChoiceModel kLossless{"identity", "ring", 1, 0};
const ChoiceModel kHalved{"fp16", "ring", 1, 0};

/// Dense runs on a slow network: everything calls for compression.
Snapshot OnSlowLinks() {
  Snapshot snapshot = test::MakeSnapshot(4, 2e-4, 6e6, 2);
  snapshot.incumbent = PlanModel(2, kLossless);
  return snapshot;
}

Decision DecideOn(const Snapshot& snapshot) {
  const auto decision = Decide(snapshot, {});
  EXPECT_TRUE(decision.ok()) << ToString(decision.status());
  return decision.ok() ? *decision : Decision{};
}

TEST(HeldTest, AChangeLikeAFailedOneIsNotMadeButAnotherIs) {
  Snapshot snapshot = OnSlowLinks();
  const Decision free = DecideOn(snapshot);
  ASSERT_TRUE(free.switched);
  const PlanLayout even;
  const auto change_to = [&](const Decision& decision) {
    return DescribeChange(snapshot.buckets, {snapshot.incumbent, even},
                          {decision.chosen.choices, even});
  };
  HeldChange failed = change_to(free);
  failed.failures = 2;
  failed.held_s = 90;
  snapshot.held = {failed};
  const Decision other = DecideOn(snapshot);
  EXPECT_TRUE(other.switched) << ReasonText(other.facts);
  EXPECT_FALSE(IsAlike(change_to(other), failed)) << other.chosen.label;
  // Everything that it could be failed: what runs stays, and the record says why.
  for (int i = 0; i < 100 && DecideOn(snapshot).switched; ++i) {
    snapshot.held.push_back(change_to(DecideOn(snapshot)));
    snapshot.held.back().held_s = 90;
  }
  const Decision stays = DecideOn(snapshot);
  EXPECT_FALSE(stays.switched);
  EXPECT_EQ(stays.facts.rule, DecisionRule::kHeld);
  EXPECT_EQ(stays.facts.failures, 2);
  EXPECT_EQ(stays.facts.held_s, 90);
  EXPECT_THAT(ReasonText(stays.facts),
              testing::HasSubstr("failed 2 times and is not made again for 90 s"));
}

TEST(HeldTest, AHeldChangeDoesNotForceThePlanThatRunsToEnd) {
  Snapshot snapshot = OnSlowLinks();
  snapshot.incumbent = DecideOn(snapshot).chosen.choices;
  snapshot.held = {{.to = snapshot.incumbent[0], .failures = 1, .held_s = 60}};
  EXPECT_FALSE(DecideOn(snapshot).switched);
}

TEST(HeldTest, ThePlanBeforeABrokenPromiseComesBackWhateverIsPredicted) {
  Snapshot snapshot = OnSlowLinks();
  const PlanModel best = DecideOn(snapshot).chosen.choices;
  snapshot.incumbent = best;
  snapshot.former = {{PlanModel(2, kHalved), {}, {}, {}}};
  snapshot.held = {{.to = best[0], .failures = 3, .held_s = 240}};
  const Decision back = DecideOn(snapshot);
  EXPECT_TRUE(back.switched);
  EXPECT_EQ(back.chosen.choices, PlanModel(2, kHalved));
  EXPECT_EQ(back.facts.rule, DecisionRule::kPromiseBroken);
  EXPECT_EQ(back.facts.failures, 3);
  EXPECT_GT(back.chosen.objective, back.incumbent.objective) << "measurement has the last word";
  const auto again = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(DecideOn(*again).digest, back.digest);
  snapshot.former = {FormerPlan{}};
  EXPECT_TRUE(DecideOn(snapshot).chosen.dense) << "nothing ran before";
  Policy policy;
  policy.codecs = {"top_k", "identity"};
  snapshot.former = {{PlanModel(2, kHalved), {}, {}, {}}};
  EXPECT_TRUE(Decide(snapshot, policy)->chosen.dense) << "what ran before is not allowed any more";
  snapshot.former[0].choices.pop_back();
  EXPECT_EQ(Decide(snapshot, {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
