// SPDX-License-Identifier: Apache-2.0
// Promises of plans: when one is broken, and which changes are held for how long.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/job/change_holds.h"
#include "controller/job/promise_watch.h"

namespace weir {
namespace {

constexpr Promise kPromise = {
    .cost_s = 0.2, .deviation_s = 0.02, .before_s = 0.4, .worth_min = 0.05};

/// A plan with steps of 0.4 s ran, of which 0.1 s are computed; another one runs since step 100.
class PromiseWatchTest : public testing::Test {
 protected:
  PromiseWatchTest() {
    watch_.Begin(80, std::nullopt);
    for (uint64_t step = 80; step < 100; ++step) {
      watch_.OnStep({.step = step, .step_s = 0.4 + (step % 2 == 0 ? 0.004 : 0), .compute_s = 0.1});
    }
    watch_.Begin(100, kPromise);
  }
  bool Broken(double step_s, double compute_s = 0.1, double gain = 1) {
    return watch_.OnStep({.step = step_++, .step_s = step_s, .gain = gain, .compute_s = compute_s})
        .has_value();
  }

  PromiseWatch watch_;
  uint64_t step_ = 100;
};

TEST_F(PromiseWatchTest, TwoComparableStepsThatSaveNothingBreakIt) {
  EXPECT_FALSE(Broken(0.9)) << "the step of the switch";
  EXPECT_FALSE(Broken(0.9)) << "connections warm up";
  EXPECT_FALSE(Broken(0.39));
  EXPECT_FALSE(Broken(0.21)) << "not in a row";
  EXPECT_FALSE(Broken(0.39));
  EXPECT_TRUE(Broken(0.39)) << "saves too little for a switch";
  EXPECT_EQ(watch_.state(), PromiseWatch::State::kBroken);
  EXPECT_FALSE(Broken(0.9)) << "said once";
}

TEST_F(PromiseWatchTest, WhatIsWithinTheIntervalKeepsIt) {
  step_ = 102;
  EXPECT_FALSE(Broken(0.22));
  EXPECT_EQ(watch_.state(), PromiseWatch::State::kWatched);
  EXPECT_FALSE(Broken(0.22));
  EXPECT_EQ(watch_.state(), PromiseWatch::State::kKept);
  EXPECT_FALSE(Broken(2));
  EXPECT_FALSE(Broken(2)) << "later trouble is no broken promise";
}

TEST_F(PromiseWatchTest, HalfOfThePromiseIsStillWorthTheSwitch) {
  step_ = 102;
  EXPECT_FALSE(Broken(0.3));
  EXPECT_FALSE(Broken(0.3));
  EXPECT_EQ(watch_.state(), PromiseWatch::State::kKept);
}

TEST_F(PromiseWatchTest, StepsThatComputeLongerAreNotJudged) {
  step_ = 102;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Broken(0.9, 0.5));
  EXPECT_EQ(watch_.state(), PromiseWatch::State::kWatched);
  EXPECT_FALSE(Broken(0.9));
  EXPECT_TRUE(Broken(0.9));
}

TEST_F(PromiseWatchTest, ProgressCounts) {
  Promise promise = kPromise;
  promise.exponent = 1;
  watch_.Begin(100, promise);
  EXPECT_EQ(watch_.state(), PromiseWatch::State::kNone) << "nothing was measured between";
  for (step_ = 100; step_ < 110;) Broken(0.4);
  watch_.Begin(110, promise);
  step_ = 112;
  EXPECT_FALSE(Broken(0.25, 0.1, 0.5));
  EXPECT_TRUE(Broken(0.25, 0.1, 0.5)) << "0.5 s for the progress of a dense step";
}

TEST_F(PromiseWatchTest, AnotherNetworkOrDenseStepsBetweenAreNoEvidence) {
  watch_.Forgive();
  step_ = 102;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Broken(0.9));
  watch_.Begin(200, kPromise);
  step_ = 202;
  watch_.Pause();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Broken(9)) << "dense for a few steps";
  watch_.Resume(210);
  step_ = 212;
  EXPECT_FALSE(Broken(1.2));
  EXPECT_TRUE(Broken(1.2));
}

