// SPDX-License-Identifier: Apache-2.0
// Properties of top_k beyond the conformance suite: which elements it keeps, how many, and the
// traps of threshold selection.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>

#include "datapath/codec/select/selection.h"
#include "datapath/codec/select/selection_payload.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

const Codec& TopK() { return test::FindCodec("top_k"); }

std::vector<uint32_t> Selected(std::span<const float> x, double ratio,
                               EncodeResult* result = nullptr) {
  const EncodeContext context = test::ContextFor(TopK(), x, 1, ratio);
  const test::Encoded encoded = test::EncodeOrDie(TopK(), x, context);
  if (result != nullptr) *result = encoded.result;
  std::vector<uint32_t> indices;
  WEIR_CHECK(TopK().DecodeIndices(encoded.payload, x.size(), &indices).ok());
  return indices;
}

TEST(TopKTest, KeepsTheLargestWithinTwoPercentOfK) {
  const size_t n = 1 << 20;
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    const std::vector<float> x = test::Draw(distribution, n, 9);
    for (const double ratio : {0.05, 0.01, 0.001}) {
      EncodeResult result;
      const std::vector<uint32_t> indices = Selected(x, ratio, &result);
      const double k = std::floor(ratio * n);
      EXPECT_NEAR(static_cast<double>(indices.size()), k, 0.02 * k + 3 * std::sqrt(k))
          << distribution.name << " " << ratio;
      // The selection is exactly the largest of its own size.
      std::vector<float> magnitudes(n);
      std::transform(x.begin(), x.end(), magnitudes.begin(), [](float v) { return std::abs(v); });
      std::nth_element(magnitudes.begin(), magnitudes.begin() + indices.size() - 1,
                       magnitudes.end(), std::greater<>());
      const float smallest = magnitudes[indices.size() - 1];
      double kept = 0;
      for (const uint32_t i : indices) {
        EXPECT_GE(std::abs(x[i]), smallest);
        kept += static_cast<double>(x[i]) * x[i];
      }
      const double gain = 1 - result.energy_lost / result.energy_in;
      EXPECT_NEAR(gain, kept / test::SquaredNorm(x), 1e-6) << distribution.name;
    }
  }
}

TEST(TopKTest, AgreesWithTheNumpyReference) {
  // top_k_reference.csv is written by top_k_reference.py beside it: the same integers, sorted by
  // numpy.
  std::ifstream file(std::string(WEIR_TEST_SOURCE_DIR) + "/golden/codec/top_k_reference.csv");
  ASSERT_TRUE(file.is_open());
  std::vector<float> x(20000);
  uint32_t state = 12345;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    const double u = (state >> 8) / 16777216.0 - 0.5;
    v = static_cast<float>(u * u * u);
  }
  GradientStatistics statistics;
  statistics.Add(x);
  double ratio, kth, gain;
  char comma;
  int rows = 0;
  while (file >> ratio >> comma >> kth >> comma >> gain) {
    ++rows;
    EXPECT_NEAR(statistics.ThresholdForRatio(ratio) / kth, 1, 0.01) << ratio;
    EXPECT_NEAR(statistics.GainAtRatio(ratio), gain, 1e-3) << ratio;
    EncodeResult result;
    const double k = ratio * x.size();
    EXPECT_NEAR(static_cast<double>(Selected(x, ratio, &result).size()), k, 0.03 * k + 1);
    EXPECT_NEAR(1 - result.energy_lost / result.energy_in, gain, 5e-3) << ratio;
  }
  EXPECT_EQ(rows, 5);
}

// --- Ties, zeros, tiny tensors -------------------------------------------------------------------

TEST(TopKTest, EqualMagnitudesAreTakenByPositionUpToTheCap) {
  std::vector<float> x(10000, 1.0f);
  for (size_t i = 0; i < x.size(); i += 2) x[i] = -1.0f;
  const std::vector<uint32_t> indices = Selected(x, 0.01);
  ASSERT_EQ(indices.size(), SelectionCap(x.size(), 0.01));
  for (size_t i = 0; i < indices.size(); ++i) EXPECT_EQ(indices[i], i);
}

