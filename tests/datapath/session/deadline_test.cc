// SPDX-License-Identifier: Apache-2.0
// Deadlines of a session's operations follow the times of operations and steps.

#include <atomic>
#include <thread>

#include "tests/datapath/session/session_world.h"

namespace weir::testing {
namespace {

// Returns true if `done` became true within `seconds`.
bool Comes(const std::atomic<bool>& done, double seconds) {
  const TimePoint deadline = Within(seconds);
  while (!done.load() && RealClock().Now() < deadline) std::this_thread::yield();
  return done.load();
}

/// Runs enough steps of two buckets for deadlines to follow their times.
void Settle(SessionWorld& job, uint64_t first, uint64_t second) {
  for (int step = 0; step < 12; ++step) {
    auto one = RandomGradients(2, 100, 1), two = RandomGradients(2, 200, 2);
    job.Begin();
    job.AllReduce(first, one);
    job.AllReduce(second, two);
    job.End();
  }
}

TEST(DeadlineTest, SilenceWithinAStepIsNoticedByWhatStepsTakeNotByTheTimeout) {
  std::vector<std::vector<float>> data = RandomGradients(2, 200, 1);
  SessionWorld job({.world = 2, .operation_timeout_s = 300, .operation_timeout_floor_s = 0.5});
  job.Up();
  const uint64_t first = job.Define({{"p", 100}}), second = job.Define({{"q", 200}});
  Settle(job, first, second);
  job.Begin();
  job.AllReduce(first, data);
  const TimePoint begin = RealClock().Now();
  ASSERT_TRUE(job.sessions[0]->AllReduce(second, data[0].data(), 1, nullptr).ok());
  const Status status = job.sessions[0]->EndStep().status();
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 60);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(Message(status).find("no answer from rank 1"), std::string::npos) << ToString(status);
  EXPECT_NE(Message(status).find("usually takes"), std::string::npos) << ToString(status);
  // The other rank learns of it in its next operation.
  ASSERT_TRUE(job.sessions[1]->AllReduce(second, data[1].data(), 1, nullptr).ok());
  const Status other = job.sessions[1]->EndStep().status();
  EXPECT_NE(Message(other).find("rank 0 reported"), std::string::npos) << ToString(other);
}

TEST(DeadlineTest, ARankThatIsLateForAStepIsWaitedFor) {
  std::atomic<bool> done = false;
  std::vector<std::vector<float>> data = RandomGradients(2, 200, 1);
  SessionWorld job({.world = 2, .operation_timeout_s = 300, .operation_timeout_floor_s = 0.3});
  job.Up();
  const uint64_t first = job.Define({{"p", 100}}), second = job.Define({{"q", 200}});
  Settle(job, first, second);
  job.Begin();
  ASSERT_TRUE(job.sessions[0]
                  ->AllReduce(first, data[0].data(), 1, [&](const Status&) { done = true; })
                  .ok());
  EXPECT_FALSE(Comes(done, 3)) << "rank 1 writes a checkpoint";
  ASSERT_TRUE(job.sessions[1]->AllReduce(first, data[1].data(), 1, nullptr).ok());
  job.End();
}

// Rank 2 waits for rank 3 of its node, and rank 0, which began before, for rank 2 of the other
// node.
TEST(DeadlineTest, ARankThatWaitsForTheMissingOneNamesItBeforeItIsNamed) {
  const auto factory = MakeInprocFactory({.nodes = {0, 0, 2, 2}});
  std::vector<std::vector<float>> data = RandomGradients(4, 200, 1);
  SessionWorld job({.world = 4, .operation_timeout_s = 3, .factory = factory.get()});
  job.Up();
  const uint64_t key = job.Define({{"p", 200}});
  job.Switch(UniformPlan(1, {.codec = "minmax", .collective = "node_sums", .bits = 8}), key, 200);
  job.Begin();
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(job.sessions[rank]->AllReduce(key, data[rank].data(), 1, nullptr).ok());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ASSERT_TRUE(job.sessions[2]->AllReduce(key, data[2].data(), 1, nullptr).ok());
  for (const int rank : {0, 1, 2}) {
    const Status status = job.sessions[rank]->EndStep().status();
    EXPECT_NE(Message(status).find("no answer from rank 3"), std::string::npos)
        << "rank " << rank << ": " << ToString(status);
  }
}

}  // namespace
}  // namespace weir::testing
