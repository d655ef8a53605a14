// SPDX-License-Identifier: Apache-2.0
// Deadlines follow the measured times, which the test invents.

#include "datapath/session/adaptive_deadline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "datapath/base/status.h"
#include "datapath/plan/plan.h"

namespace weir {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kBucket = 7, kOther = 8;

/// A job whose operations and steps take the times that the test gives.
class Steps {
 public:
  explicit Steps(Duration floor = milliseconds(10), Duration ceiling = seconds(60))
      : adaptive_deadline_({floor, ceiling}) {}

  /// Runs one operation and returns the time that it was allowed.
  Duration Run(uint64_t bucket, Duration takes, const std::string& choice = "dense") {
    const Duration allowed = adaptive_deadline_.Begin(step_, {bucket}, choice, now_);
    now_ += takes;
    adaptive_deadline_.Finish(now_);
    return allowed;
  }
  /// Runs `count` steps of 100 ms with two operations of 2 ms each. Returns the time that the
  /// second operation of the last step was allowed.
  Duration Steady(int count, const std::string& choice = "dense") {
    Duration allowed{};
    for (int i = 0; i < count; ++i) {
      Run(kBucket, milliseconds(2), choice);
      allowed = Run(kOther, milliseconds(2), choice);
      Next(milliseconds(96));
    }
    return allowed;
  }
  void Next(Duration pause) {
    now_ += pause;
    ++step_;
  }
  AdaptiveDeadline& deadline() { return adaptive_deadline_; }

 private:
  AdaptiveDeadline adaptive_deadline_;
  uint64_t step_ = 0;
  TimePoint now_{seconds(1000)};
};

TEST(AdaptiveDeadlineTest, TheCeilingCountsUntilEnoughWasMeasured) {
  Steps steps;
  for (int i = 0; i < AdaptiveDeadline::kSamplesMin; ++i) {
    EXPECT_EQ(steps.Steady(1), seconds(60)) << "step " << i;
  }
  EXPECT_LT(steps.Steady(1), seconds(10));
}

TEST(AdaptiveDeadlineTest, ASettledJobGetsTenStepsAndOperations) {
  Steps steps;
  const double allowed = ToSeconds(steps.Steady(100));
  EXPECT_NEAR(allowed, 10 * (0.1 + 0.002), 0.05);
  EXPECT_THAT(steps.deadline().Explain(), HasSubstr("usually takes 0.002 s and a step 0.1 s"));
}

TEST(AdaptiveDeadlineTest, TheFirstOperationOfAStepMayAlwaysWaitForALateRank) {
  Steps steps;
  steps.Steady(100);
  EXPECT_EQ(steps.Run(kBucket, seconds(30)), seconds(60));  // a rank writes a checkpoint
  EXPECT_LT(steps.Run(kOther, milliseconds(2)), seconds(60));
  EXPECT_THAT(steps.deadline().Explain(), HasSubstr("were allowed"));
}

TEST(AdaptiveDeadlineTest, ANetworkTenTimesSlowerIsSurvivedAndThenExpected) {
  Steps steps;
  const Duration before = steps.Steady(100);
  EXPECT_GT(before, 10 * milliseconds(2));
  Duration allowed{};
  for (int i = 0; i < 50; ++i) {
    steps.Run(kBucket, milliseconds(20));
    allowed = steps.Run(kOther, milliseconds(20));
    EXPECT_GT(allowed, milliseconds(20)) << "step " << i;
    steps.Next(milliseconds(960));
  }
  EXPECT_GT(allowed, 5 * before);
}

TEST(AdaptiveDeadlineTest, StragglersWhoseStepsBecomeTenTimesAsLongAreSurvived) {
  Steps steps;
  // A rank is late in the middle of a backward pass, which now takes a second.
  EXPECT_GT(steps.Steady(100), seconds(1));
}

TEST(AdaptiveDeadlineTest, AnotherChoiceBeginsAnew) {
  Steps steps;
  EXPECT_LT(steps.Steady(20, "dense"), seconds(60));
  for (int i = 0; i < AdaptiveDeadline::kSamplesMin; ++i) {
    EXPECT_EQ(steps.Steady(1, "top_k"), seconds(60)) << "step " << i;
  }
  EXPECT_LT(steps.Steady(1, "top_k"), seconds(60));
}

TEST(AdaptiveDeadlineTest, FloorAndCeilingHold) {
  EXPECT_EQ(Steps(seconds(5)).Steady(50), seconds(5));
  EXPECT_EQ(Steps(milliseconds(1), milliseconds(500)).Steady(50), milliseconds(500));
  EXPECT_EQ(Steps(seconds(90), seconds(60)).Steady(50), seconds(60));
}

TEST(AdaptiveDeadlineTest, AnHourBetweenStepsEndsAtTheCeilingAndIsForgotten) {
  Steps steps;
  steps.Steady(20);
  steps.Run(kBucket, milliseconds(2));
  steps.Next(std::chrono::hours(1));
  EXPECT_EQ(steps.Steady(1), seconds(60));
  EXPECT_LT(steps.Steady(200), seconds(2));
}

// Otherwise a rank that waits for a rank that itself waits would name the wrong one.
TEST(AdaptiveDeadlineTest, APartAfterOneWithoutSomeRanksOutlastsThatOne) {
  AdaptiveDeadline deadline({.floor = milliseconds(10), .ceiling = seconds(60)});
  TimePoint now{seconds(1000)};
  const auto run = [&](const AdaptiveDeadline::Part& part, uint64_t step, Duration takes,
                       bool by_all) {
    const Duration allowed = deadline.Begin(step, part, "choice", now);
    now += takes;
    deadline.Finish(now, by_all);
    return allowed;
  };
  for (uint64_t step = 0; step < 50; ++step) {
    run({kBucket}, step, milliseconds(2), true);
    const Duration within_node = run({kOther, 1}, step, milliseconds(50), false);
    const Duration across = run({kOther, 2}, step, milliseconds(1), true);
    EXPECT_EQ(across, within_node + std::min<Duration>(within_node / 10, seconds(1))) << step;
    now += milliseconds(47);
  }
  EXPECT_LT(run({kOther, 2}, 50, milliseconds(1), true), seconds(61)) << "another step's";
}

TEST(AdaptiveDeadlineTest, EveryFieldOfAChoiceTellsItApart) {
  const Choice choice{
      .codec = "top_k", .collective = "ring", .ratio = 0.1, .bits = 8, .segment_bytes = 256};
  EXPECT_EQ(AdaptiveDeadlineKey(choice), AdaptiveDeadlineKey(Choice(choice)));
  std::set<std::string> keys = {AdaptiveDeadlineKey(choice)};
  const auto differs = [&](auto change) {
    Choice other = choice;
    change(other);
    return keys.insert(AdaptiveDeadlineKey(other)).second;
  };
  EXPECT_TRUE(differs([](Choice& c) { c.codec = "dgc"; }));
  EXPECT_TRUE(differs([](Choice& c) { c.collective = "mesh"; }));
  EXPECT_TRUE(differs([](Choice& c) { c.ratio = std::nextafter(0.1, 1); }));
  EXPECT_TRUE(differs([](Choice& c) { c.bits = 16; }));
  EXPECT_TRUE(differs([](Choice& c) { c.segment_bytes = 1; }));
}

}  // namespace
}  // namespace weir
