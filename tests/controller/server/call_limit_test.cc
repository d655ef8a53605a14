// SPDX-License-Identifier: Apache-2.0
#include "controller/server/call_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir {
namespace {

constexpr int kBurst = static_cast<int>(CallLimit::kBurst);

TEST(CallLimitTest, ABurstAndThenARate) {
  FakeClock clock;
  CallLimit limit(clock);
  for (int i = 0; i < kBurst; ++i) ASSERT_TRUE(limit.Take("ann").ok()) << i;
  const Status refused = limit.Take("ann");
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(refused), testing::HasSubstr("ann calls more often than 200 times a second"));
  EXPECT_TRUE(limit.Take("bob").ok());
  // Refused calls cost nothing, so who goes on calling gets the rate.
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(limit.Take("ann").ok());
  clock.Advance(std::chrono::seconds(1));
  int taken = 0;
  while (limit.Take("ann").ok()) ++taken;
  EXPECT_NEAR(taken, CallLimit::kPerSecond, 1);
  clock.Advance(std::chrono::minutes(10));
  for (int i = 0; i < kBurst; ++i) ASSERT_TRUE(limit.Take("ann").ok()) << i;
  EXPECT_FALSE(limit.Take("ann").ok());
}

TEST(CallLimitTest, StrangersBeyondTheBoundShareOneLimit) {
  FakeClock clock;
  CallLimit limit(clock);
  for (size_t i = 0; i < CallLimit::kCallersMax; ++i) ASSERT_TRUE(limit.Take(StrCat(i)).ok());
  int taken = 0;
  while (limit.Take(StrCat("new", taken)).ok()) ++taken;
  EXPECT_EQ(taken, kBurst);
  EXPECT_TRUE(limit.Take("7").ok());
  clock.Advance(std::chrono::minutes(1));  // all have rested, and their places are free
  for (int i = 0; i < kBurst; ++i) ASSERT_TRUE(limit.Take("newest").ok());
  EXPECT_TRUE(limit.Take("another").ok());
}

}  // namespace
}  // namespace weir
