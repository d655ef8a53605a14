// SPDX-License-Identifier: Apache-2.0
// Decisions about ranks that share nodes.

#include <gtest/gtest.h>

#include <algorithm>

#include "controller/solver/solver.h"
#include "tests/controller/support/lossless.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

/// Eight ranks with 10 MB each; half a millisecond, 100 MB/s; they may go by nodes, around a ring
/// or exchange with all at once.
Snapshot OnNodes(std::vector<int> nodes) {
  Snapshot snapshot = test::MakeSnapshot(static_cast<int>(nodes.size()), 5e-4, 1e8);
  CollectiveModel mesh = test::Collective("mesh", "lanes");
  mesh.latency.constant = 2;
  mesh.payload.n_minus_1_over_n = 2;
  mesh.reduce.n_minus_1_over_n = 1;
  mesh.all_pairs = true;
  snapshot.collectives.push_back(mesh);
  snapshot.collectives.push_back(test::ByNode());
  snapshot.memory.lowest_ranks = std::move(nodes);
  return snapshot;
}

std::string CollectiveOn(const Snapshot& snapshot) {
  const Decision decision = test::Lossless(snapshot);
  return decision.chosen.choices.empty() ? "" : decision.chosen.choices[0].collective;
}

TEST(NodesDecisionTest, SumsByNodesIfRanksShareThem) {
  EXPECT_EQ(CollectiveOn(OnNodes({0, 0, 0, 0, 1, 1, 1, 1})), "hierarchical");
  EXPECT_EQ(CollectiveOn(OnNodes({0, 0, 1, 1, 2, 2, 3, 3})), "hierarchical");
  EXPECT_EQ(CollectiveOn(OnNodes({0, 1, 2, 3, 4, 5, 6, 7})), "mesh");
  EXPECT_EQ(CollectiveOn(OnNodes({0, 0, 0, 0, 0, 0, 0, 0})), "mesh");
  Snapshot unknown = OnNodes({0, 0, 0, 0, 1, 1, 1, 1});
  unknown.memory = {};
  EXPECT_EQ(CollectiveOn(unknown), "mesh");
}

TEST(NodesDecisionTest, SumsWithoutNodesIfTheNetworkIsAsFast) {
  Snapshot snapshot = OnNodes({0, 0, 0, 0, 1, 1, 1, 1});
  snapshot.memory.latency_s = snapshot.latency_s.value;
  snapshot.memory.s_per_byte = 1 / snapshot.bandwidth_bytes_per_s.value;
  // Between all pairs each node's interface would carry 4 payloads, around the ring 1.75.
  EXPECT_EQ(CollectiveOn(snapshot), "ring");
}

TEST(NodesDecisionTest, PredictionsFollowTheLinksOfBothLevels) {
  Snapshot snapshot = OnNodes({0, 0, 0, 0, 1, 1, 1, 1});
  snapshot.memory.latency_s = 1e-5;
  snapshot.memory.s_per_byte = 1e-9;
  // Across: 2 latencies, 10 MB, half a quarter summed. Within: 4 latencies, 15 MB, 3/4 summed.
  // Besides, two passes of 0.75 ms over 2.5 M elements, each 10 us more.
  const double expected = 1.52e-3 + 1e-3 + 0.1 + 4e-5 + 0.015 + (0.125 + 0.75) * 2e-10 * 1e7;
  EXPECT_NEAR(test::Lossless(snapshot).chosen.communication_s, expected, 1e-6);
}

// Where every rank has a node of its own, a hierarchical collective does the same as a flat one.
TEST(NodesDecisionTest, SumsWithoutNodesIfEveryRankIsAlone) {
  const auto offered = [](const Snapshot& snapshot) {
    const Decision decision = test::Lossless(snapshot);
    return std::any_of(decision.top.begin(), decision.top.end(), [](const CandidatePlan& plan) {
      return plan.choices[0].collective == "hierarchical";
    });
  };
  EXPECT_TRUE(offered(OnNodes({0, 0, 1, 2, 3, 4, 5, 6})));
  EXPECT_FALSE(offered(OnNodes({0, 1, 2, 3, 4, 5, 6, 7})));
  Policy named;
  named.codecs = {"identity"};
  named.collectives = {"hierarchical"};
  const auto decision = Decide(OnNodes({0, 1, 2, 3, 4, 5, 6, 7}), named);
  ASSERT_TRUE(decision.ok()) << ToString(decision.status());
  EXPECT_EQ(decision->chosen.choices[0].collective, "hierarchical");
}

// With an interface for each rank few messages win; where four share one, 5.25 payloads leave a
// node around the circulant graph and 1.75 around the ring.
TEST(NodesDecisionTest, CountsWhatRanksOfANodeSendTogether) {
  Snapshot snapshot = OnNodes({0, 0, 0, 0, 4, 4, 4, 4});
  CollectiveModel halving = test::Collective("halving_doubling", "lanes");
  halving.latency.log2_n = halving.payload.n_minus_1_over_n = 2;
  halving.reduce.n_minus_1_over_n = 1;
  snapshot.collectives = {test::Collectives()[0], halving};
  EXPECT_EQ(CollectiveOn(snapshot), "halving_doubling");
  snapshot.collectives[1].payload_pattern = "circulant";
  EXPECT_EQ(CollectiveOn(snapshot), "ring");
  snapshot.memory = {};
  EXPECT_EQ(CollectiveOn(snapshot), "halving_doubling");
}

TEST(NodesDecisionTest, ReplaysToTheSameDigest) {
  Snapshot snapshot = OnNodes({0, 0, 0, 1, 1, 1, 2, 2});
  snapshot.collectives[1].payload_pattern = "trees";
  snapshot.collectives[3].index_pattern = "broadcast";
  const auto again = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, snapshot);
  EXPECT_EQ(test::Lossless(*again).digest, test::Lossless(snapshot).digest);
}

}  // namespace
}  // namespace weir