TEST(TopKTest, ZerosAndSubnormalsAreNeverSent) {
  std::vector<float> x(1000, 0.0f);
  EXPECT_TRUE(Selected(x, 0.5).empty());
  x[3] = std::numeric_limits<float>::denorm_min();
  EXPECT_TRUE(Selected(x, 1.0).empty());
  x[500] = -2.0f;
  EXPECT_EQ(Selected(x, 0.5), std::vector<uint32_t>{500});
}

TEST(TopKTest, AtLeastOneElementOfATinyTensor) {
  for (const size_t n : {size_t{1}, size_t{2}, size_t{7}}) {
    std::vector<float> x(n, 0.1f);
    x[n / 2] = 5.0f;
    const std::vector<uint32_t> indices = Selected(x, 0.001);
    EXPECT_TRUE(std::find(indices.begin(), indices.end(), n / 2) != indices.end());
  }
}

TEST(TopKTest, RatioOneKeepsEverythingThatIsNotZero) {
  const std::vector<float> x = test::NormalVector(5000, 3);
  EXPECT_GE(Selected(x, 1.0).size(), 4995u);  // the lowest bin's edge may cost a few
}

// --- Values
// ----------------------------------------------------------------------------------------

TEST(TopKTest, AnyScaleSurvivesHalfPrecision) {
  for (const double scale : {1e-37, 1e-20, 1e-8, 1.0, 1e8, 1e20, 1e36}) {
    const std::vector<float> x = test::NormalVector(4000, 5, scale);
    const EncodeContext context = test::ContextFor(TopK(), x);
    const test::Encoded encoded = test::EncodeOrDie(TopK(), x, context);
    std::vector<float> decoded(x.size(), 0.0f);
    ASSERT_TRUE(TopK().DecodeAdd(encoded.payload, context, 1, decoded).ok());
    for (size_t i = 0; i < x.size(); ++i) {
      if (decoded[i] != 0) {
        ASSERT_NEAR(decoded[i] / x[i], 1, 0x1p-11) << scale;
      }
    }
  }
}

TEST(TopKTest, AWideRangeOfValuesTurnsToSinglePrecision) {
  std::vector<float> x(100, 0.0f);
  x[1] = 1e20f;
  x[2] = 1e-10f;
  const EncodeContext context = test::ContextFor(TopK(), x, 1, 0.5);
  const test::Encoded encoded = test::EncodeOrDie(TopK(), x, context);
  EXPECT_EQ(encoded.payload[2], std::byte{2});  // value format: float32
  std::vector<float> decoded(x.size(), 0.0f);
  ASSERT_TRUE(TopK().DecodeAdd(encoded.payload, context, 1, decoded).ok());
  EXPECT_EQ(decoded, x);
}

// --- The warm pass
// -----------------------------------------------------------------------------------

struct WarmRun {
  std::vector<float> residual;
  std::unique_ptr<CodecState> state;
  EncodeContext context;
  std::vector<std::byte> out;
  std::vector<uint32_t> indices;

  WarmRun(size_t n, double ratio) : residual(n, 0.0f) {
    context.params.ratio = ratio;
    state = TopK().NewState(n, context);
    context.state = state.get();
    out.resize(TopK().MaxEncodedBytes(n, context));
  }
  size_t Step(std::span<const float> gradient) {
    const auto result = TopK().EncodeWithFeedback(gradient, residual, residual, context, out);
    WEIR_CHECK(result.ok());
    WEIR_CHECK(
        TopK().DecodeIndices(std::span(out).first(result->bytes), gradient.size(), &indices).ok());
    return indices.size();
  }
};

TEST(TopKTest, TheKeptCountIsSteeredToTheRatio) {
  for (const double ratio : {0.1, 0.01, 0.001}) {
    const size_t n = 300000;
    WarmRun run(n, ratio);
    double sum = 0;
    for (int step = 0; step < 60; ++step) {
      const size_t count = run.Step(test::NormalVector(n, 100 + step));
      EXPECT_LE(count, SelectionCap(n, ratio));
      EXPECT_GE(count, SelectionTarget(n, ratio) / 2);
      if (step >= 40) sum += static_cast<double>(count);
    }
    EXPECT_NEAR(sum / 20 / (ratio * n), 1, 0.1) << ratio;
  }
}

