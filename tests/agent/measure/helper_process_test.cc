// SPDX-License-Identifier: Apache-2.0
// A helper that hangs, fails, floods or dies may only cost its deadline.
#include "agent/measure/helper_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace weir::agent {
namespace {

HelperCommand Shell(const std::string& script) { return {"/bin/sh", {"-c", script}, "input\n"}; }

StatusOr<std::string> RunFor(const HelperCommand& command, Duration limit) {
  auto helper = HelperProcess::Spawn(command);
  if (!helper.ok()) return helper.status();
  return (*helper)->Wait(RealClock().Now() + limit, RealClock(), {});
}

TEST(HelperProcessTest, GivesInputAndReturnsDescriptorThree) {
  const auto output =
      RunFor(Shell("read line; echo to-nowhere; echo got $line >&3"), std::chrono::seconds(10));
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(*output, "got input\n");
}

TEST(HelperProcessTest, HangingHelperIsKilledAtItsDeadline) {
  auto helper = HelperProcess::Spawn(Shell("exec sleep 60"));
  ASSERT_TRUE(helper.ok());
  const pid_t pid = (*helper)->pid();
  const TimePoint start = RealClock().Now();
  const auto output =
      (*helper)->Wait(start + std::chrono::milliseconds(200), RealClock(), std::stop_token());
  EXPECT_EQ(output.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(RealClock().Now() - start, std::chrono::seconds(5));
  EXPECT_EQ(kill(pid, 0), -1);  // reaped: the id names nothing
}

TEST(HelperProcessTest, StopEndsAHelper) {
  auto helper = HelperProcess::Spawn(Shell("exec sleep 60"));
  ASSERT_TRUE(helper.ok());
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  const auto output = (*helper)->Wait(TimePoint::max(), RealClock(), stop.get_token());
  EXPECT_EQ(output.status().code(), StatusCode::kAborted);
}

TEST(HelperProcessTest, EndWithoutAResultTellsStatusAndStandardError) {
  const auto output = RunFor(Shell("echo the reason >&2; exit 7"), std::chrono::seconds(10));
  EXPECT_EQ(output.status().code(), StatusCode::kInternal);
  EXPECT_NE(Message(output.status()).find("exited with 7"), std::string::npos) << output.status();
  EXPECT_NE(Message(output.status()).find("the reason"), std::string::npos) << output.status();
}

TEST(HelperProcessTest, CrashIsNamedBySignal) {
  const auto output = RunFor(Shell("kill -SEGV $$"), std::chrono::seconds(10));
  EXPECT_NE(Message(output.status()).find("signal 11"), std::string::npos) << output.status();
}

TEST(HelperProcessTest, FloodIsBounded) {
  const auto output = RunFor(Shell("yes >&3"), std::chrono::seconds(30));
  EXPECT_EQ(output.status().code(), StatusCode::kResourceExhausted);
}

TEST(HelperProcessTest, NoOtherDescriptorsAreInherited) {
  const FileDescriptor mine(dup(0));  // not close-on-exec
  // 4 is the directory that ls itself reads.
  const auto output = RunFor(Shell("exec ls /proc/self/fd >&3"), std::chrono::seconds(10));
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(*output, "0\n1\n2\n3\n4\n");
}

TEST(HelperProcessTest, MissingProgramIsAnError) {
  EXPECT_FALSE(RunFor({"/nonexistent", {}, ""}, std::chrono::seconds(1)).ok());
}

}  // namespace
}  // namespace weir::agent
