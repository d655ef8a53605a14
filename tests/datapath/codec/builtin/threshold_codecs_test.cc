// SPDX-License-Identifier: Apache-2.0
// The codecs that estimate a threshold: their distance from k, their exact properties, and their
// behaviour when the threshold misses.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/codec/select/selection.h"
#include "datapath/codec/select/staged_threshold.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

std::vector<uint32_t> Selected(std::string_view name, std::span<const float> x,
                               const EncodeContext& context) {
  const Codec& codec = test::FindCodec(name);
  std::vector<uint32_t> indices;
  const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
  WEIR_CHECK(codec.DecodeIndices(encoded.payload, x.size(), &indices).ok());
  return indices;
}

std::vector<uint32_t> Selected(std::string_view name, std::span<const float> x, double ratio) {
  return Selected(name, x, test::ContextFor(test::FindCodec(name), x, 1, ratio));
}

// --- SIDCo ---------------------------------------------------------------------------------------

/// Count that |x| > threshold passes, the plain way.
size_t CountAbove(std::span<const float> x, float threshold) {
  return static_cast<size_t>(
      std::count_if(x.begin(), x.end(), [=](float v) { return std::abs(v) > threshold; }));
}

TEST(SidcoTest, CountedStagesComeWithinTenPercentOfKOnSevenDistributions) {
  const size_t n = 4 << 20;
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    const std::vector<float> x = test::Draw(distribution, n, 11);
    for (const double ratio : {0.1, 0.01, 0.001, 0.0001}) {
      const SelectionRequest request{.gradient = x, .ratio = ratio};
      const float threshold = CountCorrectedThreshold(TailsOf(request));
      const double k = std::floor(ratio * n);
      EXPECT_NEAR(static_cast<double>(CountAbove(x, threshold)) / k, 1, 0.1)
          << distribution.name << " " << ratio;
    }
  }
}

TEST(SidcoTest, PublishedFirstStagesAreTheClosedForms) {
  const std::vector<float> x = test::NormalVector(5000, 3);
  double sum = 0, squares = 0, logs = 0;
  for (const float v : x) {
    sum += std::abs(v);
    squares += static_cast<double>(v) * v;
    logs += std::log(std::abs(v));
  }
  const double n = 5000, mean = sum / n, variance = squares / n - mean * mean;
  const double ratio = 0.01;
  const SelectionRequest request{.gradient = x, .ratio = ratio};
  EXPECT_NEAR(StagedThreshold(TailsOf(request), TailFit::kExponential, 1), -mean * std::log(ratio),
              1e-5);
  const double kappa = 0.5 * (mean * mean / variance - 1);
  const double sigma = 0.5 * mean * (mean * mean / variance + 1);
  EXPECT_NEAR(StagedThreshold(TailsOf(request), TailFit::kPareto, 1),
              sigma * (1 - std::pow(ratio, kappa)) / kappa, 1e-5);
  const double t = std::log(mean) - logs / n;
  const double a = (3 - t + std::sqrt((t - 3) * (t - 3) + 24 * t)) / (12 * t);
  EXPECT_NEAR(StagedThreshold(TailsOf(request), TailFit::kGammaThenPareto, 1),
              mean / a * InverseGamma(a, ratio), 1e-4);
}

TEST(SidcoTest, TheSecondExponentialStageStartsAtTheSmallestExceedance) {
  const std::vector<float> x = test::NormalVector(4000, 4);
  const double ratio = 0.01, n = 4000;
  double sum = 0;
  for (const float v : x) sum += std::abs(v);
  const double first = -sum / n * std::log(0.25);
  double tail = 0, count = 0, smallest = 1e9;
  for (const float v : x) {
    if (std::abs(v) <= static_cast<float>(first)) continue;
    tail += std::abs(v);
    ++count;
    smallest = std::min<double>(smallest, std::abs(v));
  }
  const double expected = smallest - (tail / count - smallest) * std::log(ratio / 0.25);
  const SelectionRequest request{.gradient = x, .ratio = ratio};
  EXPECT_NEAR(StagedThreshold(TailsOf(request), TailFit::kExponential, 2), expected, 1e-5);
}

TEST(SidcoTest, InverseGammaMatchesClosedForms) {
  for (const double tail : {0.5, 0.25, 0.01, 1e-6}) {
    EXPECT_NEAR(InverseGamma(1, tail), -std::log(tail), 1e-9 - 1e-9 * std::log(tail));
    // Shape 2: Q(2, x) = (1 + x) exp(-x).
    const double x = InverseGamma(2, tail);
    EXPECT_NEAR((1 + x) * std::exp(-x) / tail, 1, 1e-6);
    // Shape 1/2: Q(1/2, x) = erfc(sqrt(x)).
    EXPECT_NEAR(std::erfc(std::sqrt(InverseGamma(0.5, tail))) / tail, 1, 1e-6);
  }
}

