// SPDX-License-Identifier: Apache-2.0
// Promises of the codecs, on gradients that a training run produced instead of drawn ones.

#include "tests/support/recorded_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "datapath/codec/select/selection.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

using test::ForEachSetting;
using testing::RecordedGradient;

const std::vector<RecordedGradient>& Recordings() {
  static const auto* const all =
      new std::vector<RecordedGradient>(testing::RecordedGradients(WEIR_TEST_SOURCE_DIR));
  return *all;
}

size_t Nonzero(std::span<const float> x) {
  return std::count_if(x.begin(), x.end(), [](float v) { return v != 0; });
}

TEST(RecordedGradientsTest, AreThereAndDiffer) {
  ASSERT_EQ(Recordings().size(), 6u);
  size_t mostly_zero = 0;
  for (const RecordedGradient& each : Recordings()) {
    EXPECT_EQ(each.values.size(), 65536u) << each.name;
    EXPECT_GT(test::SquaredNorm(each.values), 0) << each.name;
    mostly_zero += Nonzero(each.values) < each.values.size() / 2;
  }
  EXPECT_EQ(mostly_zero, 2u) << "two embedding slices";
}

TEST(RecordedGradientsTest, HistogramThresholdKeepsWhatTheRatioAsksFor) {
  for (const RecordedGradient& each : Recordings()) {
    GradientStatistics statistics;
    statistics.Add(each.values);
    for (const double ratio : {0.1, 0.01, 0.001}) {
      const double wanted =
          std::min(ratio * each.values.size(), static_cast<double>(Nonzero(each.values)));
      const float threshold = statistics.ThresholdForRatio(ratio);
      const auto kept = std::count_if(each.values.begin(), each.values.end(),
                                      [&](float v) { return std::abs(v) > threshold; });
      // The tolerance is two elements, because a bin of the far tail holds so few that rounding
      // matters.
      EXPECT_NEAR(kept, wanted, std::max(2.0, 0.02 * wanted)) << each.name << " ratio " << ratio;
    }
  }
}

TEST(RecordedGradientsTest, GainCurveIsExactToAThousandth) {
  for (const RecordedGradient& each : Recordings()) {
    GradientStatistics statistics;
    statistics.Add(each.values);
    std::vector<double> squares;
    for (const float v : each.values) squares.push_back(static_cast<double>(v) * v);
    std::sort(squares.begin(), squares.end(), std::greater<>());
    const double total = test::SquaredNorm(each.values);
    const auto curve = statistics.GainCurve();
    for (size_t i = 0; i < curve.size(); ++i) {
      const double kept = kGainCurveRatios[i] * static_cast<double>(squares.size());
      const auto whole = static_cast<size_t>(kept);
      double energy = 0;
      for (size_t j = 0; j < whole; ++j) energy += squares[j];
      if (whole < squares.size()) energy += (kept - static_cast<double>(whole)) * squares[whole];
      // Half of the element at the limit may count: of 65 kept ones it alone can hold more than a
      // thousandth.
      const double limit = squares[std::min(whole, squares.size() - 1)] / total;
      EXPECT_NEAR(curve[i], energy / total, std::max(1e-3, limit / 2))
          << each.name << " ratio " << kGainCurveRatios[i];
    }
  }
}

/// The tolerance that a codec declares, as a fraction of the wanted count, and at least a tenth.
double CountTolerance(const CodecTraits& traits) { return std::max(0.1, traits.count_tolerance); }

/// The number of elements that a payload delivers.
size_t KeptCount(const Codec& codec, std::span<const std::byte> payload,
                 const EncodeContext& context, std::span<const float> x) {
  std::vector<uint32_t> indices;
  if (codec.DecodeIndices(payload, x.size(), &indices).ok()) return indices.size();
  const auto decoded = test::DecodeFor(codec, payload, context, x);
  WEIR_CHECK(decoded.ok());
  return Nonzero(*decoded);
}

