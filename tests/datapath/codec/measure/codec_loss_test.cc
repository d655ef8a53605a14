// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/measure/codec_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "datapath/base/random.h"

namespace weir {
namespace {

std::vector<float> Gaussian(size_t n, double scale) {
  Random random(3);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(scale * random.Normal());
  return x;
}

TEST(CodecLossProbeTest, GoesThroughEverySettingAndAgreesWithTheTraitsOnGaussianInput) {
  const CodecLossProbe probe(4);
  ASSERT_GE(probe.settings(), 2u);
  const std::vector<float> x = Gaussian(100000, 0.01);
  const std::vector<TensorShape> shape = {{250, 400}};
  std::map<std::pair<std::string, uint32_t>, double> seen;
  for (size_t call = 0; call <= probe.settings() / 2; ++call) {
    for (const CodecLoss& loss : probe.Measure(x, {}, shape, 1000 * call)) {
      seen[{loss.codec, loss.bits}] = loss.relative_loss;
    }
  }
  EXPECT_EQ(seen.size(), probe.settings());
  for (const auto& [key, loss] : seen) {
    const CodecTraits& traits = Codecs().Find(key.first).value()->Traits();
    const CodecSetting* setting = FindSetting(traits, {.bits = static_cast<int>(key.second)}, 4);
    ASSERT_NE(setting, nullptr);
    if (traits.error_model == ErrorModel::kUniformSelection) {
      EXPECT_NEAR(loss, 1, 0.12) << key.first;
      continue;
    }
    if (traits.error_model == ErrorModel::kSelection) {  // how many it keeps is part of it
      EXPECT_NEAR(loss, setting->relative_error_squared, 0.1) << key.first << " " << key.second;
      continue;
    }
    EXPECT_NEAR(loss / setting->relative_error_squared, 1, 0.3) << key.first << " " << key.second;
  }
}

TEST(CodecLossProbeTest, SeesThatHeavyTailsCostCoarseValuesMore) {
  const CodecLossProbe probe(4);
  std::vector<float> x = Gaussian(16384, 1);
  for (float& v : x) v = v * v * v;
  double adaq = 0;
  for (size_t call = 0; call <= probe.settings() / 2; ++call) {
    for (const CodecLoss& loss : probe.Measure(x, {}, {}, 0)) {
      if (loss.codec == "adaq") adaq = loss.relative_loss;
    }
  }
  EXPECT_GT(adaq, 0.1) << "two means for magnitudes that differ widely";
  EXPECT_LT(adaq, 1);
}

/// The probe's losses of codecs that keep blocks, rows or ranks, for a matrix of 256 by 300.
std::map<std::string, double> BlockLosses(const std::vector<float>& x) {
  const CodecLossProbe probe(4);
  const std::vector<TensorShape> shape = {{1, x.size() - 256 * 300}, {256, 300}};
  std::map<std::string, double> losses;
  for (uint64_t call = 0; call < 16; ++call) {
    for (const CodecLoss& loss : probe.Measure(x, {}, shape, 77 * call)) {
      const ErrorModel model = Codecs().Find(loss.codec).value()->Traits().error_model;
      if (model == ErrorModel::kUniformSelection) losses[loss.codec] = loss.relative_loss;
    }
  }
  return losses;
}

TEST(CodecLossProbeTest, FindsNoAdvantageWithoutStructure) {
  const auto losses = BlockLosses(Gaussian(256 * 300 + 400, 0.01));
  EXPECT_EQ(losses.size(), 3u);
  for (const auto& [codec, loss] : losses) EXPECT_NEAR(loss, 1, 0.12) << codec;
}

TEST(CodecLossProbeTest, PricesRowsRanksAndBlocksByWhatTheGradientsHold) {
  const size_t rows = 256, columns = 300, n = rows * columns + 400;
  const std::vector<float> noise = Gaussian(n, 1);
  std::vector<float> low_rank(n), long_rows(n), blocks(n);
  for (size_t i = 0; i < n; ++i) {
    const size_t in = i < 400 ? 0 : i - 400, row = in / columns, column = in % columns;
    low_rank[i] = noise[row] * noise[1000 + column] + 0.05f * noise[i];
    long_rows[i] = noise[i] * (row % 40 == 0 ? 1.0f : 0.03f);
    blocks[i] = noise[i] * (i / 256 % 32 == 3 ? 1.0f : 0.03f);
  }
  EXPECT_LT(BlockLosses(low_rank).at("power_sgd"), 0.05);
  EXPECT_LT(BlockLosses(long_rows).at("arc_top_k"), 0.3);
  EXPECT_LT(BlockLosses(blocks).at("block_top_k"), 0.5) << "slices need not begin with a block";
}

TEST(CodecLossProbeTest, LeavesOutRowsAndRanksWithoutAMatrix) {
  const CodecLossProbe probe(4);
  const std::vector<float> x = Gaussian(20000, 1);
  const std::vector<TensorShape> vectors = {{1, 10000}, {40, 250}};
  for (uint64_t call = 0; call < 12; ++call) {
    for (const CodecLoss& loss : probe.Measure(x, {}, vectors, call)) {
      EXPECT_NE(loss.codec, "power_sgd");
      EXPECT_NE(loss.codec, "arc_top_k");
    }
  }
}

TEST(CodecLossProbeTest, AddsTheResidual) {
  const CodecLossProbe probe(2);
  const std::vector<float> x = Gaussian(2048, 1);
  std::vector<float> negative(x);
  for (float& v : negative) v = -v;
  EXPECT_FALSE(probe.Measure(x, {}, {}, 0).empty());
  EXPECT_TRUE(probe.Measure(x, negative, {}, 0).empty()) << "nothing is left";
}

TEST(CodecLossProbeTest, SaysNothingOfWhatItCannotMeasure) {
  const CodecLossProbe probe(2);
  EXPECT_TRUE(probe.Measure({}, {}, {}, 5).empty());
  EXPECT_TRUE(probe.Measure(Gaussian(1023, 1), {}, {}, 5).empty());
  std::vector<float> bad = Gaussian(1024, 1);
  bad[500] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(probe.Measure(bad, {}, {}, 5).empty());
}

}  // namespace
}  // namespace weir
