// SPDX-License-Identifier: Apache-2.0
// Which node of a job holds up NCCL's transfers, and what is no evidence for that.
#include "controller/model/nccl_watch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "controller/model/job_model.h"
#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

constexpr NcclShares kLate = {.own_gpu = 0.9, .wire = 0.05, .arrival = 0.05};
constexpr NcclShares kWaits = {.own_gpu = 0.4, .peer = 0.1, .wire = 0.1, .arrival = 0.4};
constexpr NcclShares kSends = {.own_gpu = 0.1, .peer = 0.1, .wire = 0.7, .arrival = 0.1};
// As where all hosts run ahead of their GPUs.
constexpr NcclShares kAlike = {.own_gpu = 0.55, .arrival = 0.45};
constexpr NcclShares kHardlyMore = {.own_gpu = 0.65, .arrival = 0.35};

class NcclWatchTest : public testing::Test {
 protected:
  static constexpr double kHeartbeatS = 5;

  void Grow(const std::string& node, const NcclShares& shares) {
    NcclObservation& sums = sums_[node];
    sums.operations += operations_;
    sums.own_gpu_s += waited_s_ * shares.own_gpu;
    sums.peer_s += waited_s_ * shares.peer;
    sums.wire_s += waited_s_ * shares.wire;
    sums.arrival_s += waited_s_ * shares.arrival;
    watch_.Add(now_s_, node, sums);
  }
  /// Heartbeats of all nodes for `windows` windows, of which each begins where the last one ended.
  void Run(int windows, const std::map<std::string, NcclShares>& nodes) {
    for (int i = 0; i < windows * NcclWatch::kWindowS / kHeartbeatS; ++i) {
      now_s_ += kHeartbeatS;
      for (const auto& [node, shares] : nodes) Grow(node, shares);
    }
  }
  /// The first sums of a node are where its first window begins.
  void Begin(const std::map<std::string, NcclShares>& nodes) {
    for (const auto& [node, shares] : nodes) Grow(node, shares);
  }
  NcclCause CauseOn(const std::string& node) const {
    return watch_.Of(node, now_s_).value_or(NcclConclusion{}).cause;
  }

  const std::map<std::string, NcclShares> quiet_ = {
      {"a", kWaits}, {"b", kWaits}, {"c", kWaits}, {"d", kWaits}};
  const std::map<std::string, NcclShares> late_b_ = {
      {"a", kWaits}, {"b", kLate}, {"c", kWaits}, {"d", kWaits}};
  uint64_t operations_ = 10;
  double waited_s_ = 2;
  double now_s_ = 1000;
  std::map<std::string, NcclObservation> sums_;
  NcclWatch watch_;
};