TEST(RecordedGradientsTest, SelectorsKeepTheirTargetCount) {
  ForEachSetting([](const Codec& codec, int bits) {
    const CodecTraits& traits = codec.Traits();
    if (traits.error_model != ErrorModel::kSelection || !traits.uses_ratio) return;
    if (traits.kept_block > 1) return;  // which of the elements of a block count is another matter
    for (const RecordedGradient& each : Recordings()) {
      for (const double ratio : {0.1, 0.01, 0.001}) {
        if (ratio < traits.ratio_min || ratio > traits.ratio_max) continue;
        const size_t n = each.values.size();
        const double wanted = std::min<double>(static_cast<double>(SelectionTarget(n, ratio)),
                                               static_cast<double>(Nonzero(each.values)));
        ASSERT_GE(wanted, 50);
        const EncodeContext context = test::ContextFor(codec, each.values, 1, ratio, bits);
        const auto encoded = test::EncodeOrDie(codec, each.values, context);
        const size_t kept = KeptCount(codec, encoded.payload, context, each.values);
        EXPECT_NEAR(kept, wanted, CountTolerance(traits) * wanted)
            << each.name << " ratio " << ratio;
      }
    }
  });
}

TEST(RecordedGradientsTest, SelectorsHoldTheirTargetOverSteps) {
  // With state and feedback: the mean count. The recording's scales times fresh normal noise, as
  // batches differ from step to step.
  ForEachSetting([](const Codec& codec, int bits) {
    const CodecTraits& traits = codec.Traits();
    if (traits.error_model != ErrorModel::kSelection || !traits.uses_ratio) return;
    if (traits.needs_momentum) return;  // those may start with more than they are asked for
    if (traits.kept_block > 1) return;  // which of the elements of a block count is another matter
    const RecordedGradient& last = Recordings().back();
    const size_t n = last.values.size();
    const double wanted = static_cast<double>(SelectionTarget(n, 0.01));
    EncodeContext context = test::ContextFor(codec, last.values, 1, 0.01, bits);
    const auto state = codec.NewState(n, context);
    context.state = state.get();
    Random random(7);
    std::vector<float> g(n), residual(n), e(n);
    std::vector<std::byte> payload;
    double kept = 0;
    constexpr int kSteps = 48, kCounted = 24;
    for (int step = 0; step < kSteps; ++step) {
      context.seed = step;
      for (size_t i = 0; i < n; ++i) {
        g[i] = last.values[i] * static_cast<float>(random.Normal());
        e[i] = g[i] + residual[i];
      }
      test::FeedbackOrDie(codec, g, residual, residual, context, &payload);
      if (step >= kSteps - kCounted) kept += KeptCount(codec, payload, context, e);
      if (!HoldsIndicesOnly(traits.form)) continue;
      std::vector<uint32_t> indices;
      ASSERT_TRUE(codec.DecodeIndices(payload, n, &indices).ok());
      for (const uint32_t i : indices) residual[i] = 0;
    }
    EXPECT_NEAR(kept / kCounted, wanted, CountTolerance(traits) * wanted);
  });
}

TEST(RecordedGradientsTest, FeedbackLosesNothing) {
  const std::vector<TensorShape> matrix = {{256, 256}};
  ForEachSetting([&](const Codec& codec, int bits) {
    const bool shared = HoldsIndicesOnly(codec.Traits().form);
    for (const RecordedGradient& each : Recordings()) {
      const std::vector<float>& g = each.values;
      // A residual as large as the gradient, from another place.
      std::vector<float> residual(g.rbegin(), g.rend()), rest(g.size()), e(g.size());
      for (size_t i = 0; i < g.size(); ++i) e[i] = g[i] + residual[i];
      const double largest = MaxAbs(e, {});
      for (const bool shaped : {false, true}) {
        EncodeContext context = test::ContextFor(codec, e, 1, 0.01, bits);
        if (shaped) context.shape = matrix;
        std::vector<std::byte> payload;
        const EncodeResult result =
            test::FeedbackOrDie(codec, g, residual, rest, context, &payload);
        ASSERT_FALSE(result.non_finite);
        const auto decoded = test::DecodeFor(codec, payload, context, e);
        ASSERT_TRUE(decoded.ok()) << ToString(decoded.status());
        double worst = 0;
        for (size_t i = 0; i < e.size(); ++i) {
          const double sent = shared ? 0 : (*decoded)[i];
          worst = std::max(worst, std::abs(sent + rest[i] - e[i]));
        }
        EXPECT_LE(worst, 1e-6 * largest) << each.name << (shaped ? " as a matrix" : "");
      }
    }
  });
}

}  // namespace
}  // namespace weir
