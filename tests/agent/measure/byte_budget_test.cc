// SPDX-License-Identifier: Apache-2.0
// The probe budget: share of training bytes, floor over time, capacity.
#include "agent/measure/byte_budget.h"

#include <gtest/gtest.h>

namespace weir::agent {
namespace {

constexpr TimePoint kStart{};

ByteBudget MakeBudget() {
  return ByteBudget({.share = 0.01, .floor_bytes_per_s = 10, .capacity_bytes = 1000}, kStart);
}

TEST(ByteBudgetTest, StartsFullAndTakesAllOrNothing) {
  ByteBudget budget = MakeBudget();
  EXPECT_FALSE(budget.TryTake(1001, kStart));
  EXPECT_TRUE(budget.TryTake(1000, kStart));
  EXPECT_FALSE(budget.TryTake(1, kStart));
}

TEST(ByteBudgetTest, RefillsByTimeAndByTraining) {
  ByteBudget budget = MakeBudget();
  ASSERT_TRUE(budget.TryTake(1000, kStart));
  EXPECT_EQ(budget.Available(kStart + std::chrono::seconds(5)), 50u);
  budget.OnTrainingBytes(20000);
  EXPECT_EQ(budget.Available(kStart + std::chrono::seconds(5)), 250u);
  budget.OnTrainingBytes(1u << 30);
  EXPECT_EQ(budget.Available(kStart + std::chrono::seconds(5)), 1000u);
}

TEST(ByteBudgetTest, ReturnsWhatWasNotUsed) {
  ByteBudget budget = MakeBudget();
  ASSERT_TRUE(budget.TryTake(800, kStart));
  budget.Return(300);
  EXPECT_EQ(budget.Available(kStart), 500u);
}

TEST(ByteBudgetTest, TimeThatRunsBackAddsNothing) {
  ByteBudget budget = MakeBudget();
  ASSERT_TRUE(budget.TryTake(1000, kStart + std::chrono::seconds(9)));
  EXPECT_EQ(budget.Available(kStart), 0u);
}

}  // namespace
}  // namespace weir::agent
