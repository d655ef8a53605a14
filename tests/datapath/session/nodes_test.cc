// SPDX-License-Identifier: Apache-2.0
// Sessions know the placement of ranks: which share a node, the order of the ring, and the
// collectives that use both.

#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::RandomGradients;
using testing::SessionWorld;
using testing::SumOver;
using testing::UniformPlan;

/// Runs a dense step over `hierarchical`.
void CheckHierarchicalSum(SessionWorld& job, int world) {
  job.Up();
  const uint64_t key = job.Define({{"a", 5000}});
  Choice choice = DenseChoice();
  choice.collective = "hierarchical";
  job.Switch(UniformPlan(1, choice), key, 5000);
  auto data = RandomGradients(world, 5000, 3);
  const std::vector<double> sum = SumOver(data);
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  for (int rank = 0; rank < world; ++rank) {
    ASSERT_EQ(data[rank], data[0]) << rank;
    EXPECT_EQ(job.sessions[rank]->nodes().size(), static_cast<size_t>(world));
  }
  for (size_t i = 0; i < 5000; ++i) ASSERT_NEAR(data[0][i], sum[i], 1e-5) << i;
}

TEST(NodesTest, RanksThatShareMemoryAreOnOneNode) {
  SessionWorld job({.world = 4, .transport = "shm"});
  CheckHierarchicalSum(job, 4);
  EXPECT_EQ(job.sessions[2]->nodes(), std::vector<int>(4, 0));
  EXPECT_EQ(std::get<RankHello>(job.sessions[2]->Greeting().front()).lowest_rank, 0);
}

TEST(NodesTest, RanksOverTheNetworkStandAlone) {
  SessionWorld job({.world = 3, .transport = "tcp"});
  CheckHierarchicalSum(job, 3);
  EXPECT_EQ(job.sessions[1]->nodes(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(std::get<RankHello>(job.sessions[1]->Greeting().front()).lowest_rank, 1);
}

// Without a plan, sums within a host use staging buffers, and the transport moves no payload. A
// plan with the collective ring uses the ring.
TEST(NodesTest, WithinAHostDenseSumsUseStagingUnlessAPlanSaysOtherwise) {
  constexpr size_t kElements = 500'000;
  for (const bool planned : {false, true}) {
    SessionWorld job({.world = 3, .transport = "shm"});
    job.Up();
    const uint64_t key = job.Define({{"p", kElements}});
    if (planned) job.Switch(UniformPlan(1, DenseChoice()), job.Define({{"q", 8}}), 8);
    std::vector<std::vector<float>> data(3, std::vector<float>(kElements, 2));
    job.Begin();
    job.AllReduce(key, data, 1.0);
    job.End();
    for (const auto& part : data) {
      EXPECT_EQ(std::count(part.begin(), part.end(), 6.0f), static_cast<ptrdiff_t>(kElements));
    }
    EXPECT_EQ(job.sessions[1]->Stats().bytes_sent > kElements, planned);
  }
}

/// Runs a step and returns its sum, which is the same on all ranks.
std::vector<float> SumOnAll(SessionWorld& job, uint64_t key, std::vector<std::vector<float>> data) {
  const std::vector<double> sum = SumOver(data);
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  for (size_t rank = 1; rank < data.size(); ++rank) EXPECT_EQ(data[rank], data[0]) << rank;
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(data[0][i], sum[i], 1e-5) << i;
  return data[0];
}

TEST(NodesTest, ThePlanSaysWhoFollowsWhomAroundTheRing) {
  SessionWorld job({.world = 4});
  job.Up();
  const uint64_t key = job.Define({{"a", 5000}});
  const auto gradients = RandomGradients(4, 5000, 3);
  const auto reduce = [&] { return SumOnAll(job, key, gradients); };
  const std::vector<float> ascending = reduce();
  Plan plan = UniformPlan(1, DenseChoice());
  plan.ring_order = {0, 2, 1, 3};
  job.Switch(plan, key, 5000);
  // The order of ranks is the order of addition, which rounding shows.
  EXPECT_NE(reduce(), ascending);
  // A plan without an order has the ranks in ascending order.
  job.Switch(UniformPlan(2, DenseChoice()), key, 5000);
  EXPECT_EQ(reduce(), ascending);
}

TEST(NodesTest, ThePlanSaysHowMuchEachRankSums) {
  SessionWorld job({.world = 3});
  job.Up();
  const uint64_t key = job.Define({{"a", 5000}});
  const auto gradients = RandomGradients(3, 5000, 3);
  const auto reduce = [&] { return SumOnAll(job, key, gradients); };
  Choice mesh = DenseChoice();
  mesh.collective = "mesh";
  Plan plan = UniformPlan(1, mesh);
  job.Switch(plan, key, 5000);
  const std::vector<float> even = reduce();
  // The owner of an element adds the others' values to its own, which rounding shows.
  plan = UniformPlan(2, mesh);
  plan.shard_shares = {0, 65536, 0};
  job.Switch(plan, key, 5000);
  const std::vector<float> one_owns_all = reduce();
  EXPECT_NE(one_owns_all, even);
  EXPECT_TRUE(std::equal(even.begin() + 1667, even.begin() + 3334, one_owns_all.begin() + 1667));
  job.Switch(UniformPlan(3, mesh), key, 5000);
  EXPECT_EQ(reduce(), even);
}

TEST(NodesTest, APlanWhoseRingLacksARankIsRefused) {
  SessionWorld job({.world = 3});
  job.Up();
  Plan plan = UniformPlan(1, DenseChoice());
  plan.ring_order = {0, 2, 2};
  job.sessions[1]->OnCommand(PlanOffer{1, "n", plan});
  const auto nacks = job.ports[1]->All<PlanNack>();
  ASSERT_EQ(nacks.size(), 1u);
  EXPECT_NE(nacks[0].reason.find("plan.ring_order"), std::string::npos) << nacks[0].reason;
}

}  // namespace
}  // namespace weir
