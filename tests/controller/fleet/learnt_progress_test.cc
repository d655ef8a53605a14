// SPDX-License-Identifier: Apache-2.0
// The losses that a job has reported are worth minutes to hours: what was learnt from them is not
// lost with the controller.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

class LearntProgressTest : public FleetFixture {
 protected:
  void Run(int steps) {
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) cluster_.Step();
  }
  // As kill -9: only what the store holds remains.
  void ReplaceController() {
    plane_.reset();
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
    ASSERT_TRUE(plane_->Recover().ok());
  }
  /// Nine hundred steps, of gains of which each makes gain^0.3 of a dense step's progress.
  v1::Progress Learn() {
    cluster_.network.bandwidth_bytes_per_s = 10e6;
    cluster_.progress = [](double gain) { return std::pow(gain, 0.3); };
    cluster_.Connect(*plane_);
    Run(900);
    const v1::Progress learnt = Job().progress();
    EXPECT_GT(learnt.losses(), 500u);
    EXPECT_LT(learnt.exponent(), 0.9) << "the policy says 1";
    clock_.Advance(std::chrono::minutes(1));
    Run(1);  // and it is saved
    return learnt;
  }
};

TEST_F(LearntProgressTest, ItOutlivesTheController) {
  const v1::Progress before = Learn();
  ReplaceController();
  cluster_.Connect(*plane_);
  Run(1);
  const v1::Progress after = Job().progress();
  EXPECT_GT(after.losses(), before.losses());
  EXPECT_NEAR(after.exponent(), before.exponent(), 0.02);
  EXPECT_NEAR(after.exponent_low(), before.exponent_low(), 0.11);
  EXPECT_NEAR(after.exponent_high(), before.exponent_high(), 0.11);
}

TEST_F(LearntProgressTest, TrainingThatBeginsAgainLearnsAgain) {
  Learn();
  ReplaceController();
  FakeCluster again(4, clock_);
  again.pid = 200;
  again.Connect(*plane_);
  again.Step();
  EXPECT_LT(Job().progress().losses(), 10u);
}

TEST_F(LearntProgressTest, ADamagedRecordIsLeftOut) {
  Learn();
  ASSERT_TRUE(store_->PutFact("progress/lm", "17 progress1 1 2 3").ok());
  ReplaceController();
  cluster_.Connect(*plane_);
  Run(1);
  EXPECT_LT(Job().progress().losses(), 10u);
  EXPECT_EQ(Job().state(), "running");
}

TEST_F(LearntProgressTest, AJobThatIsForgottenLeavesNothing) {
  Learn();
  EXPECT_FALSE(store_->GetFact("progress/lm")->empty());
  for (int rank = 0; rank < 4; ++rank) cluster_.DisconnectRank(rank);
  v1::ForgetJobRequest request;
  request.set_name("lm");
  v1::ForgetJobResponse response;
  ASSERT_TRUE(plane_->admin.ForgetJob(request, &response).ok());
  EXPECT_EQ(*store_->GetFact("progress/lm"), "");
}

}  // namespace
}  // namespace weir
