// SPDX-License-Identifier: Apache-2.0
#include "controller/model/textbook_costs.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

// By hand: 4 ranks, 10 ms, 100 MB/s, 100 MB, so M*beta is one second.
constexpr TextbookSetting kByHand{
    .world = 4, .latency_s = 0.01, .bytes_per_s = 1e8, .bytes = 1e8, .ratio = 0.1};

TEST(TextbookCostsTest, MatchHandWorkedValues) {
  EXPECT_DOUBLE_EQ(TextbookSeconds("parameter_server", kByHand), 0.02 + 6);
  EXPECT_DOUBLE_EQ(TextbookSeconds("ring", kByHand), 0.06 + 1.5);
  EXPECT_DOUBLE_EQ(TextbookSeconds("tree, not pipelined", kByHand), 0.04 + 4);
  EXPECT_DOUBLE_EQ(TextbookSeconds("double tree, pipelined", kByHand), 0.04 + 2);
  EXPECT_DOUBLE_EQ(TextbookSeconds("recursive doubling", kByHand), 0.02 + 2);
  EXPECT_DOUBLE_EQ(TextbookSeconds("halving and doubling", kByHand), 0.04 + 1.5);
  EXPECT_NEAR(TextbookSeconds("sparse all-gather", kByHand), 0.02 + 0.6, 1e-12);
  EXPECT_NEAR(TextbookSeconds("ring all-gather", kByHand), 0.03 + 0.6, 1e-12);
  EXPECT_NEAR(TextbookSeconds("AR-Topk, ring", kByHand), 0.08 + 0.35, 1e-12);
  EXPECT_NEAR(TextbookSeconds("AR-Topk, tree", kByHand), 0.06 + 0.6, 1e-12);
}

// The coefficients are where the two totals are equal: the formulas and the published inequalities
// say the same.
TEST(TextbookCostsTest, TotalsCrossWhereTheCoefficientsSay) {
  const struct {
    Crossover crossover;
    const char *first, *second;
  } kCases[] = {{Crossover::kRingOverTree, "AR-Topk, ring", "AR-Topk, tree"},
                {Crossover::kRingOverAllGather, "AR-Topk, ring", "sparse all-gather"},
                {Crossover::kTreeOverAllGather, "AR-Topk, tree", "sparse all-gather"}};
  for (const auto& [crossover, first, second] : kCases) {
    for (const int world : {2, 4, 8, 16, 64}) {
      const auto coefficient = CrossoverCoefficient(crossover, world);
      for (const double factor : {0.9, 1.1}) {
        TextbookSetting setting{.world = world, .bytes_per_s = 1e8, .bytes = 1e9, .ratio = 0.01};
        // Without a crossing any latency will do.
        const double crossing = coefficient && *coefficient > 0 ? *coefficient : 1;
        setting.latency_s = factor * crossing * setting.bytes * setting.ratio / setting.bytes_per_s;
        const bool first_wins = TextbookSeconds(first, setting) < TextbookSeconds(second, setting);
        const bool expected = !coefficient || (*coefficient > 0 && factor < 1);
        EXPECT_EQ(first_wins, expected) << first << " over " << second << ", world " << world;
      }
    }
  }
}

}  // namespace
}  // namespace weir