TEST_F(NcclWatchTest, ANodeIsLateWhenTwoWindowsInARowShowIt) {
  Begin(quiet_);
  Run(3, quiet_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone);
  Run(1, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "one window";
  Run(1, quiet_);
  Run(1, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "two windows, but not in a row";
  Run(1, late_b_);
  const auto late = watch_.Of("b", now_s_);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->cause, NcclCause::kGpusLate);
  EXPECT_NEAR(late->shares.own_gpu, 0.9, 1e-9);
  EXPECT_NEAR(late->shares.arrival, 0.05, 1e-9);
  EXPECT_EQ(late->others, 3);
  EXPECT_EQ(late->waiting, 3);
  for (const char* node : {"a", "c", "d", "unknown"}) EXPECT_EQ(CauseOn(node), NcclCause::kNone);
  Run(1, quiet_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kGpusLate) << "it ends as it began";
  EXPECT_NEAR(watch_.Of("b", now_s_)->shares.own_gpu, 0.9, 1e-9) << "of the window that shows it";
  Run(1, quiet_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone);
}

TEST_F(NcclWatchTest, AConclusionEndsWhenTwoWindowsShowOtherThings) {
  std::map<std::string, NcclShares> sends = quiet_;
  sends["b"] = kSends;
  Begin(quiet_);
  Run(2, late_b_);
  ASSERT_EQ(CauseOn("b"), NcclCause::kGpusLate);
  Run(1, sends);
  EXPECT_EQ(CauseOn("b"), NcclCause::kGpusLate);
  Run(1, quiet_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone);
}

TEST_F(NcclWatchTest, AShareIsNoEvidenceWithoutOthersThatWait) {
  const std::map<std::string, NcclShares> alike = {
      {"a", kAlike}, {"b", kHardlyMore}, {"c", kAlike}};
  Begin(alike);
  Run(4, alike);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone);
  const std::map<std::string, NcclShares> mostly_wait = {{"a", {.own_gpu = 0.1, .arrival = 0.9}},
                                                         {"b", {.own_gpu = 0.45, .arrival = 0.55}},
                                                         {"c", {.own_gpu = 0.1, .arrival = 0.9}}};
  Run(4, mostly_wait);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "b waits for the others most of the time, too";
  const std::map<std::string, NcclShares> busy = {{"a", kSends}, {"b", kLate}, {"c", kSends}};
  Run(4, busy);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "the others wait for the network, not for it";
  NcclWatch alone;
  NcclObservation sums;
  for (int i = 0; i < 60; ++i) {
    sums.operations += 10;
    sums.own_gpu_s += 1;
    alone.Add(now_s_ += kHeartbeatS, "a", sums);
  }
  EXPECT_FALSE(alone.Of("a", now_s_).has_value());
}

TEST_F(NcclWatchTest, SeveralNodesCanBeLateAsLongAsMostAreNot) {
  std::map<std::string, NcclShares> nodes = late_b_;
  nodes["e"] = kLate;
  Begin(nodes);
  Run(3, nodes);
  EXPECT_EQ(CauseOn("b"), NcclCause::kGpusLate);
  EXPECT_EQ(CauseOn("e"), NcclCause::kGpusLate);
  EXPECT_EQ(watch_.Of("e", now_s_)->waiting, 3);
  EXPECT_EQ(watch_.Of("e", now_s_)->others, 4);
  nodes["a"] = nodes["c"] = kLate;
  Run(3, nodes);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "d waits for all of them";
}

TEST_F(NcclWatchTest, TheWireBindsWhereTransfersWaitForItMostly) {
  std::map<std::string, NcclShares> nodes = quiet_;
  nodes["c"] = kSends;
  Begin(nodes);
  Run(2, nodes);
  const auto wire = watch_.Of("c", now_s_);
  ASSERT_TRUE(wire.has_value());
  EXPECT_EQ(wire->cause, NcclCause::kWireBinds);
  EXPECT_NEAR(wire->shares.wire, 0.7, 1e-9);
  EXPECT_EQ(wire->waiting, 3);
  for (auto& [node, shares] : nodes) shares = kSends;
  Run(2, nodes);
  EXPECT_EQ(CauseOn("a"), NcclCause::kWireBinds);
  EXPECT_EQ(watch_.Of("a", now_s_)->waiting, 0) << "it binds all alike";
}

TEST_F(NcclWatchTest, AnAgentThatRestartsBeginsAnotherWindow) {
  Begin(quiet_);
  Run(4, quiet_);
  sums_["b"] = {};
  Run(2, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "its first sums only begin a window";
  Run(1, late_b_);
  const auto late = watch_.Of("b", now_s_);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->cause, NcclCause::kGpusLate);
  EXPECT_NEAR(late->shares.own_gpu, 0.9, 1e-9);
}

TEST_F(NcclWatchTest, ANodeWithoutOperationsLosesItsConclusion) {
  Begin(late_b_);
  Run(3, late_b_);
  ASSERT_EQ(CauseOn("b"), NcclCause::kGpusLate);
  const std::map<std::string, NcclShares> others = {{"a", kWaits}, {"c", kWaits}, {"d", kWaits}};
  for (int window = 0; window < 7; ++window) {
    Run(1, others);
    watch_.Add(now_s_, "b", sums_["b"]);  // its agent lives, and NCCL rests
  }
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone);
  EXPECT_EQ(watch_.size(), 4u);
  watch_.Add(now_s_, "b", sums_["b"]);
  Run(1, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "one window";
  Run(2, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kGpusLate);
}

