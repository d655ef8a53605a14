// SPDX-License-Identifier: Apache-2.0
// The layout that a job runs on: its effect on predictions, and measurements that are ignored.

#include "controller/model/plan_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

/// Links of 100 MB/s between four nodes of a rank each, of 1 MB/s between `a` and all of `to`.
NodeLinks LinksWithSlow(int a, const std::vector<int>& to) {
  NodeLinks links;
  links.nodes = {0, 1, 2, 3};
  links.s_per_byte.assign(16, 1e-8);
  for (const int b : to) {
    links.s_per_byte[static_cast<size_t>(4 * a + b)] = 1e-6;
    links.s_per_byte[static_cast<size_t>(4 * b + a)] = 1e-6;
  }
  for (const size_t own : {0, 5, 10, 15}) links.s_per_byte[own] = 0;
  return links;
}

TEST(LayoutInUseTest, SpeedupFollowsTheOrderAndNothingIsLearntOfTheNetwork) {
  const NodeLinks links = LinksWithSlow(1, {2});
  LayoutInUse in_use;
  in_use.Turn({{0, 1, 3, 2}, {}}, 4, links, 0);
  EXPECT_DOUBLE_EQ(in_use.speedup.ring, 100);
  EXPECT_EQ(in_use.former_speedup.ring, 1);
  in_use.Turn({{0, 1, 3, 2}, {}}, 4, NodeLinks{}, 0);  // a later plan in the same order
  EXPECT_DOUBLE_EQ(in_use.speedup.ring, 100);
  EXPECT_DOUBLE_EQ(in_use.former_speedup.ring, 100);
  in_use.Turn({}, 4, links, 0);
  EXPECT_DOUBLE_EQ(in_use.speedup.ring, 1);
  // Where no link is known an order keeps what was learnt with the one before.
  in_use.Turn({{0, 2, 1, 3}, {}}, 4, NodeLinks{}, 0);
  EXPECT_DOUBLE_EQ(in_use.speedup.ring, 1);
  EXPECT_EQ(in_use.speedup.shards, 1);
}

TEST(LayoutInUseTest, SpeedupFollowsTheShares) {
  const NodeLinks links = LinksWithSlow(3, {0, 1, 2});
  LayoutInUse in_use;
  in_use.Turn({{}, {21846, 21845, 21845, 0}}, 4, links, 0);
  EXPECT_NEAR(in_use.speedup.shards, 1.5, 1e-3);
  EXPECT_EQ(in_use.former_speedup.shards, 1);
  EXPECT_EQ(in_use.speedup.ring, 1);
  in_use.Turn({{}, {21846, 21845, 21845, 0}}, 4, NodeLinks{}, 0);
  EXPECT_NEAR(in_use.former_speedup.shards, 1.5, 1e-3);
  in_use.Turn({}, 4, NodeLinks{}, 0);
  EXPECT_EQ(in_use.speedup.shards, 1);
  // Where shards are one message each the slow rank's phases follow each other.
  in_use.Turn({{}, {21846, 21845, 21845, 0}}, 4, links, 1);
  EXPECT_NEAR(in_use.speedup.shards, 0.75, 1e-3);
}

TEST(LayoutInUseTest, PartsThatMakeNoSenseCountAsEmpty) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 5; ++i) job.Step({2e-4, 1.19e8});
  const std::vector<uint32_t> even(4, kShareUnits / 4);
  uint64_t version = 0;
  for (const PlanLayout& layout :
       {PlanLayout{{3, 2, 1, 9}, {}}, PlanLayout{{0, 1}, {}}, PlanLayout{{0, 0, 1, 2}, {}},
        PlanLayout{{}, {kShareUnits}}, PlanLayout{{}, {1, 2, 3, 4}},
        PlanLayout{{}, {kShareUnits, kShareUnits, 0, 0}}}) {
    job.model().SetActivePlan(++version, 6, job.plan(), layout);
    const auto snapshot = job.model().MakeSnapshot("start");
    ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
    EXPECT_EQ(snapshot->layout, PlanLayout{});
    EXPECT_TRUE(CheckLayout(*snapshot).ok());
  }
  job.model().SetActivePlan(20, 6, job.plan(), {{0, 2, 1, 3}, even});
  const auto snapshot = job.model().MakeSnapshot("start");
  EXPECT_EQ(snapshot->layout, (PlanLayout{{0, 2, 1, 3}, even}));
  EXPECT_EQ(snapshot->node_links.nodes, (std::vector{0, 1, 2, 3}));
}

}  // namespace
}  // namespace weir
