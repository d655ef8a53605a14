// SPDX-License-Identifier: Apache-2.0
// Decisions about the order of a ring.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/lossless.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Four ranks on nodes of their own; between 1 and 2 a link of a tenth of the others' rate, which
/// is what the ring in ascending order gets.
Snapshot WithSlowPair() {
  constexpr double kSlow = 2e7, kFast = 2e8;
  Snapshot snapshot = test::MakeSnapshot(4, 2e-4, kSlow, 4);
  for (CollectiveModel& collective : snapshot.collectives) {
    collective.uses_ring_order = collective.name == "ring";
  }
  snapshot.node_links.nodes = {0, 1, 2, 3};
  snapshot.node_links.s_per_byte.assign(16, 1 / kFast);
  for (const int at : {6, 9}) snapshot.node_links.s_per_byte[static_cast<size_t>(at)] = 1 / kSlow;
  for (const int at : {0, 5, 10, 15}) snapshot.node_links.s_per_byte[static_cast<size_t>(at)] = 0;
  snapshot.measured_step_s = 1;
  return snapshot;
}

PlanModel Everywhere(const Snapshot& snapshot, const ChoiceModel& choice) {
  return PlanModel(snapshot.buckets.size(), choice);
}

const ChoiceModel kDenseRing = {"identity", "ring", 1, 0, 0};

TEST(RingDecisionTest, AnOrderIsASwitchThatIsExplained) {
  Snapshot snapshot = WithSlowPair();
  snapshot.incumbent = Everywhere(snapshot, kDenseRing);
  const Decision decision = test::Lossless(snapshot);
  EXPECT_TRUE(decision.switched) << ReasonText(decision.facts);
  EXPECT_EQ(decision.chosen.layout.ring_order, (std::vector{0, 1, 3, 2}));
  EXPECT_EQ(decision.chosen.label, "dense over ring (ring 0 1 3 2)");
  EXPECT_EQ(decision.incumbent.label, "dense over ring");
  EXPECT_TRUE(decision.incumbent.layout.ring_order.empty());
  // Three quarters of 20 MB a tenth as long.
  EXPECT_LT(decision.chosen.communication_s, 0.2 * decision.incumbent.communication_s);
  EXPECT_THAT(RingText(decision.facts.ring),
              HasSubstr("the ring goes 0 1 3 2: its slowest link gives 1.6 Gb/s"));
  EXPECT_THAT(ReasonText(decision.facts), HasSubstr("160 Mb/s from rank 1 to rank 2"));
}

TEST(RingDecisionTest, TheActiveOrderStaysAndIsUsedForPredictions) {
  Snapshot snapshot = WithSlowPair();
  snapshot.incumbent = Everywhere(snapshot, kDenseRing);
  snapshot.layout.ring_order = {0, 2, 3, 1};
  snapshot.speedup.ring = 10;
  const Decision decision = test::Lossless(snapshot);
  EXPECT_FALSE(decision.switched) << ReasonText(decision.facts);
  EXPECT_EQ(decision.chosen.layout.ring_order, snapshot.layout.ring_order);
  EXPECT_THAT(ReasonText(decision.facts), HasSubstr("no candidate is predicted to be better"));
  snapshot.layout.ring_order.clear();
  snapshot.speedup.ring = 1;
  EXPECT_NEAR(test::Lossless(snapshot).chosen.communication_s, decision.chosen.communication_s,
              1e-9);
}

TEST(RingDecisionTest, DwellHoldsForOrdersToo) {
  Snapshot snapshot = WithSlowPair();
  snapshot.incumbent = Everywhere(snapshot, kDenseRing);
  snapshot.seconds_since_switch = 0.1;
  const Decision decision = test::Lossless(snapshot);
  EXPECT_FALSE(decision.switched) << ReasonText(decision.facts);
  EXPECT_TRUE(decision.chosen.layout.ring_order.empty());
  EXPECT_THAT(ReasonText(decision.facts), HasSubstr("must pass before"));
  EXPECT_TRUE(RingText(decision.facts.ring).empty());
}

TEST(RingDecisionTest, WithoutARingThereIsNoOrder) {
  Snapshot snapshot = WithSlowPair();
  for (CollectiveModel& collective : snapshot.collectives) collective.uses_ring_order = false;
  snapshot.incumbent = Everywhere(snapshot, kDenseRing);
  const Decision decision = test::Lossless(snapshot);
  EXPECT_TRUE(decision.chosen.layout.ring_order.empty());
  for (const CandidatePlan& candidate : decision.top) {
    EXPECT_THAT(candidate.label, Not(HasSubstr("(ring")));
  }
}

TEST(RingDecisionTest, ReplaysToTheSameDigest) {
  Snapshot snapshot = WithSlowPair();
  snapshot.incumbent = Everywhere(snapshot, kDenseRing);
  const auto again = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, snapshot);
  EXPECT_EQ(test::Lossless(*again).digest, test::Lossless(snapshot).digest);
  Snapshot broken = snapshot;
  broken.layout.ring_order = {0, 1};
  EXPECT_EQ(Decide(broken, Policy{}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
