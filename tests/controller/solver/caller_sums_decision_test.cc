// SPDX-License-Identifier: Apache-2.0
// Dense sums that the training job makes over a process group of its own, among the candidates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

constexpr double kBytesPerMbit = 1e6 / 8;

Decision Decided(const Snapshot& snapshot, const Policy& policy = {}) {
  const auto decision = Decide(snapshot, policy);
  EXPECT_TRUE(decision.ok()) << ToString(decision.status());
  return decision.ok() ? *decision : Decision{};
}

TEST(CallerSumsDecisionTest, DenseIsTheFrameworksWhereThatIsFaster) {
  Snapshot snapshot = test::MakeSnapshot(4, 2e-5, 12.5e9, 4);
  snapshot.collectives.push_back(test::ByCaller());
  CollectiveModel& callers = snapshot.collectives.back();
  callers.beta_scale = 0.1;
  Decision decision = Decided(snapshot);
  for (const ChoiceModel& choice : decision.chosen.choices) {
    EXPECT_EQ(choice.collective, "framework");
    EXPECT_EQ(choice.codec, "identity");
  }
  EXPECT_TRUE(decision.chosen.dense);
  EXPECT_THAT(ReasonText(decision.facts), HasSubstr("over framework"));
  callers.beta_scale = 100;
  decision = Decided(snapshot);
  for (const ChoiceModel& choice : decision.chosen.choices)
    EXPECT_NE(choice.collective, "framework");
  snapshot.incumbent = PlanModel(snapshot.buckets.size(), {"identity", "framework", 1, 0});
  snapshot.buckets[1].sharded = true;
  snapshot.buckets[1].element_bytes = 2;
  EXPECT_EQ(*ParseSnapshot(SerializeSnapshot(snapshot)), snapshot);
}

// The framework moves half of an all-reduce's bytes, as fp16 does, and computes nothing.
TEST(CallerSumsDecisionTest, WhatTheFrameworkReduceScattersIsNotPricedAsAnAllReduce) {
  Policy policy;
  policy.codecs = {"identity", "fp16"};
  policy.collectives = {"ring", "framework"};
  Snapshot snapshot = test::MakeSnapshot(4, 2e-5, 500 * kBytesPerMbit);
  snapshot.collectives.push_back(test::ByCaller());
  const Decision whole = Decided(snapshot, policy);
  EXPECT_EQ(whole.chosen.choices[0].codec, "fp16");
  for (BucketModel& bucket : snapshot.buckets) bucket.sharded = true;
  const Decision shards = Decided(snapshot, policy);
  EXPECT_EQ(shards.chosen.choices[0].codec, "identity");
  EXPECT_EQ(shards.chosen.choices[0].collective, "framework");
  EXPECT_LT(shards.dense.step_s, 0.7 * whole.dense.step_s);
}

}  // namespace
}  // namespace weir
