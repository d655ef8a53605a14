// SPDX-License-Identifier: Apache-2.0
#include "controller/model/measured_gain.h"

#include <gtest/gtest.h>

#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

MeasuredGain Seen(std::string codec, double ratio, double gain, double predicted) {
  return {std::move(codec), "ring", 0, ratio, gain, predicted};
}

class CorrectedGainTest : public testing::Test {
 protected:
  double Of(const std::string& codec, double ratio, double predicted,
            const std::string& collective = "ring") const {
    CodecModel model;
    model.name = codec;
    model.lossy = codec != "identity";
    return CorrectedGain(bucket_, model, test::Collective(collective, "lanes"), ratio, predicted);
  }
  BucketModel bucket_;
};

TEST_F(CorrectedGainTest, TheChoiceThatRanHasItsMeasuredGain) {
  EXPECT_EQ(Of("fp16", 1, 0.99), 0.99) << "nothing was measured";
  bucket_.measured_gains = {Seen("fp16", 1, 0.00013, 0.9999)};
  EXPECT_NEAR(Of("fp16", 1, 0.9999), 0.00013, 1e-12);
  EXPECT_EQ(Of("top_k", 1, 0.9), 0.9) << "another codec";
  EXPECT_EQ(Of("identity", 1, 1), 1);
}

TEST_F(CorrectedGainTest, OtherRatiosOfTheCodecAreCorrectedAlikeAndStayInOrder) {
  for (const double measured : {0.2, 0.7}) {
    bucket_.measured_gains = {Seen("top_k", 0.01, measured, 0.5)};
    double before = 0;
    for (const double predicted : {0.1, 0.3, 0.5, 0.8, 1.0}) {
      const double corrected = Of("top_k", 0.02, predicted);
      EXPECT_GT(corrected, before);
      EXPECT_LE(corrected, 1);
      EXPECT_EQ(corrected < predicted, measured < 0.5 || predicted == 1.0 ? measured < 0.5 : false);
      before = corrected;
    }
  }
  bucket_.measured_gains = {Seen("top_k", 0.3, 0.4, 0.8), Seen("top_k", 0.01, 0.1, 0.5)};
  EXPECT_NEAR(Of("top_k", 0.2, 0.7), 0.35, 1e-12) << "the nearer ratio counts";
}

TEST_F(CorrectedGainTest, OnlyALossBeyondThePredictionHoldsForOtherCollectives) {
  bucket_.measured_gains = {Seen("fp16", 1, 0.1, 1)};
  EXPECT_NEAR(Of("fp16", 1, 1, "mesh"), 0.1, 1e-12);
  bucket_.measured_gains = {Seen("top_k", 0.01, 0.9, 0.5)};
  EXPECT_EQ(Of("top_k", 0.01, 0.5, "mesh"), 0.5);
}

TEST(MeasuredGainsTest, AveragesForgetsSlowlyAndIsBounded) {
  MeasuredGains gains;
  for (int i = 0; i < 40; ++i) gains.Add(Seen("fp16", 1, i % 2 == 0 ? 0.3 : 0.5, 1), 0);
  ASSERT_EQ(gains.Get(0).size(), 1u);
  EXPECT_NEAR(gains.Get(0)[0].gain, 0.4, 0.03);
  const double half = gains.Get(MeasuredGains::kHalfLifeS)[0].gain;
  EXPECT_NEAR(half, 0.632, 0.03) << "the square root: half of the correction";
  gains.Add(Seen("fp16", 1, std::nan(""), 1), 0);
  EXPECT_NEAR(gains.Get(0)[0].gain, 0.4, 0.03);
  for (int i = 0; i < 100; ++i) gains.Add(Seen("top_k", 0.001 * (i + 1), 0.4, 0.5), 1);
  const auto kept = gains.Get(1);
  ASSERT_EQ(kept.size(), MeasuredGains::kChoicesMax);
  EXPECT_EQ(kept.back().ratio, 0.1);
}

}  // namespace
}  // namespace weir
