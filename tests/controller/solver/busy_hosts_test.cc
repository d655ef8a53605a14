// SPDX-License-Identifier: Apache-2.0
// Hosts whose cores are taken, told apart from slow links and slow codecs: in simulation, with what
// agents would report.
#include <gtest/gtest.h>

#include <cmath>

#include "controller/solver/solver.h"
#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

constexpr test::TrueNetwork kLink = {2e-4, 2.5e7};

struct Beliefs {
  double bandwidth = 0, latency_s = 0, encode_s = 0;
  int changes = 0;
  bool starved = false;
  ChoiceModel chosen;
};

// Two hundred quiet steps of a sparse plan, then so many in which hosts are busy.
Beliefs AfterBusySteps(bool cores, bool arrivals, double busy, int steps) {
  FakeClock clock;
  test::SimulatedJob::Options options;
  options.arrivals = arrivals;
  options.cores = cores;
  options.busy_stretch = 3;
  options.busy_codecs = true;
  test::SimulatedJob job(options, clock);
  const ChoiceModel sparse = {"top_k", "sparse_all_gather", 0.05, 0};
  job.SetPlan(1, PlanModel(job.plan().size(), sparse));
  for (int i = 0; i < 200; ++i) job.Step(kLink);
  Beliefs beliefs;
  while (job.model().TakeTrigger(1e9).has_value()) {
  }
  job.SetBusy(busy);
  for (int i = 0; i < steps; ++i) {
    job.Step(kLink);
    beliefs.starved = beliefs.starved || job.model().starved();
    const auto trigger = job.model().TakeTrigger(1e9);
    if (!trigger.has_value()) continue;
    beliefs.changes += trigger->kind == TriggerKind::kBandwidthChange ||
                               trigger->kind == TriggerKind::kLatencyChange
                           ? 1
                           : 0;
  }
  const auto snapshot = job.model().MakeSnapshot("periodic");
  EXPECT_TRUE(snapshot.ok()) << ToString(snapshot.status());
  beliefs.bandwidth = snapshot->bandwidth_bytes_per_s.value;
  beliefs.latency_s = snapshot->latency_s.value;
  const CodecModel::Time& time = FindCodec(snapshot->codecs, "top_k", 0)->encode;
  beliefs.encode_s = time.base_s + time.per_element_s * 1e6 + time.per_kept_s * 5e4;
  const auto decision = Decide(*snapshot, {});
  EXPECT_TRUE(decision.ok());
  beliefs.chosen = decision->chosen.choices[0];
  return beliefs;
}

TEST(BusyHostsTest, BusyHostsAreNeitherASlowLinkNorASlowCodec) {
  for (const bool arrivals : {false, true}) {
    SCOPED_TRACE(arrivals ? "with arrivals" : "without arrivals");
    const Beliefs quiet = AfterBusySteps(true, arrivals, 0, 60);
    const Beliefs busy = AfterBusySteps(true, arrivals, 0.9, 60);
    EXPECT_FALSE(quiet.starved);
    EXPECT_TRUE(busy.starved);
    EXPECT_EQ(busy.changes, 0);
    EXPECT_NEAR(std::log(busy.bandwidth / quiet.bandwidth), 0, 0.2);
    EXPECT_NEAR(std::log(busy.latency_s / quiet.latency_s), 0, 0.3);
    EXPECT_NEAR(std::log(busy.encode_s / quiet.encode_s), 0, 0.1);
    EXPECT_EQ(busy.chosen.codec, quiet.chosen.codec);
    EXPECT_NEAR(std::log(busy.chosen.ratio / quiet.chosen.ratio), 0, 0.1) << "the ratio stays";
  }
  // The same without the agents' word: what the test is about.
  const Beliefs blind = AfterBusySteps(false, false, 0.9, 60);
  const Beliefs quiet = AfterBusySteps(true, false, 0, 60);
  EXPECT_GT(std::fabs(std::log(blind.bandwidth / quiet.bandwidth)) +
                std::fabs(std::log(blind.latency_s / quiet.latency_s)),
            0.5);
  EXPECT_GT(blind.encode_s, 1.5 * quiet.encode_s);
}

TEST(BusyHostsTest, ALinkThatFailsWhileHostsAreBusyIsNoticed) {
  for (const bool arrivals : {false, true}) {
    SCOPED_TRACE(arrivals ? "with arrivals" : "without arrivals");
    FakeClock clock;
    test::SimulatedJob::Options options;
    options.arrivals = arrivals;
    options.cores = true;
    options.busy_codecs = true;
    test::SimulatedJob job(options, clock);
    const ChoiceModel sparse = {"top_k", "sparse_all_gather", 0.05, 0};
    job.SetPlan(1, PlanModel(job.plan().size(), sparse));
    for (int i = 0; i < 100; ++i) job.Step(kLink);
    job.SetBusy(0.5);
    for (int i = 0; i < 20; ++i) job.Step(kLink);
    while (job.model().TakeTrigger(1e9).has_value()) {
    }
    int noticed = 0;
    for (int i = 1; i <= 10 && noticed == 0; ++i) {
      job.Step({kLink.latency_s, 0.1 * kLink.bandwidth});
      const auto trigger = job.model().TakeTrigger(1e9);
      if (trigger.has_value() && trigger->kind == TriggerKind::kBandwidthChange) noticed = i;
    }
    EXPECT_GT(noticed, 0);
    EXPECT_LE(noticed, 5);
  }
}

}  // namespace
}  // namespace weir
