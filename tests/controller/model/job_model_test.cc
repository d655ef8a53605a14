// SPDX-License-Identifier: Apache-2.0
#include "controller/model/job_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "controller/model/job_estimates.h"
#include "controller/model/step_assembler.h"
#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

constexpr double kNever = 1e9;
const test::TrueNetwork kFast{2e-4, 1.19e8};

std::string MissingOf(const JobModel& model) {
  const auto snapshot = model.MakeSnapshot("start");
  EXPECT_EQ(snapshot.status().code(), StatusCode::kFailedPrecondition);
  return Message(snapshot.status());
}

TEST(JobModelTest, SaysWhatIsMissing) {
  FakeClock clock;
  JobModel model("job", 2, clock);
  EXPECT_THAT(MissingOf(model), HasSubstr("no bucket"));
  model.SetBuckets({{"a", 1000, 0}});
  EXPECT_THAT(MissingOf(model), HasSubstr("capabilities are known of 0 of 2 ranks"));
  model.SetCapabilities(0, test::Codecs(), test::Collectives());
  model.SetCapabilities(1, {}, test::Collectives());
  EXPECT_THAT(MissingOf(model), HasSubstr("no codec is offered by every rank"));
  model.SetCapabilities(1, test::Codecs(), {});
  EXPECT_THAT(MissingOf(model), HasSubstr("no collective is offered by every rank"));
  model.SetCapabilities(1, test::Codecs(), test::Collectives());
  EXPECT_THAT(MissingOf(model), HasSubstr("no complete step"));
  EXPECT_FALSE(model.TakeTrigger(0).has_value());
}

TEST(JobModelTest, PlansWithWhatEveryRankOffers) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  auto codecs = test::Codecs();
  codecs.erase(codecs.begin() + 1);  // rank 2 has no fp16
  job.model().SetCapabilities(2, codecs, test::Collectives());
  for (int i = 0; i < 5; ++i) job.Step(kFast);
  const auto snapshot = job.model().MakeSnapshot("start");
  ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
  EXPECT_EQ(snapshot->codecs.size(), test::Codecs().size() - 1);
  for (const auto& codec : snapshot->codecs) EXPECT_NE(codec.name, "fp16");
}

TEST(JobModelTest, UntilACodecRanTheSlowestRanksTimesHold) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  auto codecs = test::Codecs();
  ASSERT_EQ(codecs[1].name, "fp16");
  for (int rank = 0; rank < 4; ++rank) {
    codecs[1].encode = {};
    codecs[1].encode.per_element_s = rank == 2 ? 5e-9 : 1e-9;
    job.model().SetCapabilities(rank, codecs, test::Collectives());
  }
  for (int i = 0; i < 5; ++i) job.Step(kFast);
  const auto snapshot = job.model().MakeSnapshot("start");
  ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
  EXPECT_EQ(snapshot->codecs[1].encode.per_element_s, 5e-9);
}

TEST(JobModelTest, SnapshotHoldsWhatWasMeasured) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 60; ++i) job.Step(kFast);
  const auto snapshot = job.model().MakeSnapshot("periodic");
  ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
  EXPECT_EQ(snapshot->world, 4);
  EXPECT_EQ(snapshot->step, 60u);
  EXPECT_EQ(snapshot->trigger, "periodic");
  EXPECT_NEAR(snapshot->compute_s.value, 0.138, 0.012);
  EXPECT_NEAR(snapshot->backward_s.value, 0.05, 0.002);
  EXPECT_NEAR(snapshot->buckets[1].ready_s, 0.025, 0.001);
  EXPECT_NEAR(snapshot->bandwidth_bytes_per_s.value / kFast.bandwidth, 1, 0.3);
  EXPECT_EQ(snapshot->buckets[0].gains.size(), 13u);
  EXPECT_TRUE(snapshot->incumbent.empty());
  EXPECT_EQ(snapshot->collectives[3].gain_scale, 0.7);  // not measured yet
  EXPECT_EQ(job.model().step(), 60u);
}

