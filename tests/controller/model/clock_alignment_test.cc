// SPDX-License-Identifier: Apache-2.0
#include "controller/model/clock_alignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "datapath/base/random.h"

namespace weir {
namespace {

/// Ranks with clocks that start at different moments enter late at random; a collective lasts
/// `cost_s` from the last entry.
class World {
 public:
  World(int world, uint64_t seed) : random_(seed), alignment_(world), begin_s_(world) {
    for (double& begin : begin_s_) begin = 0.5 * random_.Uniform();
  }

  /// Runs one step with one collective. `gather`: the last to enter leaves at once.
  double Step(double cost_s, bool gather, bool lose = false) {
    const int world = static_cast<int>(begin_s_.size());
    ++step_;
    std::vector<double> enter(world), step_s(world);
    for (int r = 0; r < world; ++r) enter[r] = now_s_ + 0.1 + 0.02 * random_.Uniform();
    const double last = *std::max_element(enter.begin(), enter.end());
    std::vector<ClockAlignment::Interval> intervals(world);
    double end = 0;
    for (int r = 0; r < world; ++r) {
      const double leave = gather && enter[r] == last ? enter[r] + 1e-5 : last + cost_s;
      intervals[r] = {enter[r] - begin_s_[r], leave - begin_s_[r]};
      end = std::max(end, leave);
    }
    for (int r = 0; r < world; ++r) {
      const double next = end + 0.001 * random_.Uniform();
      step_s[r] = next - begin_s_[r];
    }
    double measured = -1;
    if (!lose) {
      alignment_.BeginStep(step_, step_s);
      measured = alignment_.Add(intervals);
    }
    for (int r = 0; r < world; ++r) begin_s_[r] += step_s[r];
    now_s_ = end;
    return measured;
  }

 private:
  Random random_;
  ClockAlignment alignment_;
  std::vector<double> begin_s_;
  double now_s_ = 1;
  uint64_t step_ = 0;
};

TEST(ClockAlignmentTest, FindsTheCostThatLateRanksHide) {
  World world(4, 1);
  for (int i = 0; i < 20; ++i) world.Step(0.005, false);
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(world.Step(0.005, false), 0.005, 0.002);
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(world.Step(0.100, false), 0.100, 0.002);
}

TEST(ClockAlignmentTest, GatherCostIsNotTheLastRanksOwnTime) {
  World world(4, 2);
  for (int i = 0; i < 40; ++i) world.Step(0.008, true);
  // The last rank itself measures 10 us, the first up to 28 ms.
  double sum = 0;
  for (int i = 0; i < 20; ++i) sum += world.Step(0.008, true);
  EXPECT_NEAR(sum / 20, 0.008, 0.002);
}

TEST(ClockAlignmentTest, SilentUntilAlignedAndAfterALostStep) {
  World world(3, 3);
  for (int i = 0; i < ClockAlignment::kStepsMin; ++i) EXPECT_LT(world.Step(0.005, false), 0);
  for (int i = 0; i < 10; ++i) EXPECT_GE(world.Step(0.005, false), 0);
  world.Step(0.005, false, /*lose=*/true);
  EXPECT_LT(world.Step(0.005, false), 0);
  for (int i = 0; i < 10; ++i) world.Step(0.005, false);
  EXPECT_NEAR(world.Step(0.005, false), 0.005, 0.004);
}

TEST(ClockAlignmentTest, HugeWorldsAreNotAligned) {
  World world(ClockAlignment::kWorldMax + 1, 4);
  for (int i = 0; i < 10; ++i) EXPECT_LT(world.Step(0.005, false), 0);
}

}  // namespace
}  // namespace weir
