// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/log.h"
#include "deploy/program/log_flags.h"

namespace weir {
namespace {

TEST(StopSignalTest, EndsTheWaitAndNotTheProcess) {
  HoldStopSignals();
  EXPECT_EQ(WaitForStopSignal(Duration::zero()), 0);
  for (const int number : {SIGTERM, SIGINT}) {
    kill(getpid(), number);
    EXPECT_EQ(WaitForStopSignal(std::chrono::seconds(10)), number);
    kill(getpid(), number);
    EXPECT_EQ(WaitForStopSignal(), number);
  }
  raise(SIGPIPE);  // would end the process
}

TEST(StopSignalTest, TheLevelOfLoggingFollowsTwoOtherSignals) {
  HoldStopSignals();
  ASSERT_TRUE(UseLogFlags({.level = "warning", .format = "text"}).ok());
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, std::string_view, std::string_view line) { lines.emplace_back(line); });
  const auto after = [](int number) {
    kill(getpid(), number);
    EXPECT_EQ(WaitForStopSignal(std::chrono::milliseconds(20)), 0);
    return MinimumLogLevel();
  };
  EXPECT_EQ(after(SIGUSR1), LogLevel::kDebug);
  EXPECT_EQ(after(SIGUSR2), LogLevel::kWarning);
  kill(getpid(), SIGUSR1);
  kill(getpid(), SIGTERM);
  EXPECT_EQ(WaitForStopSignal(), SIGTERM);
  SetLogSink({});
  ASSERT_TRUE(UseLogFlags({}).ok());
  ASSERT_GE(lines.size(), 2U);
  EXPECT_EQ(lines[1], "from now on, by a signal: warning");
}

TEST(StopSignalTest, WaitsForTheGivenTime) {
  HoldStopSignals();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(WaitForStopSignal(std::chrono::milliseconds(30)), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
}

// Threads that start later leave the signal to the thread that waits for it.
TEST(StopSignalTest, OtherThreadsDoNotTakeIt) {
  HoldStopSignals();
  std::jthread idle([](std::stop_token stop) {
    while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  kill(getpid(), SIGTERM);
  EXPECT_EQ(WaitForStopSignal(std::chrono::seconds(10)), SIGTERM);
}

// Threads that a library started before main do not block the signal. They must not take it either.
TEST(StopSignalTest, EarlierThreadsPassTheSignalOn) {
  std::jthread before([](std::stop_token stop) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGTERM, SIGINT}) sigaddset(&signals, number);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  HoldStopSignals();
  for (const int number : {SIGTERM, SIGINT}) {
    pthread_kill(before.native_handle(), number);
    EXPECT_EQ(WaitForStopSignal(std::chrono::seconds(10)), number);
    kill(getpid(), number);
    EXPECT_EQ(WaitForStopSignal(std::chrono::seconds(10)), number);
  }
}

}  // namespace
}  // namespace weir