TEST(JobModelTest, WhatRanksMeasuredOfBlocksAndRanksPricesThem) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 5; ++i) job.Step(kFast);
  const auto loss = [&] {
    const auto snapshot = job.model().MakeSnapshot("periodic");
    for (const CodecModel& codec : snapshot->codecs) {
      if (codec.name == "random_k") return codec.uniform_loss;
    }
    return -1.0;
  };
  EXPECT_EQ(loss(), 1) << "until measured";
  StepObservation seen;
  seen.codec_losses = {{"random_k", 0, 0.3}};
  for (int i = 0; i < 3; ++i) job.model().OnStep(seen);
  EXPECT_NEAR(loss(), 0.3, 1e-9);
}

TEST(JobModelTest, ASettingThatLosesMoreThanItSendsIsNotPricedByASliceThatSuitsIt) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  auto codecs = test::Codecs();
  for (const double declared : {0.5, 9.67}) {
    codecs[1].error_model = "relative";
    codecs[1].relative_error_squared = declared;
    for (int rank = 0; rank < 4; ++rank) {
      job.model().SetCapabilities(rank, codecs, test::Collectives());
    }
    for (int i = 0; i < 5; ++i) job.Step(kFast);
    StepObservation seen;
    seen.codec_losses = {{codecs[1].name, codecs[1].bits, 0.02}};
    for (int i = 0; i < 3; ++i) job.model().OnStep(seen);
    const auto snapshot = job.model().MakeSnapshot("periodic");
    ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
    EXPECT_NEAR(snapshot->codecs[1].relative_error_squared, declared < 1 ? 0.02 : declared, 1e-9);
  }
}

TEST(JobModelTest, ActivePlanIsTheIncumbentAndItsAgeCounts) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 5; ++i) job.Step(kFast);
  const PlanModel plan(3, ChoiceModel{"top_k", "sparse_all_gather", 0.01, 0});
  job.SetPlan(1, plan);
  const double begin_s = job.clock_s();
  for (int i = 0; i < 10; ++i) job.Step(kFast);
  auto snapshot = job.model().MakeSnapshot("periodic");
  EXPECT_EQ(snapshot->incumbent, plan);
  EXPECT_NEAR(snapshot->seconds_since_switch, job.clock_s() - begin_s, 1e-3);
  EXPECT_EQ(snapshot->recent_switches, 1);
  EXPECT_GT(snapshot->measured_step_s, 0.1);
  job.SetPlan(1, plan);  // the same plan again is no switch
  EXPECT_EQ(job.model().MakeSnapshot("periodic")->recent_switches, 1);
  job.SetPlan(2, plan);
  EXPECT_EQ(job.model().MakeSnapshot("periodic")->recent_switches, 2);
}

TEST(JobModelTest, RebuiltBucketsKeepTheEstimatesOfTheirKeys) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 10; ++i) job.Step(kFast);
  job.SetPlan(1, PlanModel(3));
  job.model().SetBuckets({{"other", 500, 1}, {"bucket2", 900000, 0}});
  EXPECT_THAT(MissingOf(job.model()), HasSubstr("bucket other was not sampled yet"));
  for (int i = 0; i < 10; ++i) job.Step(kFast);  // ranks that sample nothing hold up no job
  const auto snapshot = job.model().MakeSnapshot("start");
  ASSERT_TRUE(snapshot.ok());
  ASSERT_EQ(snapshot->buckets.size(), 2u);
  EXPECT_EQ(snapshot->buckets[0].key, "bucket2");  // by order
  EXPECT_FALSE(snapshot->buckets[0].gains.empty());
  EXPECT_TRUE(snapshot->buckets[1].gains.empty());
  EXPECT_TRUE(snapshot->incumbent.empty());
}