TEST(SidcoTest, TheControllerFindsStagesThatKeepAboutK) {
  // Normal input: one exponential stage keeps 2 % of k at this ratio, three about all of it.
  const Codec& codec = test::FindCodec("sidco:fit=e");
  const size_t n = 200000;
  EncodeContext context = test::ContextFor(codec, {}, 1, 0.01);
  const auto state = codec.NewState(n, context);
  context.state = state.get();
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    const std::vector<float> x = test::NormalVector(n, 50 + step);
    const double count = static_cast<double>(Selected("sidco:fit=e", x, context).size());
    if (step == 0) first = count;
    if (step >= 25) last += count / 5;
  }
  EXPECT_LT(first, 0.2 * 0.01 * n);
  EXPECT_NEAR(last / (0.01 * n), 1, 0.4);
}

// --- Exact counts --------------------------------------------------------------------------------

TEST(MsTopKTest, KeepsExactlyK) {
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    const std::vector<float> x = test::Draw(distribution, 30011, 5);
    for (const double ratio : {0.3, 0.05, 0.001}) {
      const size_t nonzero = CountAbove(x, 0);
      EXPECT_EQ(Selected("threshold:selector=ms_top_k", x, ratio).size(),
                std::min(nonzero, SelectionTarget(x.size(), ratio)))
          << distribution.name << " " << ratio;
    }
  }
}

TEST(MsTopKTest, TiesFillUpByARunFromASeededPlace) {
  std::vector<float> x(10000, 0.5f);
  x[9999] = -3.0f;
  EncodeContext context =
      test::ContextFor(test::FindCodec("threshold:selector=ms_top_k"), x, 1, 0.01);
  const std::vector<uint32_t> one = Selected("threshold:selector=ms_top_k", x, context);
  context.seed = 99;
  const std::vector<uint32_t> other = Selected("threshold:selector=ms_top_k", x, context);
  ASSERT_EQ(one.size(), 100u);
  ASSERT_EQ(other.size(), 100u);
  EXPECT_NE(one, other) << "low positions would always win";
  EXPECT_EQ(one.back(), 9999u);
  EXPECT_EQ(one[98] - one[0], 98u) << "contiguous";
}

TEST(BlockTopKTest, KeepsTheBlocksWithTheLargestNorms) {
  const size_t n = 256 * 100 - 77;
  std::vector<float> x = test::NormalVector(n, 3, 0.1);
  for (const size_t block : {7u, 42u, 99u}) {
    for (size_t i = block * 256; i < std::min(n, (block + 1) * 256); ++i) x[i] *= 10;
  }
  const std::vector<uint32_t> indices = Selected("block_top_k", x, 0.03);
  std::vector<uint32_t> expected;
  for (const uint32_t block : {7u, 42u, 99u}) {
    for (uint32_t i = block * 256; i < std::min<size_t>(n, (block + 1) * 256); ++i) {
      expected.push_back(i);
    }
  }
  EXPECT_EQ(indices, expected);
}

TEST(LayerWiseTopKTest, EveryTensorKeepsItsOwnLargest) {
  // Four tensors whose scales differ by powers of ten; bucket-wide top-k would see the last only.
  const std::vector<TensorShape> shape = {{1, 64}, {100, 50}, {1, 1}, {200, 300}};
  std::vector<float> x;
  double scale = 1e-3;
  for (const TensorShape& tensor : shape) {
    for (const float v : test::NormalVector(tensor.elements(), x.size() + 1, scale)) {
      x.push_back(v);
    }
    scale *= 10;
  }
  EncodeContext context =
      test::ContextFor(test::FindCodec("threshold:selector=layer_wise"), x, 1, 0.02);
  context.shape = shape;
  const std::vector<uint32_t> indices = Selected("threshold:selector=layer_wise", x, context);
  size_t at = 0;
  for (const TensorShape& tensor : shape) {
    const size_t end = at + tensor.elements();
    std::vector<float> magnitudes;
    float smallest_kept = std::numeric_limits<float>::infinity();
    for (const uint32_t i : indices) {
      if (i < at || i >= end) continue;
      magnitudes.push_back(std::abs(x[i]));
      smallest_kept = std::min(smallest_kept, std::abs(x[i]));
    }
    const double k = static_cast<double>(SelectionTarget(tensor.elements(), 0.02));
    EXPECT_NEAR(static_cast<double>(magnitudes.size()), k, 0.03 * k + 1);
    EXPECT_EQ(CountAbove(std::span(x).subspan(at, tensor.elements()),
                         std::nextafter(smallest_kept, 0.0f)),
              magnitudes.size());
    at = end;
  }
}

