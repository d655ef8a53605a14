// SPDX-License-Identifier: Apache-2.0
// The closed loop: a simulated job over a changing network, observed with noise, decided by Decide,
// switched with the delay of a real rollout.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

constexpr int kRolloutSteps = 3;  // offer, ack, arm, activation

struct Phase {
  const char* name;
  test::TrueNetwork network;
  int steps;
};

struct Switch {
  uint64_t step;
  std::string from, to, trigger, reason;
};

struct Outcome {
  std::vector<Trigger> triggers;
  std::vector<Switch> switches;
  std::vector<double> prediction_errors;
  double cost_s = 0;  // sum of step time / gain
  double best_s = 0;  // the same for the best uniform plan of each phase, in hindsight
  double dense_s = 0;
  int probes = 0;
};

class Loop {
 public:
  explicit Loop(test::SimulatedJob::Options options) : job_(options, clock_) {}

  void Run(const Phase& phase, const Policy& policy, Outcome* outcome) {
    for (int i = 0; i < phase.steps; ++i) {
      if (offered_.has_value() && job_.step() >= offered_at_ + kRolloutSteps) {
        job_.SetPlan(++version_, *offered_);
        offered_.reset();
      }
      job_.Step(phase.network);
      outcome->cost_s += job_.TrueStep(phase.network, job_.plan()) / job_.TrueGain(job_.plan());
      if (job_.model().WantsBandwidthProbe() && job_.clock_s() - probed_s_ > 3) {
        probed_s_ = job_.clock_s();
        job_.Probe(phase.network);
      }
      if (!offered_.has_value()) MaybeDecide(policy, outcome);
    }
    for (const PredictionRecord& record : job_.model().TakePredictions()) {
      if (record.step < 2) continue;
      outcome->prediction_errors.push_back(std::fabs(record.predicted_s / record.measured_s - 1));
    }
    outcome->probes = job_.probes();
    outcome->best_s += phase.steps * Best(phase.network);
    outcome->dense_s += phase.steps * job_.TrueStep(phase.network, Uniform({}));
  }

  test::SimulatedJob& job() { return job_; }

 private:
  PlanModel Uniform(const ChoiceModel& choice) const {
    return PlanModel(job_.plan().size(), choice);
  }

  double Best(const test::TrueNetwork& network) const {
    std::vector<ChoiceModel> choices = {{"identity", "ring", 1, 0}, {"fp16", "ring", 1, 0},
                                        {"qsgd", "ring", 1, 0},     {"identity", "tree", 1, 0},
                                        {"fp16", "tree", 1, 0},     {"qsgd", "tree", 1, 0}};
    for (const double ratio : {0.3, 0.1, 0.03, 0.01, 0.003, 0.001}) {
      choices.push_back({"top_k", "sparse_all_gather", ratio, 0});
    }
    double best = 1e18;
    for (const ChoiceModel& choice : choices) {
      const PlanModel plan = Uniform(choice);
      best = std::min(best, job_.TrueStep(network, plan) / job_.TrueGain(plan));
    }
    return best;
  }

  void MaybeDecide(const Policy& policy, Outcome* outcome) {
    const auto trigger = job_.model().TakeTrigger(10);
    if (!trigger.has_value()) return;
    outcome->triggers.push_back(*trigger);
    const auto snapshot = job_.model().MakeSnapshot(TriggerName(trigger->kind));
    ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
    const auto decision = Decide(*snapshot, policy);
    ASSERT_TRUE(decision.ok()) << ToString(decision.status());
    const auto parsed = ParseSnapshot(SerializeSnapshot(*snapshot));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(Decide(*parsed, policy)->digest, decision->digest);
    if (std::getenv("WEIR_TEST_VERBOSE") != nullptr) {
      std::printf("step %llu %s [%s] B %.3g +- %.2g a %.3g +- %.2g: %s\n",
                  static_cast<unsigned long long>(job_.step()), TriggerName(trigger->kind).c_str(),
                  TriggerText(*trigger).c_str(), snapshot->bandwidth_bytes_per_s.value,
                  snapshot->bandwidth_bytes_per_s.deviation / snapshot->bandwidth_bytes_per_s.value,
                  snapshot->latency_s.value,
                  snapshot->latency_s.deviation / snapshot->latency_s.value,
                  ReasonText(decision->facts).c_str());
    }
    if (!decision->switched) return;
    offered_ = decision->chosen.choices;
    offered_at_ = job_.step();
    outcome->switches.push_back({job_.step(), decision->incumbent.label, decision->chosen.label,
                                 TriggerName(trigger->kind), ReasonText(decision->facts)});
  }

