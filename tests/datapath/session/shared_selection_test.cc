// SPDX-License-Identifier: Apache-2.0
// Selections that several ranks share, in whole sessions.

#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/session/session.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::RandomGradients;
using testing::SessionWorld;
using testing::SumOver;
using testing::UniformPlan;

TEST(SharedSelectionTest, NonFiniteUnderAnEmptySelectionIsStillSkippedEverywhere) {
  // The chosen rank selects nothing, so no values are sent; another rank has NaN.
  Choice choice;
  choice.codec = "shared_top_k";
  choice.collective = "ar_topk_star";
  choice.ratio = 0.1;
  SessionWorld job({.world = 3, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define({{"a", 50}});
  job.Switch(UniformPlan(1, choice), key, 50);
  for (int step = 0; step < 3; ++step) {  // every rank is chosen once
    std::vector<std::vector<float>> data(3, std::vector<float>(50));
    data[1][3] = std::numeric_limits<float>::quiet_NaN();
    job.Begin();
    job.AllReduce(key, data);
    EXPECT_TRUE(job.End());
  }
}

TEST(SharedSelectionTest, UnionOfSelectionsLeavesNothingOfTheSelectedBehind) {
  // Each rank has one large element of its own. The union delivers all of them in one step, but one
  // rank's selection would deliver a third.
  Choice choice;
  choice.codec = "nominated_top_k";
  choice.collective = "ar_topk_union";
  choice.ratio = 0.1;
  SessionWorld job({.world = 3, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define({{"a", 50}});
  job.Switch(UniformPlan(1, choice), key, 50);
  std::vector<std::vector<float>> data(3, std::vector<float>(50));
  for (int rank = 0; rank < 3; ++rank) data[rank][10 * rank + 7] = static_cast<float>(rank + 1);
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  for (int rank = 0; rank < 3; ++rank) {
    for (int at = 0; at < 3; ++at) {
      EXPECT_NE(data[rank][10 * at + 7], 0.0f) << rank;
      EXPECT_EQ(data[rank][10 * at + 7], data[0][10 * at + 7]) << rank;
    }
    EXPECT_EQ(data[rank][8], 0.0f);
  }
}

Choice OkTopk(double ratio) {
  Choice choice;
  choice.codec = "shared_top_k";
  choice.collective = "ok_topk";
  choice.ratio = ratio;
  return choice;
}

// Sums that owners drop stay in the residuals of the ranks that contributed, over steps in which
// regions and thresholds change: the gradients equal the outputs plus the residuals.
TEST(OkTopkSessionTest, WhatIsNotDeliveredIsOwed) {
  constexpr int kSteps = 70;
  for (const int world : {1, 2, 3, 5}) {
    for (const size_t elements : {size_t{7}, size_t{3001}}) {
      SCOPED_TRACE(StrCat("world ", world, ", ", elements, " elements"));
      SessionWorld job({.world = world, .transport = "inproc"});
      job.Up();
      const uint64_t key = job.Define({{"a", elements}});
      job.Switch(UniformPlan(1, OkTopk(0.05)), key, elements);
      std::vector<double> balance(elements);
      size_t delivered = 0;
      for (int step = 0; step < kSteps; ++step) {
        auto data = RandomGradients(world, elements, 100 + step);
        // Gradients are larger at the end of the index space, at different positions on each rank.
        for (auto& gradient : data) {
          for (size_t i = 9 * elements / 10; i < elements; ++i) gradient[i] *= 20;
        }
        const std::vector<double> sum = SumOver(data);
        job.Begin();
        job.AllReduce(key, data);
        ASSERT_FALSE(job.End());
        for (int rank = 1; rank < world; ++rank) {
          ASSERT_EQ(std::memcmp(data[rank].data(), data[0].data(), 4 * elements), 0) << rank;
        }
        for (size_t i = 0; i < elements; ++i) {
          balance[i] += sum[i] - data[0][i];
          delivered += data[0][i] != 0;
        }
      }
      for (int rank = 0; rank < world; ++rank) {
        ResidualStore store;
        ASSERT_TRUE(store.Define(1, {{"a", elements}}).ok());
        ASSERT_TRUE(store.Import(job.Export(rank)).ok());
        std::vector<float> owed(elements);
        ASSERT_TRUE(store.Flush(1, owed).ok());
        for (size_t i = 0; i < elements; ++i) balance[i] -= owed[i];
      }
      for (const double rest : balance) ASSERT_LT(std::fabs(rest), 1e-3);
      EXPECT_GT(delivered, 0u);
      if (elements < 100) continue;  // the target is one element, too few for thresholds
      const double target = 0.05 * static_cast<double>(elements) * kSteps;
      EXPECT_GT(static_cast<double>(delivered), 0.6 * target);
      EXPECT_LT(static_cast<double>(delivered), 1.6 * target);
    }
  }
}

TEST(OkTopkSessionTest, NonFiniteIsSkippedEverywhereAndNothingIsLost) {
  SessionWorld job({.world = 3, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define({{"a", 50}});
  job.Switch(UniformPlan(1, OkTopk(0.1)), key, 50);
  std::vector<std::vector<float>> bad(3, std::vector<float>(50));
  bad[1][3] = std::numeric_limits<float>::quiet_NaN();
  job.Begin();
  job.AllReduce(key, bad);
  EXPECT_TRUE(job.End());
  std::vector<std::vector<float>> data(3, std::vector<float>(50));
  for (auto& gradient : data) gradient[41] = 2;
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  for (const auto& gradient : data) EXPECT_EQ(gradient[41], 6);
}

}  // namespace
}  // namespace weir