TEST(JobModelTest, TriggersComeOnceAndMostUrgentFirst) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 2; ++i) job.Step(kFast);
  EXPECT_FALSE(job.model().TakeTrigger(kNever).has_value());
  for (int i = 0; i < 3; ++i) job.Step(kFast);
  EXPECT_EQ(job.model().TakeTrigger(kNever)->kind, TriggerKind::kStart);
  EXPECT_FALSE(job.model().TakeTrigger(kNever).has_value());
  EXPECT_EQ(job.model().TakeTrigger(0)->kind, TriggerKind::kPeriodic);
  for (int i = 0; i < 40; ++i) job.Step(kFast);
  while (job.model().TakeTrigger(kNever).has_value()) {
  }
  const uint64_t changed = job.step();
  std::optional<Trigger> trigger;
  for (int i = 0; i < 5 && !trigger.has_value(); ++i) {
    job.Step({2e-4, 6.2e6});
    trigger = job.model().TakeTrigger(kNever);
  }
  ASSERT_TRUE(trigger.has_value());
  EXPECT_EQ(trigger->kind, TriggerKind::kBandwidthChange);
  EXPECT_LE(trigger->step, changed + 5);
  EXPECT_THAT(TriggerText(*trigger),
              testing::AllOf(HasSubstr("bandwidth 1"), HasSubstr(" Gb/s -> 4")));
  EXPECT_NEAR(std::log(job.model().bandwidth_bytes_per_s().value / 6.2e6), 0, 0.35);
}

TEST(JobModelTest, GainShiftTriggers) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 40; ++i) job.Step(kFast);
  while (job.model().TakeTrigger(kNever).has_value()) {
  }
  std::optional<Trigger> trigger;
  for (int i = 0; i < 60 && !trigger.has_value(); ++i) {
    StepObservation flat;
    flat.rank = 0;
    flat.step = 1;  // long assembled: only its curves count
    for (int b = 0; b < 3; ++b) {
      flat.gains.push_back({"bucket" + std::to_string(b), {1, 0.1, 0.01}, {1, 0.98, 0.95}, 30});
    }
    job.Step(kFast);
    job.model().OnStep(flat);
    trigger = job.model().TakeTrigger(kNever);
  }
  ASSERT_TRUE(trigger.has_value());
  EXPECT_EQ(trigger->kind, TriggerKind::kGainChange);
  EXPECT_THAT(TriggerText(*trigger), HasSubstr("gain at ratio 0.01"));
}

// Decisions that kept the plan, and triggers of other kinds, do not hide what became of the
// network.
TEST(JobModelTest, TriggersTellTheNetworkSinceThePlan) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 40; ++i) job.Step(kFast);
  while (job.model().TakeTrigger(kNever).has_value()) {
  }
  EXPECT_EQ(job.model().TakeTrigger(0)->note, "");
  job.model().SetActivePlan(7, job.step(), PlanModel(3, ChoiceModel{"identity", "ring"}));
  std::string first, last;
  for (int i = 0; i < 30; ++i) {
    job.Step({2e-4, 6.2e6});
    const auto trigger = job.model().TakeTrigger(kNever);
    if (trigger.has_value() && first.empty()) first = TriggerText(*trigger);
  }
  EXPECT_THAT(first, testing::Not(HasSubstr("since plan"))) << "the trigger says it itself";
  const auto trigger = job.model().TakeTrigger(0);
  EXPECT_EQ(trigger->kind, TriggerKind::kPeriodic);
  EXPECT_THAT(TriggerText(*trigger),
              testing::MatchesRegex("bandwidth 1[.0-9]* Gb/s -> [45][.0-9]* Mb/s since plan 7"));
}

TEST(JobModelTest, PredictionsPrecedeTheirSamplesAndAreBounded) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 1500; ++i) job.Step(kFast);
  const auto records = job.model().TakePredictions();
  EXPECT_EQ(records.size(), 4096u);
  EXPECT_EQ(records.back().step, 1500u);
  EXPECT_GT(records.back().predicted_s, 0);
  EXPECT_TRUE(job.model().TakePredictions().empty());
}

TEST(JobModelTest, CompressedPlansAskForBandwidthProbes) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 30; ++i) job.Step(kFast);
  EXPECT_FALSE(job.model().WantsBandwidthProbe()) << job.model().BandwidthProbeReason();
  job.SetPlan(1, PlanModel(3, ChoiceModel{"top_k", "sparse_all_gather", 0.0001, 0}));
  bool wanted = false;
  for (int i = 0; i < 3000 && !wanted; ++i) {
    job.Step(kFast);
    wanted = job.model().WantsBandwidthProbe();
  }
  EXPECT_TRUE(wanted);
  EXPECT_THAT(job.model().BandwidthProbeReason(), HasSubstr("bandwidth is uncertain by"));
  for (int i = 0; i < 4; ++i) job.Probe(kFast);
  EXPECT_FALSE(job.model().WantsBandwidthProbe());
}

