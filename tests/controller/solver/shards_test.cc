// SPDX-License-Identifier: Apache-2.0
// Decisions about the shares of shards.

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

/// Four ranks on hosts of their own, of which rank 3's has a tenth of the others' 200 MB/s.
Snapshot WithSlowRank() {
  Snapshot snapshot = test::MakeSnapshot(4, 2e-4, 2e7, 4);
  CollectiveModel mesh = snapshot.collectives[0];
  mesh.name = "mesh";
  mesh.latency = {};
  mesh.latency.constant = 2;
  mesh.shard_segment_bytes = 1 << 14;
  snapshot.collectives.push_back(mesh);
  snapshot.node_links.nodes = {0, 1, 2, 3};
  for (int at = 0; at < 16; ++at) {
    const bool slow = at / 4 == 3 || at % 4 == 3;
    snapshot.node_links.s_per_byte.push_back(at % 5 == 0 ? 0 : slow ? 5e-8 : 5e-9);
  }
  snapshot.measured_step_s = 1;
  return snapshot;
}

Decision DecideOnMesh(Snapshot snapshot) {
  snapshot.incumbent = PlanModel(snapshot.buckets.size(), {"identity", "mesh", 1, 0, 0});
  return test::Lossless(snapshot);
}

TEST(ShardDecisionTest, SharesAreASwitchThatIsExplained) {
  const Decision decision = DecideOnMesh(WithSlowRank());
  EXPECT_TRUE(decision.switched) << ReasonText(decision.facts);
  ASSERT_EQ(decision.chosen.layout.shard_shares.size(), 4u);
  EXPECT_EQ(decision.chosen.label, "dense over mesh (shards 33 33 33 0 %)");
  EXPECT_EQ(decision.incumbent.label, "dense over mesh");
  EXPECT_TRUE(decision.incumbent.layout.shard_shares.empty());
  EXPECT_LT(decision.chosen.communication_s, 0.75 * decision.incumbent.communication_s);
  EXPECT_THAT(ShardText(decision.facts.shards),
              HasSubstr("rank 3 owns least, its fastest link gives 160 Mb/s"));
  EXPECT_THAT(ReasonText(decision.facts), HasSubstr(ShardText(decision.facts.shards)));
}

TEST(ShardDecisionTest, ActiveSharesStayAndAreUsedForPredictions) {
  Snapshot snapshot = WithSlowRank();
  const Decision first = DecideOnMesh(snapshot);
  snapshot.layout = first.chosen.layout;
  snapshot.speedup.shards =
      first.incumbent.communication_s / first.chosen.communication_s;  // about what it gains
  const Decision decision = DecideOnMesh(snapshot);
  EXPECT_FALSE(decision.switched) << ReasonText(decision.facts);
  EXPECT_EQ(decision.chosen.layout, first.chosen.layout);
  EXPECT_NEAR(decision.chosen.communication_s, first.chosen.communication_s,
              0.02 * first.chosen.communication_s);
  EXPECT_FALSE(decision.facts.shards.shares.empty());
}

TEST(ShardDecisionTest, EqualLinksAndOtherCollectivesHaveNoShares) {
  Snapshot snapshot = WithSlowRank();
  for (double& cost : snapshot.node_links.s_per_byte) cost = cost > 0 ? 5e-8 : 0;
  const Decision equal = DecideOnMesh(snapshot);
  EXPECT_TRUE(equal.chosen.layout.shard_shares.empty());
  EXPECT_TRUE(equal.facts.shards.shares.empty());
  for (const CandidatePlan& candidate : equal.top) {
    EXPECT_THAT(candidate.label, Not(HasSubstr("(shards")));
  }
  for (const CandidatePlan& candidate : DecideOnMesh(WithSlowRank()).top) {
    const bool mesh = candidate.choices[0].collective == "mesh";
    if (mesh) continue;
    EXPECT_TRUE(candidate.layout.shard_shares.empty()) << candidate.label;
  }
}

TEST(ShardDecisionTest, ReplaysToTheSameDigest) {
  Snapshot snapshot = WithSlowRank();
  snapshot.layout.shard_shares = {0, 0, kShareUnits, 0};
  snapshot.speedup.shards = 0.5;
  const auto again = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, snapshot);
  EXPECT_EQ(DecideOnMesh(*again).digest, DecideOnMesh(snapshot).digest);
  snapshot.layout.shard_shares = {0, 1, kShareUnits, 0};
  EXPECT_EQ(Decide(snapshot, Policy{}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
