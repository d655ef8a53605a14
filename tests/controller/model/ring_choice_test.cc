// SPDX-License-Identifier: Apache-2.0
// The choice of a ring's order, when a change is worth it, and its description.

#include "controller/model/ring_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

constexpr double kFastLink = 1e8, kSlow = 1e6;

/// One rank a node, links of kFastLink, but of `slow` in both directions of each pair.
Snapshot WithSlowPairs(int world, const std::vector<std::pair<int, int>>& pairs,
                       double slow = kSlow) {
  Snapshot snapshot = test::MakeSnapshot(world, 1e-4, slow);
  NodeLinks& links = snapshot.node_links;
  links.s_per_byte.assign(static_cast<size_t>(world * world), 1 / kFastLink);
  for (int rank = 0; rank < world; ++rank) {
    links.nodes.push_back(rank);
    links.s_per_byte[static_cast<size_t>(rank * world + rank)] = 0;
  }
  for (const auto& [a, b] : pairs) {
    links.s_per_byte[static_cast<size_t>(a * world + b)] = 1 / slow;
    links.s_per_byte[static_cast<size_t>(b * world + a)] = 1 / slow;
  }
  return snapshot;
}

TEST(RingChoiceTest, AvoidsASlowPair) {
  const Snapshot snapshot = WithSlowPairs(4, {{1, 2}});
  const RingChoice ring = ChooseRing(snapshot);
  EXPECT_EQ(ring.order, (std::vector{0, 1, 3, 2}));
  EXPECT_DOUBLE_EQ(ring.speedup, 100);
  EXPECT_DOUBLE_EQ(RingSecondsPerByte(snapshot.node_links, {}), 1 / kSlow);
  EXPECT_DOUBLE_EQ(RingSecondsPerByte(snapshot.node_links, ring.order), 1 / kFastLink);
  const std::string text = RingText(DescribeRing(snapshot, ring.order));
  EXPECT_THAT(text, HasSubstr("the ring goes 0 1 3 2: its slowest link gives 800 Mb/s"));
  EXPECT_THAT(text, HasSubstr("would use 8 Mb/s from rank 1 to rank 2"));
}

TEST(RingChoiceTest, KeepsTheOrderWhereNoneIsBetter) {
  // Equal links; a slow pair that is not used; a slow node, which every ring enters.
  for (const Snapshot& snapshot :
       {WithSlowPairs(4, {}), WithSlowPairs(4, {{0, 2}}), WithSlowPairs(3, {{0, 1}}),
        WithSlowPairs(4, {{0, 1}, {0, 2}, {0, 3}}), WithSlowPairs(2, {{0, 1}})}) {
    EXPECT_TRUE(ChooseRing(snapshot).order.empty());
    EXPECT_EQ(ChooseRing(snapshot).speedup, 1);
  }
}

TEST(RingChoiceTest, SmallOrUncertainDifferencesChangeNothing) {
  EXPECT_TRUE(ChooseRing(WithSlowPairs(4, {{1, 2}}, kFastLink / 1.1)).order.empty());
  Snapshot snapshot = WithSlowPairs(4, {{1, 2}}, kFastLink / 1.5);
  EXPECT_FALSE(ChooseRing(snapshot).order.empty());
  snapshot.node_links.relative_deviation = 0.3;
  EXPECT_TRUE(ChooseRing(snapshot).order.empty());
}

TEST(RingChoiceTest, AnIncumbentOrderStaysUntilAnotherIsClearlyBetter) {
  Snapshot snapshot = WithSlowPairs(4, {{1, 2}});
  snapshot.layout.ring_order = {0, 2, 3, 1};  // as good as the first one
  snapshot.speedup.ring = 100;
  EXPECT_EQ(ChooseRing(snapshot).order, snapshot.layout.ring_order);
  EXPECT_EQ(ChooseRing(snapshot).speedup, 100);
  snapshot.layout.ring_order = {0, 1, 2, 3};
  snapshot.speedup.ring = 1;
  EXPECT_EQ(ChooseRing(snapshot).order, (std::vector{0, 1, 3, 2}));
  // The avoided link is fast and the used one is not, so the order is ascending again.
  snapshot = WithSlowPairs(4, {{1, 3}});
  snapshot.layout.ring_order = {0, 1, 3, 2};
  snapshot.speedup.ring = 100;
  EXPECT_TRUE(ChooseRing(snapshot).order.empty());
  EXPECT_DOUBLE_EQ(ChooseRing(snapshot).speedup, 100 * 100);
}

TEST(RingChoiceTest, LinksThatNobodyMeasuredAttractNoOrder) {
  Snapshot snapshot = WithSlowPairs(4, {});
  std::vector<double>& costs = snapshot.node_links.s_per_byte;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      if (i != j) costs[i * 4 + j] = -1;
    }
  }
  EXPECT_TRUE(ChooseRing(snapshot).order.empty());
  EXPECT_EQ(RingSecondsPerByte(snapshot.node_links, {}), 0);
  costs[1 * 4 + 2] = 1 / kSlow;
  EXPECT_TRUE(ChooseRing(snapshot).order.empty());
  // The ways around it, once known.
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 3}, {3, 2}, {2, 0}}) {
    costs[static_cast<size_t>(a * 4 + b)] = 1 / kFastLink;
  }
  EXPECT_EQ(ChooseRing(snapshot).order, (std::vector{0, 1, 3, 2}));
}

TEST(RingChoiceTest, RanksOfANodeStayTogether) {
  Snapshot snapshot =
      WithSlowPairs(3, {{0, 1}});  // three nodes have two rings, each with all links
  snapshot.world = 6;
  snapshot.node_links.nodes = {0, 1, 2, 0, 1, 2};
  // 0 1 2 0 1 2 enters each node twice.
  const RingChoice ring = ChooseRing(snapshot);
  EXPECT_EQ(ring.order, (std::vector{0, 3, 1, 4, 2, 5}));
  EXPECT_DOUBLE_EQ(ring.speedup, 2);
}

TEST(RingChoiceTest, SnapshotsThatDoNotFitAreRefused) {
  EXPECT_TRUE(CheckRing(WithSlowPairs(4, {{1, 2}})).ok());
  Snapshot snapshot = WithSlowPairs(4, {});
  snapshot.layout.ring_order = {0, 1, 2, 2};
  EXPECT_THAT(Message(CheckRing(snapshot)), HasSubstr("ring_order: expected each of 4 ranks once"));
  snapshot = WithSlowPairs(4, {});
  snapshot.node_links.nodes[3] = 7;
  EXPECT_THAT(Message(CheckRing(snapshot)), HasSubstr("node_links"));
  snapshot = WithSlowPairs(4, {});
  snapshot.node_links.s_per_byte.pop_back();
  EXPECT_THAT(Message(CheckRing(snapshot)), HasSubstr("node_links"));
  snapshot = WithSlowPairs(4, {});
  snapshot.speedup.ring = 0;
  EXPECT_THAT(Message(CheckRing(snapshot)), HasSubstr("ring_speedup"));
}

TEST(RingChoiceTest, LongOrdersAreShownInPart) {
  std::vector<int> order(20);
  for (int i = 0; i < 20; ++i) order[static_cast<size_t>(i)] = i;
  EXPECT_EQ(OrderText(order), "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 ... of 20");
}

}  // namespace
}  // namespace weir