const HeldChange kToHalf = {.to = {"fp16", "ring", 1, 0}};
const HeldChange kToTopK = {.to = {"top_k", "sparse_all_gather", 0.01, 0}};

KnownNetwork At(double bandwidth) { return {{1e-3, 1e-4, 0}, {bandwidth, 0.05 * bandwidth, 0}}; }

TEST(ChangeHoldsTest, EachFailureDoublesTheTime) {
  ChangeHolds holds;
  TimePoint now{};
  double held_s = 60;
  for (int failures = 1; failures <= 10; ++failures) {
    holds.OnBroken(kToTopK, At(1e7), At(1e7), now);
    const auto held = holds.Get(At(1e7), now);
    ASSERT_EQ(held.size(), 1u);
    EXPECT_EQ(held[0].failures, failures);
    EXPECT_NEAR(held[0].held_s, std::min(held_s, 3600.0), 1e-6);
    now += FromSeconds(held[0].held_s);
    EXPECT_TRUE(holds.Get(At(1e7), now).empty()) << "it may be tried again";
    held_s *= 2;
  }
  holds.Forget(kToTopK);
  holds.OnBroken(kToTopK, At(1e7), At(1e7), now);
  EXPECT_EQ(holds.Get(At(1e7), now)[0].failures, 1) << "it had kept its promise";
}

TEST(ChangeHoldsTest, AnotherNetworkForgetsButNotWhatPlansTeachInTurn) {
  ChangeHolds holds;
  holds.OnBroken(kToTopK, At(1e7), At(3e7), {});
  for (const double believed : {0.8e7, 1e7, 2e7, 3e7, 4e7}) {
    EXPECT_EQ(holds.Get(At(believed), {}).size(), 1u) << believed;
  }
  EXPECT_TRUE(holds.Get(At(1e8), {}).empty());
  EXPECT_TRUE(holds.Get(At(1e7), {}).empty()) << "forgotten for good";
}

TEST(ChangeHoldsTest, AreBoundedAndKeptApart) {
  ChangeHolds holds;
  holds.OnBroken(kToHalf, At(1e7), At(1e7), {});
  for (double ratio = 1e-9; ratio < 0.5; ratio *= 4) {
    holds.OnBroken({.to = {"top_k", "sparse_all_gather", ratio, 0}}, At(1e7), At(1e7), {});
  }
  const auto held = holds.Get(At(1e7), {});
  EXPECT_EQ(held.size(), ChangeHolds::kChangesMax);
  for (const HeldChange& one : held) EXPECT_FALSE(IsAlike(one, kToHalf)) << "the oldest";
}

TEST(HeldChangeTest, IsOfWhatMostChangedElementsGoTo) {
  std::vector<BucketModel> buckets(3);
  buckets[0].elements = 100;
  buckets[1].elements = 60;
  buckets[2].elements = 1000;
  const ChoiceModel dense{}, half = kToHalf.to, top_k = kToTopK.to;
  const PlanLayout even, turned{{0, 2, 1}, {}};
  const HeldChange mixed =
      DescribeChange(buckets, {{dense, dense, top_k}, even}, {{half, top_k, top_k}, even});
  EXPECT_EQ(mixed.to, half);
  const HeldChange layout =
      DescribeChange(buckets, {{half, half, half}, even}, {{half, half, half}, turned});
  EXPECT_TRUE(layout.layout_only);
  EXPECT_FALSE(IsAlike(layout, mixed));
  HeldChange near = kToTopK;
  near.to.ratio = 0.025;
  EXPECT_TRUE(IsAlike(near, kToTopK));
  near.to.ratio = 0.04;
  EXPECT_FALSE(IsAlike(near, kToTopK));
  near = kToTopK;
  near.to.bits = 8;
  EXPECT_FALSE(IsAlike(near, kToTopK));
}

}  // namespace
}  // namespace weir
