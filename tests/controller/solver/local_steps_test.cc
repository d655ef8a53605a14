// SPDX-License-Identifier: Apache-2.0
// How often ranks synchronise, as a dimension of a decision.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "controller/model/node_layout.h"
#include "controller/model/progress.h"
#include "controller/model/timeline.h"
#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kLocalMegabit = 125e3;  // bytes per second

Snapshot SlowLink(double bandwidth) {
  Snapshot snapshot = test::MakeSnapshot(4, 0.02, bandwidth, 3);
  snapshot.local.possible = true;
  return snapshot;
}

Policy Allowing(int every_max) {
  Policy policy;
  policy.sync_every_max = every_max;
  return policy;
}

Decision DecideLocally(const Snapshot& snapshot, const Policy& policy) {
  const auto decision = Decide(snapshot, policy);
  EXPECT_TRUE(decision.ok()) << ToString(decision.status());
  return decision.ok() ? *decision : Decision{};
}

uint32_t EveryOf(const Snapshot& snapshot, const Policy& policy) {
  return DecideLocally(snapshot, policy).chosen.sync.every;
}

TEST(LocalStepsTest, NobodyGetsThemWhoHasNotAsked) {
  const Snapshot able = SlowLink(50 * kLocalMegabit);
  Snapshot unable = able;
  unable.local = {};
  EXPECT_EQ(DecideLocally(able, {}).digest, DecideLocally(unable, {}).digest);
  EXPECT_FALSE(DecideLocally(able, {}).chosen.sync.local());
}

TEST(LocalStepsTest, ASlowLinkSynchronisesRarelyAndAFastOneInEveryStep) {
  const Policy policy = Allowing(500);
  uint32_t before = 1000;
  for (const double megabits : {5.0, 20.0, 200.0, 2000.0, 40000.0}) {
    Snapshot snapshot = SlowLink(megabits * kLocalMegabit);
    if (megabits >= 1000) snapshot.latency_s = {1e-4, 5e-6, 0};
    const uint32_t every = EveryOf(snapshot, policy);
    EXPECT_LE(every, before) << megabits;
    before = every;
  }
  EXPECT_GE(EveryOf(SlowLink(5 * kLocalMegabit), policy), 8u);
  EXPECT_EQ(before, 1u);
}

TEST(LocalStepsTest, TheyAreFasterThanTheBestOfEveryStep) {
  const Snapshot snapshot = SlowLink(20 * kLocalMegabit);
  const Decision rare = DecideLocally(snapshot, Allowing(500)), each = DecideLocally(snapshot, {});
  EXPECT_LT(rare.chosen.objective, 0.7 * each.chosen.objective);
  EXPECT_LT(rare.chosen.step_s, each.chosen.step_s);
  EXPECT_EQ(rare.dense.sync.every, 1u);
  EXPECT_FALSE(rare.chosen.dense);
}

// All periods and overlaps of all uniform choices, costed by formula from the costs of one step.
TEST(LocalStepsTest, BruteForceFindsNothingBetter) {
  for (const double megabits : {10.0, 50.0, 300.0}) {
    Snapshot snapshot = test::MakeSnapshot(4, 0.02, megabits * kLocalMegabit, 1);
    snapshot.local.possible = true;
    Policy policy = Allowing(64);
    policy.progress_deviation = 0;
    policy.sync_cost_deviation = 0;
    double best = 1e18;
    const double beta = 1 / snapshot.bandwidth_bytes_per_s.value;
    for (const CodecModel& codec : snapshot.codecs) {
      for (const CollectiveModel& collective : snapshot.collectives) {
        if (!Compatible(codec, collective, snapshot.world)) continue;
        for (const double ratio : {1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001}) {
          if (!codec.uses_ratio && ratio != 1) continue;
          const BucketCost cost =
              PredictBucket(snapshot, snapshot.buckets[0], codec, collective, ratio);
          const double encode_s = cost.EncodeSeconds(snapshot.latency_s.value);
          const double whole_s =
              encode_s + cost.NetworkSeconds(snapshot.latency_s.value, beta) + cost.decode_s;
          for (uint32_t every = 1; every <= 64; every *= 2) {
            for (uint32_t overlap = 0; overlap <= every / 4; ++overlap) {
              const double hidden_s = 0.1 * overlap;
              const double paid_s = overlap > 0 ? std::max(encode_s, whole_s - hidden_s) : whole_s;
              const double kept = 1 - 0.5 * overlap / every;
              const double progress = cost.gain * std::pow(every, -0.05) * kept;
              if (cost.gain < policy.gain_min) continue;
              best = std::min(best, (0.1 + paid_s / every) / progress);
            }
          }
        }
      }
    }
    const Decision decision = DecideLocally(snapshot, policy);
    EXPECT_LE(decision.chosen.objective, 1.02 * best) << megabits;
    EXPECT_GE(decision.chosen.objective, 0.999 * best) << megabits;
  }
}

TEST(LocalStepsTest, RanksThatDisagreeSynchroniseMoreOften) {
  Snapshot snapshot = SlowLink(100 * kLocalMegabit);
  const Policy policy = Allowing(500);
  snapshot.local.signal_share = 0.95;
  const uint32_t agreeing = EveryOf(snapshot, policy);
  snapshot.local.signal_share = 0.01;
  EXPECT_LT(EveryOf(snapshot, policy), agreeing);
}