TEST_F(NcclWatchTest, SilenceEndsItAndForgetsTheNode) {
  Begin(late_b_);
  Run(3, late_b_);
  ASSERT_EQ(CauseOn("b"), NcclCause::kGpusLate);
  EXPECT_EQ(watch_.size(), 4u);
  const std::map<std::string, NcclShares> others = {{"a", kWaits}, {"c", kWaits}, {"d", kWaits}};
  Run(3, others);
  EXPECT_EQ(CauseOn("b"), NcclCause::kGpusLate) << "not silent for long";
  Run(5, others);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone);
  EXPECT_EQ(watch_.size(), 3u);
  Begin(late_b_);
  Run(1, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "what was seen before the silence does not count";
  Run(1, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kGpusLate);
}

TEST_F(NcclWatchTest, AWindowNeedsOperationsAndWaits) {
  const auto begin = [&](uint64_t operations, double waited_s) {
    watch_ = NcclWatch();
    operations_ = operations;
    waited_s_ = waited_s;
    Begin(late_b_);
  };
  begin(0, 2);
  Run(6, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "no operation was sampled";
  begin(10, 1e-3);
  Run(6, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "transfers hardly wait";
  begin(2, 2);
  Run(5, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kNone) << "few operations make long windows";
  Run(1, late_b_);
  EXPECT_EQ(CauseOn("b"), NcclCause::kGpusLate);
}

// A sum of the framework counts from the entry of the last rank, so that a late GPU does not make
// it look dear. Taking the node's waits out of it as well would make it look cheaper than it is.
TEST(NcclWaitsOfAJobTest, ALateRankDoesNotMakeSumsOfTheFrameworkDear) {
  constexpr test::TrueNetwork kLink = {2e-4, 1.19e8};
  struct Outcome {
    double predicted_s = 0;
    std::optional<NcclConclusion> nccl;
  };
  const auto run = [&](double slow_compute, bool reports) {
    FakeClock clock;
    test::SimulatedJob::Options options;
    options.framework = true;
    options.slow_rank = 2;
    options.slow_compute = slow_compute;
    test::SimulatedJob job(options, clock);
    job.SetPlan(1, PlanModel(job.plan().size(), {"identity", "framework", 1, 0}));
    std::map<std::string, NcclObservation> sums;
    for (int i = 0; i < 800; ++i) {
      job.Step(kLink);
      if (!reports || i % 10 != 0) continue;
      for (int r = 0; r < 4; ++r) {
        const std::string node = "node" + std::to_string(r);
        NcclObservation& seen = sums[node];
        seen.operations += 10;
        (r == 2 ? seen.own_gpu_s : seen.arrival_s) += 1;
        job.model().OnNccl(node, seen);
      }
    }
    Outcome outcome{.nccl = job.model().NcclOn("node2")};
    for (const PredictionRecord& record : job.model().TakePredictions()) {
      if (record.step > 700 && record.bucket == "bucket0") outcome.predicted_s = record.predicted_s;
    }
    return outcome;
  };
  const Outcome even = run(1, false), late = run(3, false), told = run(3, true);
  ASSERT_GT(even.predicted_s, 0);
  const double late_s = 2 * test::SimulatedJob::Options{}.compute_s;
  EXPECT_LT(late.predicted_s, even.predicted_s + 0.05 * late_s);
  EXPECT_EQ(told.predicted_s, late.predicted_s);
  ASSERT_TRUE(told.nccl.has_value());
  EXPECT_EQ(told.nccl->cause, NcclCause::kGpusLate);
  EXPECT_FALSE(late.nccl.has_value());
}

}  // namespace
}  // namespace weir
