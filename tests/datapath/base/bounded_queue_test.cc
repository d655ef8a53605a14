// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

namespace weir {
namespace {

TimePoint Within(double seconds) { return RealClock().Now() + FromSeconds(seconds); }

TEST(BoundedQueueTest, KeepsOrderUpToItsCapacity) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.TryPop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueueTest, WaitsEndAtTheirDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.Pop(Within(0.01)), std::nullopt);
  EXPECT_TRUE(queue.Push(1, Within(10)));
  EXPECT_FALSE(queue.Push(2, Within(0.01)));
  EXPECT_EQ(queue.size(), 1u);
}

TEST(BoundedQueueTest, DroppingKeepsTheNewest) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.PushDroppingOldest(1));
  EXPECT_TRUE(queue.PushDroppingOldest(2));
  EXPECT_FALSE(queue.PushDroppingOldest(3));
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.TryPop(), 3);
}

TEST(BoundedQueueTest, CloseRefusesPushesAndDrainsPops) {
  BoundedQueue<std::unique_ptr<int>> queue(4);
  ASSERT_TRUE(queue.TryPush(std::make_unique<int>(5)));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(nullptr));
  EXPECT_FALSE(queue.Push(nullptr, Within(10)));
  EXPECT_FALSE(queue.PushDroppingOldest(nullptr));
  const auto last = queue.Pop();
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(**last, 5);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, CloseEndsWaitingThreads) {
  BoundedQueue<int> empty(1), full(1);
  ASSERT_TRUE(full.TryPush(0));
  std::thread popper([&] { EXPECT_EQ(empty.Pop(), std::nullopt); });
  std::thread patient([&] { EXPECT_EQ(empty.Pop(TimePoint::max()), std::nullopt); });
  std::thread pusher([&] { EXPECT_FALSE(full.Push(1, Within(60))); });
  empty.Close();
  full.Close();
  popper.join();
  patient.join();
  pusher.join();
}

TEST(BoundedQueueTest, EveryItemCrossesOnceBetweenManyThreads) {
  constexpr int kThreads = 4, kItems = 2000;
  BoundedQueue<int> queue(3);
  std::vector<std::thread> producers, consumers;
  std::vector<std::vector<int>> taken(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&, t] {
      for (int i = 0; i < kItems; ++i) EXPECT_TRUE(queue.Push(t * kItems + i, Within(60)));
    });
    consumers.emplace_back([&, t] {
      while (const auto item = queue.Pop()) taken[t].push_back(*item);
    });
  }
  for (auto& thread : producers) thread.join();
  queue.Close();
  for (auto& thread : consumers) thread.join();
  std::vector<int> seen(kThreads * kItems);
  for (const auto& items : taken) {
    for (const int item : items) ++seen[item];
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), kThreads * kItems);
}

}  // namespace
}  // namespace weir