TEST(LayerWiseTopKTest, AShapeOfAnotherSizeIsRefused) {
  const std::vector<float> x = test::NormalVector(100, 1);
  const Codec& codec = test::FindCodec("threshold:selector=layer_wise");
  EncodeContext context = test::ContextFor(codec, x);
  const TensorShape wrong{1, 99};
  context.shape = std::span(&wrong, 1);
  std::vector<std::byte> out(10000);
  EXPECT_EQ(codec.Encode(x, context, out).status().code(), StatusCode::kInvalidArgument);
}

// --- Thresholds that miss ------------------------------------------------------------------------

TEST(ThresholdCodecsTest, NoneExceedsTheCapOrFavoursLowPositions) {
  // Far more pass than may be sent: the threshold must rise, not the tail be cut off. dgc's cap is
  // that of its warm-up.
  std::vector<float> x = test::NormalVector(100000, 8, 1000);
  for (const char* name : {"threshold:selector=hard", "threshold", "sidco", "sidco:fit=e",
                           "sidco:fit=gp", "sidco:fit=p", "threshold:selector=gaussian_k",
                           "threshold:selector=redsync", "dgc", "top_k"}) {
    const std::vector<uint32_t> indices = Selected(name, x, 0.01);
    EXPECT_LE(indices.size(), SelectionCap(x.size(), 0.01)) << name;
    size_t low = 0;
    for (const uint32_t i : indices) low += i < x.size() / 2;
    if (indices.size() < 100) continue;
    EXPECT_NEAR(static_cast<double>(low) / static_cast<double>(indices.size()), 0.5, 0.1) << name;
  }
}

TEST(HardThresholdTest, KeepsWhatIsAboveLambda) {
  const size_t n = 100000;
  const std::vector<float> x = test::NormalVector(n, 9, 0.01);
  const float lambda = 1 / (2 * std::sqrt(1000.0f));  // ratio 0.01: 0.0158, 1.6 sigma
  const std::vector<float> quiet = test::NormalVector(n, 9, 0.006);
  EXPECT_EQ(Selected("threshold:selector=hard", quiet, 0.01).size(), CountAbove(quiet, lambda));
  EXPECT_GT(CountAbove(x, lambda), SelectionCap(n, 0.01));
  EXPECT_NEAR(static_cast<double>(Selected("threshold:selector=hard", x, 0.01).size()), 1000, 50);
}

TEST(ThresholdTest, HoldsTheFirstThresholdAsGradientsShrink) {
  const Codec& codec = test::FindCodec("threshold");
  const size_t n = 100000;
  const std::vector<float> x = test::NormalVector(n, 4);
  EncodeContext context = test::ContextFor(codec, x, 1, 0.05);
  const auto state = codec.NewState(n, context);
  context.state = state.get();
  EXPECT_NEAR(static_cast<double>(Selected("threshold", x, context).size()), 5000, 150);
  std::vector<float> half = x;
  for (float& v : half) v *= 0.5f;
  // P(|Z| > 2 * 1.96) = 8.9e-5.
  EXPECT_LT(Selected("threshold", half, context).size(), 30u);
  EXPECT_NEAR(static_cast<double>(Selected("threshold", x, context).size()), 5000, 150);
}

TEST(GaussianKTest, NormalInputNeedsNoCorrection) {
  const size_t n = 1 << 20;
  const std::vector<float> x = test::NormalVector(n, 6, 0.3);
  for (const double ratio : {0.05, 0.001}) {
    const double k = ratio * n;
    EXPECT_NEAR(static_cast<double>(Selected("threshold:selector=gaussian_k", x, ratio).size()), k,
                0.04 * k + 4 * std::sqrt(k));
  }
}

TEST(RedsyncTest, KeepsBetweenKAndTwoK) {
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    const std::vector<float> x = test::Draw(distribution, 100003, 7);
    for (const double ratio : {0.01, 0.001}) {
      const size_t k = SelectionTarget(x.size(), ratio);
      const size_t count = Selected("threshold:selector=redsync", x, ratio).size();
      EXPECT_GE(count, k) << distribution.name;
      EXPECT_LE(count, 2 * k) << distribution.name;
    }
  }
}