TEST(LocalStepsTest, LossesThatMindThemShortenThePeriod) {
  Snapshot snapshot = SlowLink(100 * kLocalMegabit);
  const Policy policy = Allowing(500);
  const uint32_t before = EveryOf(snapshot, policy);
  snapshot.local.progress.assign(kExponents, -30);
  snapshot.local.progress.back() = 0;  // 0.2 for each e-fold
  EXPECT_LT(EveryOf(snapshot, policy), before);
}

TEST(LocalStepsTest, ARankThatCannotMakeThemIsNamed) {
  Snapshot snapshot = SlowLink(20 * kLocalMegabit);
  snapshot.local.possible = false;
  snapshot.local.unable_rank = 2;
  const Decision decision = DecideLocally(snapshot, Allowing(500));
  EXPECT_FALSE(decision.chosen.sync.local());
  EXPECT_THAT(ReasonText(decision.facts), HasSubstr("rank 2 was attached without an optimizer"));
  EXPECT_THAT(ReasonText(DecideLocally(snapshot, {}).facts), Not(HasSubstr("local steps")));
}

TEST(LocalStepsTest, APeriodBeyondTheBoundIsLeft) {
  Snapshot snapshot = SlowLink(20 * kLocalMegabit);
  const Decision first = DecideLocally(snapshot, Allowing(500));
  ASSERT_GT(first.chosen.sync.every, 4u);
  snapshot.incumbent = first.chosen.choices;
  snapshot.local.sync = first.chosen.sync;
  EXPECT_FALSE(DecideLocally(snapshot, Allowing(500)).switched);
  const Decision bounded = DecideLocally(snapshot, Allowing(4));
  EXPECT_TRUE(bounded.switched);
  EXPECT_LE(bounded.chosen.sync.every, 4u);
  EXPECT_EQ(bounded.facts.excluded_by, "sync.every_max 4");
  EXPECT_EQ(DecideLocally(snapshot, {}).chosen.sync.every, 1u);
}

TEST(LocalStepsTest, WordsSayWhatTheyCostAndSave) {
  const Decision decision = DecideLocally(SlowLink(20 * kLocalMegabit), Allowing(32));
  EXPECT_EQ(decision.chosen.sync.every, 32u);
  const std::string text = ReasonText(decision.facts);
  EXPECT_THAT(text, HasSubstr("every 32 steps"));
  EXPECT_THAT(text, HasSubstr("of progress, and a step takes"));
  EXPECT_GT(decision.facts.local.every_step_s, decision.chosen.step_s);
  EXPECT_GT(decision.facts.local.cost, 0.05);
  EXPECT_GT(decision.facts.local.cost_deviation, 0.02);
  EXPECT_THAT(decision.chosen.label, HasSubstr("every 32 steps"));
}

TEST(LocalStepsTest, ASnapshotWithThemReplaysToTheSameDecision) {
  Snapshot snapshot = SlowLink(20 * kLocalMegabit);
  const Decision first = DecideLocally(snapshot, Allowing(500));
  snapshot.incumbent = first.chosen.choices;
  snapshot.local.sync = first.chosen.sync;
  snapshot.local.signal_share = 0.4;
  snapshot.local.consensus_share = 0.3;
  snapshot.held.emplace_back().every = 8;
  snapshot.former = {{first.chosen.choices, {}, {}, first.chosen.sync}};
  const auto read = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(read.ok()) << ToString(read.status());
  EXPECT_EQ(*read, snapshot);
  EXPECT_EQ(DecideLocally(*read, Allowing(500)).digest,
            DecideLocally(snapshot, Allowing(500)).digest);
  snapshot.local.sync.overlap = snapshot.local.sync.every + 1;
  EXPECT_EQ(Decide(snapshot, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(LocalStepsTest, OtherObjectivesAndPinsSynchroniseInEveryStep) {
  Policy policy = Allowing(500);
  policy.objective = "throughput";
  policy.gain_min = 0.1;
  EXPECT_EQ(EveryOf(SlowLink(20 * kLocalMegabit), policy), 1u);
  policy = Allowing(500);
  policy.objective = "fixed";
  EXPECT_EQ(EveryOf(SlowLink(20 * kLocalMegabit), policy), 1u);
}

TEST(LocalStepsTest, TheOuterStepFollowsThePolicy) {
  Policy policy = Allowing(32);
  policy.sync_outer = "average";
  EXPECT_EQ(DecideLocally(SlowLink(20 * kLocalMegabit), policy).chosen.sync.outer,
            OuterKind::kAverage);
  policy.sync_outer = "auto";
  const SyncModel sync = DecideLocally(SlowLink(20 * kLocalMegabit), policy).chosen.sync;
  EXPECT_EQ(sync.outer, OuterKind::kSgdNesterov);
  EXPECT_EQ(sync.rate, 0.7);
  EXPECT_EQ(sync.momentum, 0.9);
  policy.sync_every_max = 8;
  EXPECT_EQ(DecideLocally(SlowLink(20 * kLocalMegabit), policy).chosen.sync.outer,
            OuterKind::kAverage);
}

}  // namespace
}  // namespace weir
