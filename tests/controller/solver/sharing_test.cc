// SPDX-License-Identifier: Apache-2.0
// Several jobs over one bottleneck: capacity is not share. Each sees what the others leave of the
// link, which depends on what they send.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

constexpr test::TrueNetwork kBottleneck{1e-3, 6e7};
constexpr int kRolloutOfSharing = 3;  // steps from an offer to its activation

/// The network that one flow gets beside others that are on the link for these shares of the time.
test::TrueNetwork Beside(double duty_of_others) {
  return {kBottleneck.latency_s, kBottleneck.bandwidth / (1 + duty_of_others)};
}

class SharingJob {
 public:
  /// `fixed`: for all buckets, throughout; none: what is decided.
  SharingJob(uint64_t seed, const std::optional<ChoiceModel>& fixed)
      : job_(OptionsOf(seed), clock_), decides_(!fixed.has_value()) {
    if (fixed.has_value()) job_.SetPlan(++version_, PlanModel(job_.plan().size(), *fixed));
  }

  void Step(const test::TrueNetwork& network) {
    if (offered_.has_value() && job_.step() >= offered_at_ + kRolloutOfSharing) {
      job_.SetPlan(++version_, *offered_);
      switches_.push_back(job_.clock_s());
      offered_.reset();
    }
    job_.Step(network);
    progress_ += job_.TrueGain(job_.plan());
    duty_ += 0.2 * (job_.busy_share() - duty_);
    if (decides_ && !offered_.has_value()) MaybeDecide();
  }
  void ForgetSums() { progress_ = 0; }

  double clock_s() const { return job_.clock_s(); }
  double duty() const { return duty_; }
  double progress() const { return progress_; }
  /// Seconds at which plans began.
  const std::vector<double>& switches() const { return switches_; }

 private:
  static test::SimulatedJob::Options OptionsOf(uint64_t seed) {
    test::SimulatedJob::Options options;
    options.seed = seed;
    options.arrivals = true;
    return options;
  }

  void MaybeDecide() {
    const auto trigger = job_.model().TakeTrigger(10);
    if (!trigger.has_value()) return;
    const auto snapshot = job_.model().MakeSnapshot("periodic");
    ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
    const auto decision = Decide(*snapshot, {});
    ASSERT_TRUE(decision.ok()) << ToString(decision.status());
    if (!decision->switched) return;
    offered_ = decision->chosen.choices;
    offered_at_ = job_.step();
  }

  FakeClock clock_;
  test::SimulatedJob job_;
  bool decides_;
  std::optional<PlanModel> offered_;
  uint64_t offered_at_ = 0, version_ = 0;
  double duty_ = 0.5, progress_ = 0;
  std::vector<double> switches_;
};

constexpr double kSettledS = 60, kEndS = 360, kTrialS = 60;

struct Together {
  double progress_per_s = 0;
  size_t switches = 0;  // once settled
};

/// Runs `count` jobs side by side until `end_s`; what they do after `begin_s` counts.
Together RunTogether(int count, uint64_t seed, const std::optional<ChoiceModel>& fixed,
                     double begin_s, double end_s) {
  std::vector<std::unique_ptr<SharingJob>> jobs;
  for (int j = 0; j < count; ++j) {
    jobs.push_back(std::make_unique<SharingJob>(100 * seed + static_cast<uint64_t>(j), fixed));
  }
  const auto run_until = [&](double until_s) {
    for (;;) {
      const auto next = std::min_element(
          jobs.begin(), jobs.end(),
          [](const auto& a, const auto& b) { return a->clock_s() < b->clock_s(); });
      if ((*next)->clock_s() >= until_s || testing::Test::HasFatalFailure()) return;
      double others = 0;
      for (const auto& job : jobs) others += job == *next ? 0 : job->duty();
      (*next)->Step(Beside(others));
    }
  };
  run_until(begin_s);
  for (auto& job : jobs) job->ForgetSums();
  run_until(end_s);
  Together together;
  for (const auto& job : jobs) {
    together.progress_per_s += job->progress() / (end_s - begin_s);
    together.switches +=
        static_cast<size_t>(std::count_if(job->switches().begin(), job->switches().end(),
                                          [begin_s](double at_s) { return at_s > begin_s; }));
  }
  return together;
}

/// The most progress of all plans that are the same for all jobs and buckets, in hindsight, in the
/// same simulation.
double BestSharing(int count, uint64_t seed) {
  std::vector<ChoiceModel> choices = {{"identity", "ring", 1, 0}, {"fp16", "ring", 1, 0},
                                      {"qsgd", "ring", 1, 0},     {"identity", "tree", 1, 0},
                                      {"fp16", "tree", 1, 0},     {"qsgd", "tree", 1, 0}};
  for (const double ratio : {0.3, 0.1, 0.03, 0.01, 0.003, 0.001}) {
    choices.push_back({"top_k", "sparse_all_gather", ratio, 0});
  }
  double best = 0;
  for (const ChoiceModel& choice : choices) {
    best = std::max(best, RunTogether(count, seed, choice, 5, kTrialS).progress_per_s);
  }
  return best;
}

class SharingTest : public testing::TestWithParam<int> {};

TEST_P(SharingTest, JobsOverOneBottleneckSettleNearTheBestSharing) {
  const int count = GetParam();
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Together together = RunTogether(count, seed, std::nullopt, kSettledS, kEndS);
    const double share = together.progress_per_s / BestSharing(count, seed);
    std::printf("%d jobs, seed %d: %zu switches, %.3f of the best sharing\n", count,
                static_cast<int>(seed), together.switches, share);
    EXPECT_GE(share, 0.95) << "seed " << seed;
    EXPECT_EQ(together.switches, 0u) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, SharingTest, testing::Values(2, 4));

}  // namespace
}  // namespace weir