// --- Values --------------------------------------------------------------------------------------

TEST(NarrowValuesTest, ErrorIsAtMostHalfAStepAndNeverMoreThanTheValue) {
  const std::vector<float> x = test::NormalVector(20000, 12, 0.01);
  const Codec& codec = test::FindCodec("top_k");
  for (const int bits : {8, 4}) {
    const EncodeContext context = test::ContextFor(codec, x, 1, 0.1, bits);
    const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
    std::vector<float> decoded(x.size(), 0.0f);
    ASSERT_TRUE(codec.DecodeAdd(encoded.payload, context, 1, decoded).ok());
    float largest = 0, smallest = 1;
    size_t kept = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (decoded[i] == 0) continue;
      ++kept;
      largest = std::max(largest, std::abs(x[i]));
      smallest = std::min(smallest, std::abs(x[i]));
    }
    ASSERT_GT(kept, 1000u);
    const float step = (largest - smallest) / (bits == 8 ? 127 : 7);
    double error = 0, energy = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (decoded[i] == 0) continue;
      const float lost = std::abs(x[i] - decoded[i]);
      ASSERT_LE(lost, 0.501f * step);
      ASSERT_LE(lost, std::abs(x[i]));
      error += static_cast<double>(lost) * lost;
      energy += static_cast<double>(x[i]) * x[i];
    }
    const CodecSetting* setting = FindSetting(codec.Traits(), {.bits = bits}, 1);
    EXPECT_NEAR(error / energy / setting->relative_error_squared, 1, 0.5) << bits;
  }
}

TEST(NarrowValuesTest, ExtremesOfScaleSurvive) {
  std::vector<float> x(1000, 0.0f);
  x[1] = 3.4e38f;
  x[2] = -3.4e38f;
  x[3] = 1.2e-38f;
  for (const int bits : {8, 4}) {
    const Codec& codec = test::FindCodec("top_k");
    const EncodeContext context = test::ContextFor(codec, x, 1, 0.5, bits);
    const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
    std::vector<float> decoded(x.size(), 0.0f);
    ASSERT_TRUE(codec.DecodeAdd(encoded.payload, context, 1, decoded).ok());
    EXPECT_NEAR(decoded[1] / x[1], 1, 1e-6);
    EXPECT_NEAR(decoded[2] / x[2], 1, 1e-6);
  }
}

TEST(NarrowValuesTest, HostileStepsAndPaddingAreRejected) {
  const std::vector<float> x = test::NormalVector(300, 2);
  const Codec& codec = test::FindCodec("top_k");
  const EncodeContext context = test::ContextFor(codec, x, 1, 0.03, 4);
  const test::Encoded good = test::EncodeOrDie(codec, x, context);
  uint32_t count = 0, index_bytes = 0;
  std::memcpy(&count, good.payload.data() + 4, 4);
  std::memcpy(&index_bytes, good.payload.data() + 8, 4);
  ASSERT_EQ(count % 2, 1u) << "needs a padded nibble";
  const size_t values_at = 12 + index_bytes;
  std::vector<float> out(x.size(), 0.0f);
  const auto code = [&](size_t at, float value) {
    std::vector<std::byte> bad = good.payload;
    std::memcpy(bad.data() + at, &value, 4);
    return codec.DecodeAdd(bad, context, 1, out).code();
  };
  EXPECT_EQ(code(values_at, -1.0f), StatusCode::kDataLoss);
  EXPECT_EQ(code(values_at, std::numeric_limits<float>::quiet_NaN()), StatusCode::kDataLoss);
  EXPECT_EQ(code(values_at + 4, -1.0f), StatusCode::kDataLoss);
  EXPECT_EQ(code(values_at + 4, 3e38f), StatusCode::kDataLoss) << "the top level is infinite";
  EXPECT_EQ(code(values_at + 4, 1.0f), StatusCode::kOk);
  std::vector<std::byte> padded = good.payload;
  padded.back() |= std::byte{0x10};
  EXPECT_EQ(codec.DecodeAdd(padded, context, 1, out).code(), StatusCode::kDataLoss);
}

