#include "datapath/transport/mesh/spin_budget.h"

#include <gtest/gtest.h>

namespace weir::mesh {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

// Waits of one length, each so long after the one before.
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

// Another rank's turn is no harm; a stranger's time slice ends it for 1 s, then 2 s.
TEST(SpinBudgetTest, StrangersWhoComputeEndIt) {
  const TimePoint start = TimePoint() + seconds(100);
  SpinBudget spin;
  spin.OnYield(start, microseconds(100));
  EXPECT_EQ(spin.limit(start), SpinBudget::kMax);
  spin.OnYield(start, microseconds(3000));
  EXPECT_EQ(spin.limit(start + microseconds(999999)), Duration(0));
  EXPECT_EQ(spin.limit(start + seconds(1)), SpinBudget::kMax);
  spin.OnYield(start + seconds(1), microseconds(3000));
  EXPECT_EQ(spin.limit(start + microseconds(2999999)), Duration(0));
  EXPECT_EQ(spin.limit(start + seconds(3)), SpinBudget::kMax);
  spin.OnYield(start + seconds(100), microseconds(3000));
  EXPECT_EQ(spin.limit(start + seconds(101)), SpinBudget::kMax);
}

}  // namespace
}  // namespace weir::mesh
