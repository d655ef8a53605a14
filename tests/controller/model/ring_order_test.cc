// SPDX-License-Identifier: Apache-2.0
// Orders of ranks around a ring: the best one for few ranks, a good one for many.

#include "controller/model/ring_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "datapath/base/random.h"

namespace weir {
namespace {

std::vector<double> RandomCosts(int world, uint64_t seed, int levels) {
  Random random(seed);
  std::vector<double> cost(static_cast<size_t>(world) * world);
  for (double& c : cost) c = 1 + std::floor(random.Uniform() * levels);
  return cost;
}

void ExpectRing(const std::vector<int>& order, int world) {
  ASSERT_EQ(order.size(), static_cast<size_t>(world));
  EXPECT_EQ(order[0], 0);
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int rank = 0; rank < world; ++rank) ASSERT_EQ(sorted[rank], rank);
}

// Every order is tried: the first in lexicographic order of those with the least worst link.
TEST(RingOrderTest, ExactUpToTwelveRanksByBruteForce) {
  for (int world = 2; world <= 7; ++world) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      SCOPED_TRACE(::testing::Message() << "world " << world << " seed " << seed);
      const std::vector<double> cost = RandomCosts(world, seed, seed % 2 == 0 ? 4 : 1000);
      std::vector<int> order(world), best;
      std::iota(order.begin(), order.end(), 0);
      double least = std::numeric_limits<double>::infinity();
      do {
        const double worst = RingBottleneck(cost, order);
        if (worst < least) least = worst, best = order;
      } while (std::next_permutation(order.begin() + 1, order.end()));
      const auto found = BestRingOrder(cost, world);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->bottleneck, least);
      EXPECT_EQ(found->order, best);
      EXPECT_TRUE(found->exact);
    }
  }
}

// A ring of fast links is hidden in slow ones; in one direction only.
TEST(RingOrderTest, FindsAHiddenRing) {
  for (const int world : {12, 13, 24}) {
    std::vector<int> hidden(world);
    for (int i = 0; i < world; ++i) hidden[i] = i * 5 % world;
    std::vector<double> cost(static_cast<size_t>(world) * world, 10);
    for (int i = 0; i < world; ++i) {
      cost[static_cast<size_t>(hidden[i]) * world + hidden[(i + 1) % world]] = 1;
    }
    const auto found = BestRingOrder(cost, world);
    ASSERT_TRUE(found.ok()) << found.status();
    ExpectRing(found->order, world);
    EXPECT_EQ(found->exact, world <= kRingOrderExactMax);
    EXPECT_EQ(found->bottleneck, 1) << world;
    EXPECT_EQ(found->order, hidden);
  }
}

// Two sites with slow links between them: a ring has to cross twice and need not more often.
TEST(RingOrderTest, ManyRanksCrossBetweenSitesTwice) {
  constexpr int kWorld = 40;
  std::vector<double> cost(kWorld * kWorld);
  for (int i = 0; i < kWorld; ++i) {
    for (int j = 0; j < kWorld; ++j) cost[i * kWorld + j] = i % 2 == j % 2 ? 1 : 50;
  }
  const auto found = BestRingOrder(cost, kWorld);
  ASSERT_TRUE(found.ok()) << found.status();
  ExpectRing(found->order, kWorld);
  int crossings = 0;
  for (int i = 0; i < kWorld; ++i) {
    crossings += found->order[i] % 2 != found->order[(i + 1) % kWorld] % 2;
  }
  EXPECT_EQ(crossings, 2);
}

TEST(RingOrderTest, NeverWorseThanTheGivenOrder) {
  double share = 0;
  for (const int world : {13, 20, 33}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const std::vector<double> cost = RandomCosts(world, seed, 1000);
      std::vector<int> given(world);
      std::iota(given.begin(), given.end(), 0);
      const auto found = BestRingOrder(cost, world);
      ASSERT_TRUE(found.ok()) << found.status();
      ExpectRing(found->order, world);
      EXPECT_EQ(found->bottleneck, RingBottleneck(cost, found->order));
      EXPECT_LE(found->bottleneck, RingBottleneck(cost, given));
      share += found->bottleneck / RingBottleneck(cost, given) / 30;
      EXPECT_EQ(BestRingOrder(cost, world)->order, found->order);
    }
  }
  EXPECT_LT(share, 0.75) << "random costs leave much to be won";
}

TEST(RingOrderTest, SmallWorldsAndBadInput) {
  EXPECT_EQ(BestRingOrder(std::vector<double>{7}, 1)->order, std::vector<int>{0});
  EXPECT_EQ(BestRingOrder(std::vector<double>{0, 2, 3, 0}, 2)->bottleneck, 3);
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, infinite, std::numeric_limits<double>::quiet_NaN()}) {
    const Status status = BestRingOrder(std::vector<double>{bad, 1, bad, bad}, 2).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(Message(status).find("from rank 1 to rank 0"), std::string::npos) << status;
  }
  EXPECT_EQ(BestRingOrder({}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BestRingOrder(std::vector<double>(5), 2).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