TEST(AdaqTest, SendsTheMeansOfBothSigns) {
  const std::vector<float> x = test::NormalVector(50000, 14);
  const Codec& codec = test::FindCodec("adaq");
  const EncodeContext context = test::ContextFor(codec, x, 1, 0.02);
  const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
  std::vector<float> decoded(x.size(), 0.0f);
  ASSERT_TRUE(codec.DecodeAdd(encoded.payload, context, 1, decoded).ok());
  double sums[2] = {}, counts[2] = {};
  for (size_t i = 0; i < x.size(); ++i) {
    if (decoded[i] == 0) continue;
    ASSERT_EQ(std::signbit(decoded[i]), std::signbit(x[i]));
    sums[x[i] < 0] += x[i];
    ++counts[x[i] < 0];
  }
  for (size_t i = 0; i < x.size(); ++i) {
    if (decoded[i] == 0) continue;
    ASSERT_NEAR(decoded[i], sums[x[i] < 0] / counts[x[i] < 0], 1e-5);
  }
}

// --- Deep gradient compression -------------------------------------------------------------------

struct DgcRun {
  const Codec& codec = test::FindCodec("dgc");
  std::vector<float> residual, momentum;
  EncodeContext context;
  std::vector<std::byte> out;
  std::vector<uint32_t> indices;

  DgcRun(size_t n, double ratio) : residual(n, 0.0f), momentum(n, 0.0f) {
    context.params.ratio = ratio;
    context.momentum = {momentum, momentum};
    out.resize(codec.MaxEncodedBytes(n, context));
  }
  EncodeResult Step(std::span<const float> gradient) {
    const auto result = codec.EncodeWithFeedback(gradient, residual, residual, context, out);
    WEIR_CHECK(result.ok());
    WEIR_CHECK(
        codec.DecodeIndices(std::span(out).first(result->bytes), gradient.size(), &indices).ok());
    return *result;
  }
};

TEST(DgcTest, FollowsTheMomentumRecurrence) {
  const size_t n = 3001;
  DgcRun run(n, 0.02);
  std::vector<double> u(n, 0.0), v(n, 0.0);
  for (int step = 0; step < 10; ++step) {
    const std::vector<float> g = test::NormalVector(n, 70 + step);
    for (size_t i = 0; i < n; ++i) {
      u[i] = 0.9 * u[i] + g[i];
      v[i] += u[i];
    }
    const size_t bytes = run.Step(g).bytes;
    std::vector<float> sent(n, 0.0f);
    ASSERT_TRUE(run.codec.DecodeAdd(std::span(run.out).first(bytes), run.context, 1, sent).ok());
    for (const uint32_t i : run.indices) {
      ASSERT_NEAR(sent[i], v[i], 2e-3 * std::abs(v[i]));
      u[i] = 0;
      v[i] -= sent[i];  // rounding stays
    }
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(run.momentum[i], u[i], 1e-4) << "step " << step;
      ASSERT_NEAR(run.residual[i], v[i], 1e-3) << "step " << step;
    }
  }
}

TEST(DgcTest, CountsStayWithinThePublishedBounds) {
  const size_t n = 1 << 20;
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    const std::vector<float> x = test::Draw(distribution, n, 21);
    for (const double ratio : {0.01, 0.001}) {
      const double k = std::floor(ratio * n);
      const double count = static_cast<double>(Selected("dgc", x, ratio).size());
      EXPECT_GE(count, 0.7 * k) << distribution.name << " " << ratio;
      EXPECT_LE(count, 1.3 * k) << distribution.name << " " << ratio;
    }
  }
}

TEST(DgcTest, WarmsUpByStepsWhenItHasAState) {
  const size_t n = 20000;
  DgcRun run(n, 0.001);
  const auto state = run.codec.NewState(n, run.context);
  run.context.state = state.get();
  const double expected[] = {0.25, 0.063, 0.015, 0.004, 0.001};
  for (int step = 0; step < 64 * 4 + 1; ++step) {
    run.Step(test::NormalVector(n, step));
    if (step % 64 != 0) continue;
    const double k = expected[step / 64] * n;
    EXPECT_NEAR(static_cast<double>(run.indices.size()), k, 0.35 * k) << "step " << step;
  }
}

TEST(DgcTest, ANonFiniteStepDoesNotAdvanceTheWarmUp) {
  const size_t n = 20000;
  DgcRun run(n, 0.001);
  const auto state = run.codec.NewState(n, run.context);
  run.context.state = state.get();
  std::vector<float> bad = test::NormalVector(n, 1);
  bad[5] = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 70; ++step) {
    EXPECT_TRUE(run.Step(bad).non_finite);
    std::fill(run.momentum.begin(), run.momentum.end(), 0.0f);
    std::fill(run.residual.begin(), run.residual.end(), 0.0f);
  }
  run.Step(test::NormalVector(n, 2));
  EXPECT_GT(run.indices.size(), n / 6);
}

}  // namespace
}  // namespace weir
