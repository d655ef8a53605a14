// SPDX-License-Identifier: Apache-2.0
// The gain of a codec is uncertain until it was measured, and a switch to it needs to promise more.

#include <gtest/gtest.h>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

/// A selection runs; the network and progress are certain, and another selection is allowed too.
Decision OnCertainNetwork(double bandwidth, bool measured) {
  Snapshot snapshot = test::MakeSnapshot(4, 2e-4, bandwidth, 2);
  snapshot.incumbent = PlanModel(2, {"qsgd", "ring", 1, 0});
  snapshot.compute_s.deviation = 0;
  snapshot.latency_s.deviation = snapshot.bandwidth_bytes_per_s.deviation = 0;
  for (CollectiveModel& collective : snapshot.collectives) collective.relative_deviation = 0;
  for (CodecModel& codec : snapshot.codecs) {
    codec.encode.deviation_s_per_element = codec.decode.deviation_s_per_element = 0;
  }
  Policy policy;
  policy.codecs = {"qsgd", "top_k"};
  policy.progress_deviation = 0;
  if (measured) {
    // At a ratio that is no candidate: only what is known of the codec changes.
    for (BucketModel& bucket : snapshot.buckets) {
      bucket.measured_gains = {{"top_k", "sparse_all_gather", 0, 0.5, 0.9, 0.9}};
    }
  }
  const auto decision = Decide(snapshot, policy);
  EXPECT_TRUE(decision.ok()) << ToString(decision.status());
  return decision.ok() ? *decision : Decision{};
}

TEST(GainRiskTest, WhatWasMeasuredNeedsToPromiseLess) {
  int only_if_measured = 0, always = 0;
  for (double bandwidth = 3e6; bandwidth < 2e8; bandwidth *= 1.02) {
    const Decision predicted = OnCertainNetwork(bandwidth, false);
    const Decision measured = OnCertainNetwork(bandwidth, true);
    EXPECT_LE(predicted.switched, measured.switched) << bandwidth;
    only_if_measured += measured.switched && !predicted.switched;
    always += measured.switched && predicted.switched;
    if (measured.switched && !predicted.switched) {
      EXPECT_EQ(predicted.facts.rule, DecisionRule::kUnsure) << ReasonText(predicted.facts);
    }
  }
  EXPECT_GT(only_if_measured, 0);
  EXPECT_GT(always, only_if_measured) << "large promises are believed";
}

}  // namespace
}  // namespace weir
