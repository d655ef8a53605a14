// SPDX-License-Identifier: Apache-2.0
#include "controller/model/codec_calibrator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "controller/model/cost_model.h"
#include "datapath/base/random.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

TEST(CodecCalibratorTest, FindsAllThreeCoefficients) {
  Random random(3);
  const CodecModel codec = test::Codecs()[2];
  CodecCalibrator calibrator(codec.encode);
  const auto truth = [](double n, double k) { return 2e-4 + 3e-9 * n + 2e-8 * k; };
  for (int i = 0; i < 300; ++i) {
    const double n = 1e5 + 3e6 * random.Uniform(), k = n * (i % 3 == 0 ? 0.1 : 0.01);
    calibrator.Add(n, k, truth(n, k) * std::exp(0.05 * random.Normal()));
  }
  for (const double n : {3e5, 1e6, 3e6}) {
    for (const double ratio : {0.1, 0.01, 0.03}) {
      EXPECT_NEAR(CodecSeconds(calibrator.Time(), n, ratio * n) / truth(n, ratio * n), 1, 0.08);
    }
  }
}

TEST(CodecCalibratorTest, StartsFromThePriorAndNeverGoesNegative) {
  const CodecModel codec = test::Codecs()[2];
  CodecCalibrator calibrator(codec.encode);
  EXPECT_DOUBLE_EQ(calibrator.Time().per_element_s, codec.encode.per_element_s);
  for (int i = 0; i < 200; ++i) calibrator.Add(i % 2 == 0 ? 1e6 : 1e5, 1e3, i % 2 == 0 ? 0 : 1e-3);
  const CodecModel::Time time = calibrator.Time();
  EXPECT_GE(time.base_s, 0);
  EXPECT_GE(time.per_element_s, 0);
  EXPECT_GE(time.per_kept_s, 0);
}

TEST(CodecCalibratorTest, FollowsAMachineThatGetsSlower) {
  CodecCalibrator calibrator(test::Codecs()[2].encode);
  for (int i = 0; i < 200; ++i) calibrator.Add(1e6, 1e4, 2e-3);
  for (int i = 0; i < 60; ++i) calibrator.Add(1e6, 1e4, 6e-3);
  EXPECT_NEAR(CodecSeconds(calibrator.Time(), 1e6, 1e4), 6e-3, 6e-4);
}

TEST(CodecCalibratorTest, AStallIsPlayedDown) {
  CodecCalibrator calibrator(test::Codecs()[2].encode);
  for (int i = 0; i < 100; ++i) calibrator.Add(1e6, 1e4, 2e-3);
  calibrator.Add(1e6, 1e4, 0.5);
  EXPECT_LT(CodecSeconds(calibrator.Time(), 1e6, 1e4), 3e-3);
  calibrator.Add(1e6, 1e4, std::nan(""));
  EXPECT_TRUE(std::isfinite(calibrator.Time().base_s));
}

}  // namespace
}  // namespace weir
