// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/spin_budget.h"

#include <gtest/gtest.h>

namespace weir::mesh {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

// Waits of one length, with a given time between them.
TimePoint Waits(SpinBudget& spin, TimePoint now, int count, Duration pause, Duration length) {
  for (int i = 0; i < count; ++i) {
    now += pause;
    spin.Learn(now, now + length);
    now += length;
  }
  return now;
}

TEST(SpinBudgetTest, LookingEndsWhereWaitsAreLongAndReturnsWhereTheyAreShort) {
  SpinBudget spin;
  TimePoint now = TimePoint() + seconds(100);
  EXPECT_EQ(spin.limit(now), SpinBudget::kMax);
  now = Waits(spin, now, 20, seconds(1), seconds(1));
  EXPECT_EQ(spin.limit(now + seconds(1)), Duration(0));
  now = Waits(spin, now, 20, seconds(1), microseconds(20));
  EXPECT_EQ(spin.limit(now + seconds(1)), SpinBudget::kMax);
}

TEST(SpinBudgetTest, PausesBetweenOperationsDoNotSlowTheirMessages) {
  SpinBudget spin;
  TimePoint now = TimePoint() + seconds(100);
  for (int operation = 0; operation < 20; ++operation) {
    now = Waits(spin, now, 1, seconds(1), seconds(1));
    EXPECT_EQ(spin.limit(now + microseconds(10)), SpinBudget::kMax) << operation;
    now = Waits(spin, now, 3, microseconds(10), microseconds(20));
  }
  EXPECT_EQ(spin.limit(now + seconds(1)), Duration(0));
}

TEST(SpinBudgetTest, DistantPeersEndItWithinOperationsToo) {
  SpinBudget spin;
  const TimePoint now =
      Waits(spin, TimePoint() + seconds(100), 20, microseconds(10), microseconds(1000));
  EXPECT_EQ(spin.limit(now), Duration(0));
}

// Another rank's turn does not end polling, but another process's time slice of 3 ms ends it for
// 600 ms, then for 1200 ms.
TEST(SpinBudgetTest, StrangersWhoComputeEndIt) {
  const TimePoint start = TimePoint() + seconds(100);
  SpinBudget spin;
  spin.OnYield(start, microseconds(100));
  EXPECT_EQ(spin.limit(start), SpinBudget::kMax);
  spin.OnYield(start, microseconds(3000));
  EXPECT_EQ(spin.limit(start + microseconds(599999)), Duration(0));
  EXPECT_EQ(spin.limit(start + microseconds(600000)), SpinBudget::kMax);
  spin.OnYield(start + microseconds(700000), microseconds(3000));
  EXPECT_EQ(spin.limit(start + microseconds(1899999)), Duration(0));
  EXPECT_EQ(spin.limit(start + microseconds(1900000)), SpinBudget::kMax);
  spin.OnYield(start + seconds(100), microseconds(3000));
  EXPECT_EQ(spin.limit(start + microseconds(100600000)), SpinBudget::kMax);
}

// With four ranks on a core, the turns of the other three do not count as another process's slice
// and are not a reason to sleep.
TEST(SpinBudgetTest, RanksThatShareACoreAllowForTheOthersTurns) {
  TimePoint now = TimePoint() + seconds(100);
  SpinBudget spin;
  spin.ShareHost(4);
  EXPECT_EQ(spin.limit(now), 4 * SpinBudget::kMax);
  spin.OnYield(now, microseconds(1900));
  now = Waits(spin, now, 10, microseconds(10), microseconds(390));
  EXPECT_EQ(spin.limit(now), 4 * SpinBudget::kMax);
  spin.OnYield(now, microseconds(3000));
  EXPECT_EQ(spin.limit(now), Duration(0));

  SpinBudget alone;
  now = Waits(alone, now, 20, microseconds(10), microseconds(390));
  EXPECT_EQ(alone.limit(now), Duration(0));
}

// With a core each, a rank polls for a peer that was woken 100 us later, but not for one that
// computes.
TEST(SpinBudgetTest, NeighboursWithACoreEachAreWaitedForLonger) {
  TimePoint now = TimePoint() + seconds(100);
  SpinBudget spin;
  spin.ShareHost(1);
  EXPECT_EQ(spin.limit(now), SpinBudget::kMaxApart);
  now = Waits(spin, now, 20, microseconds(10), microseconds(250));
  EXPECT_EQ(spin.limit(now), SpinBudget::kMaxApart);
  now = Waits(spin, now, 20, microseconds(10), microseconds(390));
  EXPECT_EQ(spin.limit(now), Duration(0));
}

TEST(SpinBudgetTest, WhereSomebodyAlwaysComputesLookingCostsLittle) {
  SpinBudget spin;
  TimePoint now = TimePoint() + seconds(100);
  const TimePoint start = now;
  Duration lost = {};
  while (now < start + seconds(1000)) {
    if (spin.limit(now) > Duration(0)) {
      now += microseconds(3000);
      lost += microseconds(3000);
      spin.OnYield(now, microseconds(3000));
    }
    now += microseconds(1000);
  }
  EXPECT_GT(lost, Duration(0));
  EXPECT_LT(ToSeconds(lost), 0.0015 * 1000);
}

TEST(SpinBudgetTest, RanksOnOneCoreYieldAtOnceAndThenPart) {
  SpinBudget spin;
  EXPECT_FALSE(spin.yields_first());
  spin.OnLook(false, false);
  spin.OnLook(true, false);
  EXPECT_FALSE(spin.yields_first()) << "news without a yield";
  // One wait whose second look found news.
  const auto wait = [&spin](bool behind_yield) {
    const bool moved = spin.MovesAway();
    spin.OnLook(false, false);
    spin.OnLook(true, behind_yield);
    return moved;
  };
  EXPECT_FALSE(wait(true));
  EXPECT_TRUE(spin.yields_first());
  EXPECT_FALSE(wait(true));
  spin.OnLook(false, true);
  EXPECT_FALSE(spin.yields_first()) << "a yield in vain";
  // Only waits in a row count, and if sleeping does not help it is tried less often.
  const auto moves_in = [&wait](int waits, bool together) {
    int moves = 0;
    for (int i = 0; i < waits; ++i) moves += wait(together);
    return moves;
  };
  spin = SpinBudget();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(moves_in(2, true), 0) << i;
    EXPECT_EQ(moves_in(1, false), 0) << i;
  }
  const auto in_row = [&spin](int waits) {
    int moves = 0;
    for (int i = 0; i < waits; ++i) {
      moves += spin.MovesAway();
      spin.OnLook(true, true);
    }
    return moves;
  };
  EXPECT_EQ(in_row(3), 0);
  EXPECT_EQ(in_row(1), 1);
  EXPECT_EQ(in_row(5), 0);
  EXPECT_EQ(in_row(1), 1);
  const int later = in_row(1200);
  EXPECT_GE(later, 95);
  EXPECT_LE(later, 105);
  spin.OnLook(true, false);
  EXPECT_EQ(in_row(3), 0);
  EXPECT_EQ(in_row(1), 1) << "apart and together again";
}

}  // namespace
}  // namespace weir::mesh