TEST(TopKTest, SuddenChangesOfScaleStayWithinTheBounds) {
  const size_t n = 50000;
  WarmRun run(n, 0.01);
  Random random(6);
  for (int step = 0; step < 60; ++step) {
    const double scale = std::pow(10.0, static_cast<double>(random.Below(9)) - 4);
    const std::vector<float> g = test::NormalVector(n, step, scale), before = run.residual;
    const size_t count = run.Step(g);
    EXPECT_LE(count, SelectionCap(n, 0.01)) << step;
    EXPECT_GE(count, SelectionTarget(n, 0.01) / 2) << step;
    // On either path the residual keeps all elements that were not selected, unchanged.
    std::vector<bool> sent(n);
    for (const uint32_t i : run.indices) sent[i] = true;
    for (size_t i = 0; i < n; ++i) {
      if (sent[i]) continue;
      ASSERT_EQ(run.residual[i], g[i] + before[i]) << i << " step " << step;
    }
  }
}

TEST(TopKTest, ChangingTheRatioTakesEffectAtOnce) {
  const size_t n = 100000;
  WarmRun run(n, 0.1);
  for (int step = 0; step < 5; ++step) run.Step(test::NormalVector(n, step));
  run.context.params.ratio = 0.005;
  const size_t count = run.Step(test::NormalVector(n, 9));
  EXPECT_LE(count, SelectionCap(n, 0.005));
  EXPECT_GE(count, SelectionTarget(n, 0.005) / 2);
}

TEST(TopKTest, RecoversFromAllZeroSteps) {
  const size_t n = 20000;
  WarmRun run(n, 0.01);
  const std::vector<float> zero(n, 0.0f);
  EXPECT_EQ(run.Step(zero), 0u);
  EXPECT_EQ(run.Step(zero), 0u);
  const size_t count = run.Step(test::NormalVector(n, 1));
  EXPECT_LE(count, SelectionCap(n, 0.01));
  EXPECT_GE(count, SelectionTarget(n, 0.01) / 2);
}

// --- Shared selection
// ----------------------------------------------------------------------------------

TEST(SharedTopKTest, SendsPositionsAndKeepsEverythingInTheResidual) {
  const Codec& codec = test::FindCodec("shared_top_k");
  const size_t n = 10000;
  const std::vector<float> g = test::NormalVector(n, 1), r = test::NormalVector(n, 2);
  EncodeContext context = test::ContextFor(codec, g, 4, 0.02);
  std::vector<std::byte> out(codec.MaxEncodedBytes(n, context));
  std::vector<float> rest(n);
  const auto result = codec.EncodeWithFeedback(g, r, rest, context, out);
  ASSERT_TRUE(result.ok());
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(rest[i], g[i] + r[i]);
  std::vector<uint32_t> indices;
  ASSERT_TRUE(codec.DecodeIndices(std::span(out).first(result->bytes), n, &indices).ok());
  EXPECT_NEAR(static_cast<double>(indices.size()), 200, 40);
  EXPECT_LT(result->bytes, indices.size() * 2);
}

TEST(TopKTest, RestIsTheSameInPlaceAndInOtherMemory) {
  // Long and aligned enough to be written past the caches.
  const size_t n = (size_t{1} << 20) + 77;
  const std::vector<float> g = test::NormalVector(n, 12);
  const auto aligned = [](std::vector<float>& memory) {
    memory.resize(n + 16);
    const size_t skip = (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64 / sizeof(float);
    return std::span(memory).subspan(skip, n);
  };
  std::vector<float> first, second, third;
  std::span<float> current = aligned(first), next = aligned(second), in_place = aligned(third);
  EncodeContext context = test::ContextFor(TopK(), g, 1, 0.01);
  const auto state = TopK().NewState(n, context), other = TopK().NewState(n, context);
  std::vector<std::byte> out, expected;
  for (int step = 0; step < 4; ++step) {
    context.state = state.get();
    test::FeedbackOrDie(TopK(), g, current, next, context, &out);
    std::swap(current, next);
    context.state = other.get();
    test::FeedbackOrDie(TopK(), g, in_place, in_place, context, &expected);
    ASSERT_EQ(out, expected) << step;
    ASSERT_TRUE(std::equal(current.begin(), current.end(), in_place.begin())) << step;
  }
}

}  // namespace
}  // namespace weir
