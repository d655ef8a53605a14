// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace weir {
namespace {

TEST(ClockTest, FakeClockMovesOnlyWhenTold) {
  FakeClock clock;
  const TimePoint start = clock.Now();
  const double unix_start = clock.UnixSeconds();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(clock.Now() - start, std::chrono::milliseconds(1500));
  EXPECT_NEAR(clock.UnixSeconds() - unix_start, 1.5, 1e-6);
}

TEST(ClockTest, RealClockIsMonotonicAndShared) {
  const TimePoint a = RealClock().Now(), b = RealClock().Now();
  EXPECT_LE(a, b);
  EXPECT_EQ(&RealClock(), &RealClock());
  EXPECT_GT(RealClock().UnixSeconds(), 1.6e9);
}

TEST(ClockTest, SecondsConvertBothWays) {
  EXPECT_DOUBLE_EQ(ToSeconds(std::chrono::microseconds(2500)), 0.0025);
  EXPECT_EQ(FromSeconds(0.0025), std::chrono::microseconds(2500));
  EXPECT_EQ(FromSeconds(-1), -std::chrono::seconds(1));
}

TEST(CondVarTest, WaitUntilReportsAPassedDeadline) {
  Mutex mutex;
  CondVar condition;
  MutexLock lock(mutex);
  EXPECT_FALSE(condition.WaitUntil(mutex, RealClock().Now() - std::chrono::seconds(1)));
  const TimePoint deadline = RealClock().Now() + std::chrono::milliseconds(5);
  while (condition.WaitUntil(mutex, deadline)) {
  }
  EXPECT_GE(RealClock().Now(), deadline);
}

TEST(CondVarTest, FarthestDeadlineWaitsForTheNotification) {
  Mutex mutex;
  CondVar condition;
  bool ready = false;
  std::thread notifier([&] {
    MutexLock lock(mutex);
    ready = true;
    condition.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (!ready) EXPECT_TRUE(condition.WaitUntil(mutex, TimePoint::max()));
  }
  notifier.join();
}

}  // namespace
}  // namespace weir