  FakeClock clock_;
  test::SimulatedJob job_;
  std::optional<PlanModel> offered_;
  uint64_t offered_at_ = 0, version_ = 0;
  double probed_s_ = -1e9;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

const Phase kFast = {"fast", {2e-4, 1.19e9}, 120};
const Phase kSlow = {"slow", {2e-4, 6.2e6}, 120};
const Phase kFar = {"high latency", {0.025, 6.2e7}, 120};
const Phase kRecovered = {"recovered", {2e-4, 1.19e9}, 160};

bool SwitchedWithin(const Outcome& outcome, uint64_t change, uint64_t steps) {
  return std::any_of(outcome.switches.begin(), outcome.switches.end(), [&](const Switch& s) {
    return s.step > change && s.step + kRolloutSteps <= change + steps;
  });
}

/// Within a factor of e, or within 2 ms, which a queue can hide.
bool Close(double estimate_s, double truth_s) {
  return std::fabs(std::log(estimate_s / truth_s)) < 1 || std::fabs(estimate_s - truth_s) < 2e-3;
}

class ClosedLoopTest : public testing::TestWithParam<uint64_t> {};

TEST_P(ClosedLoopTest, FollowsTheNetworkWithoutFlapping) {
  test::SimulatedJob::Options options;
  options.seed = GetParam();
  Loop loop(options);
  Outcome outcome;
  const Policy policy;
  std::vector<uint64_t> changes;
  for (const Phase& phase : {kFast, kSlow, kFar, kRecovered}) {
    changes.push_back(loop.job().step());
    loop.Run(phase, policy, &outcome);
  }
  SCOPED_TRACE("seed " + std::to_string(options.seed));
  // Each change is acted on, activation included, within 15 steps.
  for (size_t i = 1; i < changes.size(); ++i) {
    EXPECT_TRUE(SwitchedWithin(outcome, changes[i], 15)) << "change at step " << changes[i];
  }
  EXPECT_LE(outcome.switches.size(), 14u);
  EXPECT_LE(Median(outcome.prediction_errors), 0.15);
  // The cost is compared with the best uniform plan of every phase in hindsight, and with dense
  // throughout.
  EXPECT_LE(outcome.cost_s, 1.2 * outcome.best_s);
  EXPECT_LE(outcome.cost_s, 0.5 * outcome.dense_s);
  std::printf(
      "seed %llu: %zu switches, median prediction error %.3f, cost %.3f of best, %.3f of dense, %d "
      "probes\n",
      static_cast<unsigned long long>(options.seed), outcome.switches.size(),
      Median(outcome.prediction_errors), outcome.cost_s / outcome.best_s,
      outcome.cost_s / outcome.dense_s, outcome.probes);
}

TEST_P(ClosedLoopTest, ConstantNetworksKeepTheirPlan) {
  for (const Phase& phase :
       {Phase{"fast", {2e-4, 1.19e9}, 400}, Phase{"medium", {1e-3, 5e7}, 400},
        Phase{"slow", {2e-4, 6.2e6}, 400}, Phase{"far", {0.025, 6.2e7}, 400}}) {
    test::SimulatedJob::Options options;
    options.seed = GetParam() + 100;
    Loop loop(options);
    Outcome warm, steady;
    loop.Run({phase.name, phase.network, 60}, {}, &warm);
    loop.Run(phase, {}, &steady);
    EXPECT_LE(steady.switches.size(), 2u) << phase.name << " seed " << options.seed;
    EXPECT_LE(Median(steady.prediction_errors), 0.12) << phase.name;
    EXPECT_LE(steady.cost_s, 1.15 * steady.best_s) << phase.name << " seed " << options.seed;
  }
}

// Four equal links for 2,000 steps, on quiet hosts and on hosts that other work shares, where
// codecs and collectives take longer to be known.
TEST_P(ClosedLoopTest, EqualLinksBringNoSpuriousSwitchInTwoThousandSteps) {
  for (const double busy : {0.0, 0.3}) {
    for (const Phase& phase :
         {Phase{"medium", {1e-3, 5e7}, 2000}, Phase{"fast", {2e-4, 1.19e8}, 2000}}) {
      test::SimulatedJob::Options options;
      options.seed = GetParam() + 400;
      options.arrivals = true;
      options.busy = busy;
      Loop loop(options);
      Outcome warm, steady;
      loop.Run({phase.name, phase.network, busy > 0 ? 300 : 100}, {}, &warm);
      loop.Run(phase, {}, &steady);
      SCOPED_TRACE(StrCat(phase.name, ", busy ", busy, ", seed ", options.seed));
      for (const Switch& one : steady.switches) {
        ADD_FAILURE() << "step " << one.step << ", " << one.trigger << ": " << one.from << " -> "
                      << one.to << ": " << one.reason;
      }
      const double believed = loop.job().model().bandwidth_bytes_per_s().value;
      EXPECT_NEAR(std::log(believed / phase.network.bandwidth), 0, 0.2);
    }
  }
}

TEST_P(ClosedLoopTest, FourfoldBandwidthAndFivefoldLatencyAreNoticed) {
  struct Case {
    const char* name;
    test::TrueNetwork before, after;
  };
  for (const Case& one : {Case{"bandwidth down", {5e-4, 1.19e8}, {5e-4, 3e7}},
                          Case{"bandwidth up", {5e-4, 1.5e7}, {5e-4, 6e7}},
                          Case{"latency up", {5e-3, 1.19e8}, {2.5e-2, 1.19e8}},
                          Case{"latency down", {2.5e-2, 1.19e8}, {5e-3, 1.19e8}}}) {
    test::SimulatedJob::Options options;
    options.seed = GetParam() + 200;
    Loop loop(options);
    Outcome outcome;
    loop.Run({one.name, one.before, 100}, {}, &outcome);
    const Measured bandwidth = loop.job().model().bandwidth_bytes_per_s();
    const Measured latency = loop.job().model().latency_s();
    EXPECT_NEAR(std::log(bandwidth.value / one.before.bandwidth), 0, 0.7) << one.name;
    EXPECT_TRUE(Close(latency.value, one.before.latency_s)) << one.name << " " << latency.value;
    loop.Run({one.name, one.after, 15}, {}, &outcome);
    EXPECT_NEAR(std::log(loop.job().model().bandwidth_bytes_per_s().value / one.after.bandwidth), 0,
                0.7)
        << one.name << " seed " << options.seed;
    const double latency_s = loop.job().model().latency_s().value;
    EXPECT_TRUE(Close(latency_s, one.after.latency_s))
        << one.name << " seed " << options.seed << " " << latency_s;
    const bool noticed =
        std::any_of(outcome.triggers.begin(), outcome.triggers.end(), [](const auto& trigger) {
          return trigger.step > 100 && trigger.kind != TriggerKind::kPeriodic;
        });
    EXPECT_TRUE(noticed) << one.name << " seed " << options.seed;
  }
}

TEST_P(ClosedLoopTest, SmallPayloadsOnAFarSlowerLinkAreNotTakenForLatency) {
  test::SimulatedJob::Options options;
  options.seed = GetParam() + 300;
  options.world = 2;
  options.elements = {100000, 200000};
  options.compute_s = 0.01;
  options.backward_s = 0.01;
  Loop loop(options);
  Outcome before, after;
  loop.Run({"fast", {2e-4, 1.19e8}, 100}, {}, &before);
  loop.Run({"slow", {2e-4, 2.4e6}, 80}, {}, &after);
  EXPECT_TRUE(SwitchedWithin(after, 100, 15)) << "seed " << options.seed;
  EXPECT_LE(after.cost_s, 1.6 * after.best_s) << "seed " << options.seed;
  EXPECT_LE(after.cost_s, 0.5 * after.dense_s) << "seed " << options.seed;
}

INSTANTIATE_TEST_SUITE_P(Seeds, ClosedLoopTest, testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace weir