TEST(JobModelTest, ApplicationLimitedSamplesSayNothing) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 20; ++i) job.Step(kFast);
  const double before = job.model().bandwidth_bytes_per_s().value;
  for (int i = 0; i < 50; ++i) {
    LinkObservation link;
    link.source_node = "node0";
    link.target_node = "node1";
    link.method = "tcp_info";
    link.bandwidth_bytes_per_s = 1e10;
    link.application_limited = true;
    job.model().OnLink(link);
  }
  EXPECT_EQ(job.model().bandwidth_bytes_per_s().value, before);
}

TEST(JobModelTest, AWorldOfOneNeedsNoNetwork) {
  FakeClock clock;
  test::SimulatedJob::Options options;
  options.world = 1;
  test::SimulatedJob job(options, clock);
  for (int i = 0; i < 5; ++i) job.Step(kFast);
  const auto snapshot = job.model().MakeSnapshot("start");
  ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
  EXPECT_EQ(snapshot->world, 1);
  EXPECT_FALSE(job.model().WantsBandwidthProbe());
}

TEST(JobModelTest, ARankThatComputesLateIsNamedAndTheNetworkIsNot) {
  FakeClock clock;
  test::SimulatedJob::Options options;
  options.slow_rank = 2;
  options.slow_compute = 1.4;
  options.arrivals = true;
  test::SimulatedJob late(options, clock);
  FakeClock other_clock;
  options.slow_rank = -1;
  test::SimulatedJob even(options, other_clock);
  for (int i = 0; i < 60; ++i) {
    late.Step(kFast);
    even.Step(kFast);
  }
  const std::vector<RankPace> paces = late.model().Paces();
  ASSERT_EQ(paces.size(), 4u);
  for (const RankPace& pace : paces) {
    EXPECT_NEAR(pace.slower, pace.rank == 2 ? 1.25 : 1, 0.06) << pace.rank;
  }
  for (const RankPace& pace : even.model().Paces()) EXPECT_EQ(pace.slower, 1) << pace.rank;
  const double with = late.model().bandwidth_bytes_per_s().value;
  EXPECT_NEAR(std::log(with / even.model().bandwidth_bytes_per_s().value), 0, 0.15);
}

