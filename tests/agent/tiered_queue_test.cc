// SPDX-License-Identifier: Apache-2.0
// When the queue is full, telemetry is dropped and control messages are not.
#include "agent/tiered_queue.h"

#include <gtest/gtest.h>

namespace weir::agent {
namespace {

using Queue = TieredQueue<int>;
using Outcome = Queue::Outcome;

TEST(TieredQueueTest, KeepsTheOrderOverBothTiers) {
  Queue queue(10, 100);
  queue.Push(1, Tier::kTelemetry, 1);
  queue.Push(2, Tier::kControl, 1);
  queue.Push(3, Tier::kTelemetry, 1);
  for (const int expected : {1, 2, 3}) EXPECT_EQ(queue.Pop(), expected);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(TieredQueueTest, DropsTheOldestTelemetryForTheNewest) {
  Queue queue(3, 100);
  queue.Push(1, Tier::kTelemetry, 1);
  queue.Push(2, Tier::kControl, 1);
  queue.Push(3, Tier::kTelemetry, 1);
  EXPECT_EQ(queue.Push(4, Tier::kTelemetry, 1), Outcome::kDroppedTelemetry);
  EXPECT_EQ(queue.Push(5, Tier::kControl, 1), Outcome::kDroppedTelemetry);
  for (const int expected : {2, 4, 5}) EXPECT_EQ(queue.Pop(), expected);
  EXPECT_EQ(queue.dropped(), 2u);
}

TEST(TieredQueueTest, ControlIsNeverDroppedForControl) {
  Queue queue(2, 100);
  queue.Push(1, Tier::kControl, 1);
  queue.Push(2, Tier::kControl, 1);
  EXPECT_EQ(queue.Push(3, Tier::kControl, 1), Outcome::kFull);
  EXPECT_EQ(queue.Push(4, Tier::kTelemetry, 1), Outcome::kDroppedTelemetry);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_TRUE(queue.empty());
}

TEST(TieredQueueTest, BoundsBytes) {
  Queue queue(100, 10);
  EXPECT_EQ(queue.Push(1, Tier::kTelemetry, 6), Outcome::kQueued);
  EXPECT_EQ(queue.Push(2, Tier::kTelemetry, 6), Outcome::kDroppedTelemetry);
  EXPECT_EQ(queue.bytes(), 6u);
  EXPECT_EQ(queue.Push(3, Tier::kControl, 11), Outcome::kFull);
  EXPECT_EQ(queue.Pop(), std::nullopt);  // it was dropped for a message that still did not fit
}

TEST(TieredQueueTest, ASignOfLifeOvertakesEverythingAndIsNeverDropped) {
  Queue queue(2, 100);
  queue.Push(1, Tier::kTelemetry, 1);
  queue.Push(2, Tier::kControl, 1);
  EXPECT_EQ(queue.Push(3, Tier::kSignOfLife, 1), Outcome::kQueued);
  EXPECT_EQ(queue.Push(4, Tier::kSignOfLife, 1), Outcome::kQueued);
  EXPECT_EQ(queue.Push(5, Tier::kTelemetry, 1), Outcome::kDroppedTelemetry);
  for (const int expected : {4, 2, 5}) EXPECT_EQ(queue.Pop(), expected);
  EXPECT_TRUE(queue.empty());
  queue.Push(6, Tier::kSignOfLife, 1);
  EXPECT_FALSE(queue.empty());
  EXPECT_TRUE(queue.TakeControl().empty());
  EXPECT_TRUE(queue.empty());
}

TEST(TieredQueueTest, TakeControlEmptiesTheQueue) {
  Queue queue(10, 100);
  queue.Push(1, Tier::kControl, 5);
  queue.Push(2, Tier::kTelemetry, 5);
  queue.Push(3, Tier::kControl, 5);
  EXPECT_EQ(queue.TakeControl(), (std::vector<int>{1, 3}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0u);
}

}  // namespace
}  // namespace weir::agent
