// SPDX-License-Identifier: Apache-2.0
// The measured loss of a codec corrects the prediction of its error model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

class MeasuredGainTest : public FleetFixture {
 protected:
  void SetUp() override {
    FleetFixture::SetUp();
    // Halving pays by far.
    cluster_.network.bandwidth_bytes_per_s = 20e6;
  }
  void Train(const std::string& bounds, double half_gain) {
    Apply(StrCat("name: p\njobs: ['*']\nbounds: {codecs: [identity, fp16]", bounds, "}\n"));
    cluster_.half_gain = half_gain;
    cluster_.Connect(*plane_);
    for (int i = 0; i < 60; ++i) {
      cluster_.Step();
      steps_with_half_ += cluster_.ActiveCodec() == "fp16" ? 1 : 0;
    }
  }
  int steps_with_half_ = 0;
};

TEST_F(MeasuredGainTest, ACodecThatKeepsWhatItDeclaresStays) {
  Train("", 1 - 3.67e-8);
  EXPECT_EQ(cluster_.ActiveCodec(), "fp16");
  EXPECT_GT(steps_with_half_, 40);
}

TEST_F(MeasuredGainTest, ACodecThatKeepsNextToNothingIsLeftWithinAFewSteps) {
  Train("", 0.00013);
  EXPECT_EQ(cluster_.ActiveCodec(), "identity");
  EXPECT_GE(steps_with_half_, 1) << "it was predicted to keep everything";
  EXPECT_LE(steps_with_half_, 10);
  const auto plans = PlansNewestFirst();
  ASSERT_GE(plans.size(), 2u);
  const v1::Decision& left = plans[0];
  ASSERT_EQ(left.changes_size(), 1);
  EXPECT_EQ(left.changes(0).of(), v1::Change::OF_PLAN_GAIN);
  EXPECT_NEAR(left.changes(0).before(), 1, 1e-6);
  EXPECT_NEAR(left.changes(0).after(), 0.00013, 1e-9);
  EXPECT_THAT(left.reason(), testing::HasSubstr("1.3e-4 measured, 1 predicted"));
}

TEST_F(MeasuredGainTest, TheFloorOfThePolicyHoldsForTheMeasuredGain) {
  Train(", gain_min: 0.8", 0.6);
  EXPECT_EQ(cluster_.ActiveCodec(), "identity");
  EXPECT_LE(steps_with_half_, 10);
  v1::GetDecisionRequest request;
  request.set_id(PlansNewestFirst()[0].id());
  v1::Decision left;
  ASSERT_TRUE(plane_->admin.GetDecision(request, &left).ok());
  bool seen = false;
  for (const v1::Candidate& candidate : left.candidates()) {
    if (candidate.choice().codec() != "fp16" || candidate.choice().collective() != "ring") continue;
    seen = true;
    EXPECT_NEAR(candidate.gain(), 0.6, 1e-6) << candidate.label();
    EXPECT_EQ(candidate.excluded_by(), "gain_min 0.8");
  }
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace weir