TEST(JobModelTest, HostileObservationsAreSurvived) {
  FakeClock clock;
  test::SimulatedJob job({}, clock);
  for (int i = 0; i < 10; ++i) job.Step(kFast);
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               inf = std::numeric_limits<double>::infinity();
  for (int rank = -1; rank < 6; ++rank) {
    StepObservation bad;
    bad.rank = rank;
    bad.step = 11;
    bad.step_s = bad.compute_s = bad.exposed_s = bad.backward_s = rank % 2 == 0 ? nan : inf;
    bad.loss = nan;
    BucketObservation bucket;
    bucket.bucket = "bucket0";
    bucket.codec = "identity";
    bucket.collective = "ring";
    bucket.network_s = bucket.encode_s = bucket.decode_s = bucket.gain = bucket.ready_s = nan;
    bucket.residual_ratio = inf;
    bad.buckets = {bucket, {}};
    bad.gains.push_back({"bucket0", {1, 2}, {nan, 1}, nan});
    job.model().OnStep(bad);
  }
  LinkObservation link;
  link.rtt_s = inf;
  link.bandwidth_bytes_per_s = nan;
  link.age_s = nan;
  job.model().OnLink(link);
  clock.Advance(std::chrono::milliseconds(100));
  // It goes on learning.
  for (int i = 0; i < 30; ++i) job.Step({2e-4, 3e7});
  EXPECT_NEAR(std::log(job.model().bandwidth_bytes_per_s().value / 3e7), 0, 0.5);
  EXPECT_FALSE(job.model().TakePredictions().empty());
  const auto snapshot = job.model().MakeSnapshot("periodic");
  ASSERT_TRUE(snapshot.ok());
  for (const double value :
       {snapshot->compute_s.value, snapshot->backward_s.value, snapshot->latency_s.value,
        snapshot->bandwidth_bytes_per_s.value, snapshot->buckets[0].ready_s,
        snapshot->buckets[0].residual_ratio, snapshot->codecs[0].encode.base_s}) {
    EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(StepAssemblerTest, WaitsForAllRanksAndGivesUpOnSilentOnes) {
  StepAssembler assembler(2);
  const auto report = [](int rank, uint64_t step) {
    StepObservation one;
    one.rank = rank;
    one.step = step;
    one.step_s = 1 + rank;
    one.exposed_s = 0.5 + rank;
    return one;
  };
  EXPECT_FALSE(assembler.Add(report(0, 1)).has_value());
  EXPECT_FALSE(assembler.Add(report(0, 1)).has_value());  // a repeat
  const auto step = assembler.Add(report(1, 1));
  ASSERT_TRUE(step.has_value());
  EXPECT_DOUBLE_EQ(step->step_s, 1.5);
  EXPECT_DOUBLE_EQ(step->exposed_s, 0.5);
  EXPECT_DOUBLE_EQ(step->compute_s, 1.0);
  for (uint64_t s = 2; s < 40; ++s) EXPECT_FALSE(assembler.Add(report(0, s)).has_value());
  EXPECT_FALSE(assembler.Add(report(1, 3)).has_value());  // long given up
  EXPECT_TRUE(assembler.Add(report(1, 39)).has_value());
}

TEST(StepAssemblerTest, UnalignedClocksTakeTheLeastDurationAndMixedPlansAreLeftOut) {
  StepAssembler assembler(2);
  const auto report = [](int rank, double network_s, const char* codec) {
    StepObservation one;
    one.rank = rank;
    one.step = 1;
    BucketObservation bucket;
    bucket.bucket = "a";
    bucket.codec = "identity";
    bucket.collective = "ring";
    bucket.network_s = network_s;
    one.buckets.push_back(bucket);
    bucket.bucket = "b";
    bucket.codec = codec;
    one.buckets.push_back(bucket);
    return one;
  };
  assembler.Add(report(0, 0.030, "fp16"));
  const auto step = assembler.Add(report(1, 0.012, "bf16"));
  ASSERT_TRUE(step.has_value());
  ASSERT_EQ(step->buckets.size(), 1u);
  EXPECT_DOUBLE_EQ(step->buckets[0].network_s, 0.012);
}

TEST(StepAssemblerTest, RanksThatOthersEncodeForKnowNoGainAndWaitForCodecs) {
  StepAssembler assembler(2);
  const auto report = [](int rank, uint64_t payload_bytes, double network_s, double gain) {
    StepObservation one;
    one.rank = rank;
    one.step = 1;
    BucketObservation bucket;
    bucket.bucket = "a";
    bucket.codec = "top_k";
    bucket.collective = "node_sums";
    bucket.payload_bytes = payload_bytes;
    bucket.encode_s = payload_bytes > 0 ? 0.006 : 0;
    bucket.decode_s = payload_bytes > 0 ? 0.002 : 0;
    bucket.network_s = network_s;
    bucket.gain = gain;
    one.buckets.push_back(bucket);
    return one;
  };
  assembler.Add(report(0, 1000, 0.013, 0.4));
  const auto step = assembler.Add(report(1, 0, 0.020, 1));
  ASSERT_TRUE(step.has_value());
  ASSERT_EQ(step->buckets.size(), 1u);
  EXPECT_DOUBLE_EQ(step->buckets[0].gain, 0.4);
  EXPECT_NEAR(step->buckets[0].network_s, 0.012, 1e-12);
  EXPECT_DOUBLE_EQ(step->buckets[0].payload_bytes, 500);
}

TEST(RollingMedianTest, MedianAndSpread) {
  RollingMedian median(5);
  EXPECT_EQ(median.Get().value, 0);
  for (const double value : {1.0, 2.0, 3.0, 4.0, 100.0}) median.Add(value);
  EXPECT_EQ(median.Get().value, 3);
  EXPECT_NEAR(median.Get().deviation, 1.4826 / std::sqrt(2.5), 1e-9);
  for (int i = 0; i < 5; ++i) median.Add(7);
  EXPECT_EQ(median.Get().value, 7);
  EXPECT_EQ(median.Get().deviation, 0);
}

}  // namespace
}  // namespace weir
