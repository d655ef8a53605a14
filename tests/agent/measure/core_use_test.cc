// SPDX-License-Identifier: Apache-2.0
// Whether the waits of threads come out of the kernel's accounts as shares: of files that the test
// writes, and of threads of this process that compete for one core.
#include "agent/measure/core_use.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "datapath/base/status.h"

namespace weir::agent {
namespace {

class CoreUseTest : public testing::Test {
 protected:
  CoreUseTest() : proc_(testing::TempDir() + StrCat("weir-proc-", getpid())) {}
  ~CoreUseTest() override { std::filesystem::remove_all(proc_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = proc_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void WriteThread(int tid, const std::string& name, uint64_t ran_ms, uint64_t waited_ms) const {
    Write(StrCat("7/task/", tid, "/schedstat"),
          StrCat(ran_ms * 1'000'000, " ", waited_ms * 1'000'000, " 5\n"));
    Write(StrCat("7/task/", tid, "/comm"), name + "\n");
  }
  void WriteHost(int idle, int steal, uint64_t pressure_us) const {
    Write("stat", StrCat("cpu  100 0 50 ", idle, " 0 0 10 ", steal, " 0 0\ncpu0 1 2 3\n"));
    Write("pressure/cpu", StrCat("some avg10=1.00 avg60=2.00 avg300=3.00 total=", pressure_us,
                                 "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"));
  }

  const std::string proc_;
  const TimePoint begin_{std::chrono::seconds(1000)};
};

TEST_F(CoreUseTest, SharesAreOfWhatPassedBetweenLooks) {
  WriteHost(1000, 40, 5'000'000);
  WriteThread(7, "python3", 1000, 100);
  WriteThread(8, "weir-network", 200, 50);
  WriteThread(9, "weir-decode", 200, 0);
  CoreUseMeter meter(proc_);
  EXPECT_FALSE(meter.Look(7, begin_).has_value()) << "sums since the process began are no shares";
  WriteHost(1070, 70, 5'900'000);
  WriteThread(7, "python3", 1500, 600);
  WriteThread(8, "weir-network", 300, 350);
  WriteThread(9, "weir-decode", 300, 100);
  const auto use = meter.Look(7, begin_ + std::chrono::seconds(1));
  ASSERT_TRUE(use.has_value());
  EXPECT_NEAR(use->wait_ratio, 0.9 / (0.7 + 0.9), 1e-9);
  EXPECT_NEAR(use->datapath_wait_ratio, 0.3, 1e-9) << "of the thread that waited longest";
  EXPECT_NEAR(use->steal_ratio, 0.3, 1e-9);
  EXPECT_NEAR(use->pressure_ratio, 0.9, 1e-9);
}

TEST_F(CoreUseTest, ALookTooSoonRepeatsTheLast) {
  WriteHost(1000, 0, 0);
  WriteThread(7, "weir-network", 100, 0);
  CoreUseMeter meter(proc_);
  meter.Look(7, begin_);
  WriteThread(7, "weir-network", 200, 500);
  EXPECT_FALSE(meter.Look(7, begin_ + std::chrono::milliseconds(100)).has_value());
  const auto use = meter.Look(7, begin_ + std::chrono::seconds(1));
  ASSERT_TRUE(use.has_value());
  WriteThread(7, "weir-network", 300, 500);
  const auto again = meter.Look(7, begin_ + std::chrono::milliseconds(1100));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->datapath_wait_ratio, use->datapath_wait_ratio);
  EXPECT_NEAR(use->datapath_wait_ratio, 0.5, 1e-9);
}

TEST_F(CoreUseTest, NothingIsSaidOfWhatTheKernelDoesNotAccountFor) {
  CoreUseMeter meter(proc_);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(meter.Look(7, begin_ + std::chrono::seconds(i)).has_value()) << "no such process";
  }
  Write("7/task/7/comm", "python3\n");
  EXPECT_FALSE(meter.Look(7, begin_ + std::chrono::seconds(4)).has_value()) << "no schedstat";
  Write("7/task/7/schedstat", "what is this\n");
  EXPECT_FALSE(meter.Look(7, begin_ + std::chrono::seconds(5)).has_value());
  // Without /proc/stat and pressure the rest is known all the same.
  WriteThread(7, "weir-network", 0, 0);
  meter.Look(7, begin_ + std::chrono::seconds(6));
  WriteThread(7, "weir-network", 500, 500);
  const auto use = meter.Look(7, begin_ + std::chrono::seconds(7));
  ASSERT_TRUE(use.has_value());
  EXPECT_NEAR(use->wait_ratio, 0.5, 1e-9);
  EXPECT_EQ(use->steal_ratio, 0);
  EXPECT_EQ(use->pressure_ratio, 0);
}

TEST_F(CoreUseTest, OfAProcessThatCannotBeSeenTheHostIsKnown) {
  CoreUseMeter meter(proc_);
  WriteHost(1000, 40, 5'000'000);
  EXPECT_FALSE(meter.Look(0, begin_).has_value());
  WriteHost(1070, 70, 5'900'000);
  const auto use = meter.Look(0, begin_ + std::chrono::seconds(1));
  ASSERT_TRUE(use.has_value());
  EXPECT_NEAR(use->steal_ratio, 0.3, 1e-9);
  EXPECT_NEAR(use->pressure_ratio, 0.9, 1e-9);
  EXPECT_EQ(use->wait_ratio, 0);
}

TEST_F(CoreUseTest, AProcessThatBeganAgainHasNoNegativeShares) {
  WriteHost(1000, 40, 500);
  WriteThread(7, "weir-network", 9000, 9000);
  CoreUseMeter meter(proc_);
  meter.Look(7, begin_);
  WriteHost(10, 0, 0);
  WriteThread(7, "weir-network", 10, 0);
  const auto use = meter.Look(7, begin_ + std::chrono::seconds(1));
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->wait_ratio, 0);
  EXPECT_EQ(use->datapath_wait_ratio, 0);
  EXPECT_EQ(use->steal_ratio, 0);
}

// Two threads that never sleep share one core, so that each waits for half of the time.
TEST(CoreUseOfKernelTest, ThreadsThatShareACoreWaitForIt) {
  std::atomic<bool> stop{false};
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  std::vector<std::thread> threads;
  for (const char* name : {"weir-network", "other"}) {
    threads.emplace_back([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
    pthread_setaffinity_np(threads.back().native_handle(), sizeof one, &one);
    pthread_setname_np(threads.back().native_handle(), name);
  }
  CoreUseMeter meter;
  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(5);
  std::optional<CoreUse> use;
  while (!use.has_value() && RealClock().Now() < deadline) {
    use = meter.Look(getpid(), RealClock().Now());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (!use.has_value()) GTEST_SKIP() << "this kernel does not account for waiting threads";
  EXPECT_GT(use->wait_ratio, 0.4);
  EXPECT_GT(use->datapath_wait_ratio, 0.3);
}

}  // namespace
}  // namespace weir::agent
