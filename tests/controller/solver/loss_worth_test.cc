// SPDX-License-Identifier: Apache-2.0
// A plan that loses must be worth it, also where dense could be as much better than what runs.
#include <gtest/gtest.h>

#include <algorithm>

#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

// On a network where bytes cost next to nothing and messages much, dense over the collective with
// few rounds is far better than dense over a ring, and fp16 there a little better still.
TEST(LossWorthTest, ALossyPlanMustBeWorthItsLossBesideDense) {
  Snapshot snapshot = test::MakeSnapshot(8, 5e-3, 2e10, 1);
  snapshot.incumbent = PlanModel(1, ChoiceModel{"identity", "ring"});
  snapshot.compute_s = {0.02, 1e-4, 0};
  std::erase_if(snapshot.codecs, [](const CodecModel& codec) {
    return codec.name != "identity" && codec.name != "fp16";
  });
  for (CodecModel& codec : snapshot.codecs) {
    codec.encode = codec.decode = {.per_element_s = codec.lossy ? 1e-12 : 0.0};
  }
  const auto decided = Decide(snapshot, Policy{});
  ASSERT_TRUE(decided.ok()) << ToString(decided.status());
  const Decision& decision = *decided;
  ASSERT_TRUE(decision.switched);
  EXPECT_TRUE(decision.chosen.dense) << decision.chosen.label;
  const auto fp16 = std::find_if(
      decision.top.begin(), decision.top.end(),
      [&](const CandidatePlan& plan) { return plan.choices[0].codec == "fp16" && plan.feasible; });
  ASSERT_NE(fp16, decision.top.end());
  EXPECT_LT(fp16->objective, decision.chosen.objective) << "the best by the score alone";
  EXPECT_LT(fp16->objective, 0.95 * decision.incumbent.objective);
}

}  // namespace
}  // namespace weir
