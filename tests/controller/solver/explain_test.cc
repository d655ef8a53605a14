// SPDX-License-Identifier: Apache-2.0
#include "controller/solver/explain.h"

#include <gtest/gtest.h>

#include <cmath>

#include "datapath/base/random.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

TEST(ExplainTest, DigestCoversEveryChoiceAndNumberAndNoWord) {
  Decision base;
  base.front.resize(1);
  const std::string digest = DigestOf(base);
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_EQ(digest, DigestOf(base));
  const auto differs = [&](auto change) {
    Decision other = base;
    change(other);
    return DigestOf(other) != digest;
  };
  EXPECT_TRUE(differs([](Decision& d) { d.switched = true; }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.choices.push_back({}); }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.layout.ring_order = {1, 0}; }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.layout.shard_shares = {65536}; }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.step_s = 1e-300; }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.step_deviation_s = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.incumbent.gain = 0.5; }));
  EXPECT_TRUE(differs([](Decision& d) { d.dense.exposed_s = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.top.resize(1); }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].communication_s = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].feasible = false; }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].dense = true; }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].objective = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.facts.rule = DecisionRule::kDwell; }));
  EXPECT_TRUE(differs([](Decision& d) { d.facts.probability = 0.5; }));
  EXPECT_TRUE(differs([](Decision& d) { d.facts.shards.speedup = 2; }));
  EXPECT_FALSE(differs([](Decision& d) { d.chosen.label = "another wording"; }));
  EXPECT_FALSE(differs([](Decision& d) { d.front[0].excluded_by = "another wording"; }));
  EXPECT_FALSE(differs([](Decision& d) { d.facts.alternative = "another wording"; }));
  EXPECT_FALSE(differs([](Decision& d) { d.facts.excluded_by = "another wording"; }));
}

TEST(ExplainTest, AThousandDecisionsReplayToTheirDigests) {
  Random random(5);
  int switched = 0;
  for (int i = 0; i < 1000; ++i) {
    const double bandwidth = 1e6 * std::exp(7 * random.Uniform());
    Snapshot snapshot =
        test::MakeSnapshot(2 + i % 7, 1e-5 * std::exp(6 * random.Uniform()), bandwidth, 1 + i % 3);
    if (i % 2 == 1) {
      snapshot.incumbent.assign(snapshot.buckets.size(), ChoiceModel{"identity", "ring"});
    }
    const auto stored = Decide(snapshot, Policy{});
    ASSERT_TRUE(stored.ok()) << ToString(stored.status());
    const auto read = ParseSnapshot(SerializeSnapshot(snapshot));
    ASSERT_TRUE(read.ok());
    const auto again = Decide(*read, Policy{});
    ASSERT_TRUE(again.ok());
    ASSERT_EQ(again->digest, stored->digest) << i;
    switched += again->switched ? 1 : 0;
  }
  EXPECT_GT(switched, 300) << "they are not all the same";
}

TEST(ExplainTest, EveryRuleHasItsWords) {
  DecisionFacts facts;
  facts.world = 4;
  facts.bandwidth_bytes_per_s = 6.2e6;
  facts.latency_s = 4e-4;
  facts.chosen = {"top_k 0.01 over sparse_all_gather", 0.21, 0.41, false};
  facts.incumbent = PlanFacts{"dense over ring", 0.5, 1, true};
  facts.dense_step_s = 0.5;
  facts.alternative = "qsgd over ring";
  facts.promised = 0.2;
  facts.progress_exponent = 1;
  facts.probability = facts.probability_min = 0.9;
  facts.excluded_by = "gain_min 0.5";
  const std::string begin =
      "at 49.6 Mb/s and 400 us top_k 0.01 over sparse_all_gather predicts 0.21 s per step at gain "
      "0.41 against 0.5 s dense";
  const std::pair<DecisionRule, const char*> expected[] = {
      {DecisionRule::kFixed, ""},
      {DecisionRule::kNothingBetter, " and stays: no candidate is predicted to be better"},
      {DecisionRule::kBetter,
       " (20 % less time per progress than what runs, with 90 % confidence)"},
      {DecisionRule::kTooLittleBetter,
       " and stays: qsgd over ring promises 20 % less time per progress than what runs, 0 % "
       "required"},
      {DecisionRule::kDwell,
       " and stays: the last switch was 0 s ago, 0 s must pass before qsgd over ring"},
      {DecisionRule::kUnsure,
       " and stays: qsgd over ring promises 20 % less time per progress than what runs, but with "
       "only 90 % confidence, 90 % required"},
      {DecisionRule::kIncumbentExcluded, "; the running plan is excluded by gain_min 0.5"},
      {DecisionRule::kIncumbentUnpredictable, "; the running plan cannot continue: gain_min 0.5"},
  };
  for (const auto& [rule, end] : expected) {
    facts.rule = rule;
    EXPECT_EQ(ReasonText(facts), begin + end);
  }
  facts.rule = DecisionRule::kFirstPlanDense;
  EXPECT_EQ(ReasonText(facts),
            "first plan: " + begin +
                ", until qsgd over ring is better with more confidence (90 % now, 90 % required)");
  facts.rule = DecisionRule::kBetter;
  facts.switched = true;
  facts.incumbent->dense = false;
  facts.ring.order = {0, 2, 1, 3};
  facts.binding_constraint = "ratio_min 0.01";
  EXPECT_EQ(ReasonText(facts),
            begin +
                " and 0.5 s at gain 1 for dense over ring (20 % less time per progress than what "
                "runs, with 90 % confidence); the ring goes 0 2 1 3; ratio_min 0.01 excludes "
                "better");
}

// "5.8 % better" was read as better than the best dense plan, which is not what ran.
TEST(ExplainTest, TheSavingIsOfAPlanThatTheSentenceNames) {
  DecisionFacts facts;
  facts.world = 2;
  facts.rule = DecisionRule::kBetter;
  facts.switched = true;
  facts.bandwidth_bytes_per_s = 3.1e10;
  facts.bandwidth_deviation = 0.5;
  facts.latency_s = 6e-6;
  facts.chosen = {"bf16 over recursive_doubling", 4.57e-3, 1, false};
  facts.incumbent = PlanFacts{"dense over ring", 4.85e-3, 1, true};
  facts.dense_step_s = 4.58e-3;
  facts.promised = 0.058;
  facts.probability = 1;
  EXPECT_EQ(ReasonText(facts),
            "at 248 Gb/s +- 50 % and 6 us bf16 over recursive_doubling predicts 4.57 ms per step "
            "at gain 1 against 4.58 ms dense and 4.85 ms at gain 1 for dense over ring (5.8 % less "
            "of the objective than what runs, with 100 % confidence)");
  facts.incumbent->step_s = facts.dense_step_s;
  facts.bandwidth_deviation = 1.2;
  EXPECT_EQ(ReasonText(facts),
            "at 6 us and a bandwidth that too few bytes show bf16 over recursive_doubling predicts "
            "4.57 ms per step at gain 1 against 4.58 ms dense (5.8 % less of the objective than "
            "what runs, with 100 % confidence)");
}

}  // namespace
}  // namespace weir
