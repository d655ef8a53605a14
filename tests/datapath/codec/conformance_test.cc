// SPDX-License-Identifier: Apache-2.0
// Requirements on every codec of the registry, checked for all of them: listing a new codec is
// enough to cover it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/codec/codec.h"
#include "tests/datapath/codec/codec_test_support.h"
#include "tests/datapath/codec/conformance.h"

namespace weir {
namespace {

using test::CodecConformanceTest;
using test::DecodeFor;
using test::Encoded;
using test::EncodeOrDie;

const std::vector<size_t> kSizes = {0, 1, 2, 3, 15, 16, 17, 127, 128, 129, 997, 4096, 4099, 65537};

/// For codecs that declare how their error grows.
class CodecErrorModelTest : public CodecConformanceTest {};

/// For codecs whose payloads are decoded one by one.
class CodecSumTest : public CodecConformanceTest {};

TEST_P(CodecConformanceTest, TraitsAreComplete) {
  const CodecTraits& traits = codec().Traits();
  EXPECT_EQ(traits.name, GetParam().name);
  EXPECT_FALSE(traits.summary.empty());
  EXPECT_GT(Codecs().WireId(traits.name), 0);
  ASSERT_FALSE(traits.settings.empty());
  for (const CodecSetting& each : traits.settings) {
    EXPECT_GT(each.fixed_bits + each.kept_bits + (traits.indices_coded ? 1 : 0), 0);
    EXPECT_GE(each.world_min, 1);
    if (traits.error_model == ErrorModel::kMaxScaled) {
      EXPECT_GT(each.levels, 0);
    }
  }
  const EncodeContext context = ContextFor(codec(), {});
  EXPECT_EQ(traits.form == PayloadForm::kLanes, codec().LaneBytes(context) > 0);
  EXPECT_GE(traits.rounds, 1);
  EXPECT_LE(traits.rounds, 6);  // numbered within an operation by three bits
  EXPECT_TRUE(traits.rounds == 1 || traits.form == PayloadForm::kLanes);
  EXPECT_EQ(traits.lossy, traits.error_model != ErrorModel::kExact);
  EXPECT_TRUE(traits.error_model != ErrorModel::kUnknown || traits.opt_in);
  EXPECT_TRUE(traits.sum_error_squared == 0 || traits.form == PayloadForm::kLanes);
  if (traits.uses_ratio) {
    EXPECT_GT(traits.ratio_min, 0);
    EXPECT_LE(traits.ratio_max, 1);
  }
}

TEST_P(CodecConformanceTest, LossIsReportedExactly) {
  for (const size_t n : kSizes) {
    const std::vector<float> x = test::NormalVector(n, 1 + n, 0.01);
    const EncodeContext context = ContextFor(codec(), x);
    const Encoded encoded = EncodeOrDie(codec(), x, context);
    const auto decoded = DecodeFor(codec(), encoded.payload, context, x);
    ASSERT_TRUE(decoded.ok()) << n << ": " << ToString(decoded.status());
    std::vector<float> error(n);
    for (size_t i = 0; i < n; ++i) error[i] = x[i] - (*decoded)[i];
    const double energy = test::SquaredNorm(x), lost = test::SquaredNorm(error);
    EXPECT_FALSE(encoded.result.non_finite);
    EXPECT_NEAR(encoded.result.energy_in, energy, 1e-9 * energy) << n;
    EXPECT_NEAR(encoded.result.energy_lost, lost, 1e-6 * std::max(energy, lost)) << n;
    if (!codec().Traits().lossy) {
      EXPECT_EQ(lost, 0) << n;
    }
  }
}

TEST_P(CodecErrorModelTest, LossFollowsTheDeclaredModel) {
  const size_t n = 200000;
  const std::vector<float> x = test::NormalVector(n, 5, 0.01);
  GradientStatistics statistics;
  statistics.Add(x);
  for (const int world : {1, 4}) {
    if (!Allows(world)) continue;
    const EncodeContext context = ContextFor(codec(), x, world, 0.05);
    const EncodeResult result = EncodeOrDie(codec(), x, context).result;
    const double loss = result.energy_lost / result.energy_in;
    const CodecTraits& traits = codec().Traits();
    double expected = 0;
    switch (traits.error_model) {
      case ErrorModel::kExact:
        break;
      case ErrorModel::kSelection:
        expected = 1 - statistics.GainAtRatio(0.05) * (1 - setting(world).relative_error_squared);
        break;
      case ErrorModel::kUniformSelection:
        expected = 0.95;
        break;
      case ErrorModel::kRelative:
        expected = setting(world).relative_error_squared;
        break;
      case ErrorModel::kMaxScaled: {
        const double levels = setting(world).levels / (traits.levels_divided_by_world ? world : 1);
        const double rms = std::sqrt(result.energy_in / n);
        const double peak =
            traits.peak_over_rms > 0 ? traits.peak_over_rms : statistics.max_abs() / rms;
        const double step = peak / std::floor(levels);
        expected = step * step / traits.error_divisor;
        break;
      }
      case ErrorModel::kUnknown:
        break;
    }
    // Where a distribution lies between two powers of two moves a relative error by some 20 %.
    const double tolerance = traits.error_model == ErrorModel::kRelative ? 0.25 : 0.15;
    // With one level left, elements lie far from the even spread that the model assumes.
    if (traits.error_model == ErrorModel::kMaxScaled && OneLevel(world)) {
      EXPECT_GT(loss, 0.5 * expected) << "world " << world;
      EXPECT_LT(loss, expected) << "world " << world;
      continue;
    }
    double least = expected, most = expected;
    if (traits.error_model == ErrorModel::kSelection && traits.count_tolerance > 0) {
      const double kept = 1 - setting(world).relative_error_squared, t = traits.count_tolerance;
      least = 1 - statistics.GainAtRatio(0.05 * (1 + t)) * kept;
      most = 1 - statistics.GainAtRatio(std::max(1e-6, 0.05 * (1 - t))) * kept;
    }
    EXPECT_GE(loss, least - tolerance * expected) << "world " << world;
    EXPECT_LE(loss, most + tolerance * expected) << "world " << world;
  }
}

TEST_P(CodecErrorModelTest, PayloadBitsFollowTheTraits) {
  const size_t n = 200000;
  const std::vector<float> x = test::NormalVector(n, 6);
  const CodecTraits& traits = codec().Traits();
  for (const double ratio : {0.3, 0.05, 0.01, 0.001}) {
    const EncodeContext context = ContextFor(codec(), x, 1, ratio);
    const size_t bytes = EncodeOrDie(codec(), x, context).payload.size();
    if (traits.size_in_steps) {
      EXPECT_EQ(bytes, codec().MaxEncodedBytes(n, context));
      if (ratio < 0.3) continue;  // few steps
    }
    const double bits = 8.0 * static_cast<double>(bytes) / n;
    double r = context.params.ratio;
    if (traits.kept_block > 1) {  // whole blocks, at least one
      const double blocks = std::ceil(static_cast<double>(n) / traits.kept_block);
      r = std::max(1.0, std::floor(r * blocks)) * traits.kept_block / n;
    }
    // Values of a shared selection travel beside the payload.
    const bool values_inside = !HoldsIndicesOnly(traits.form);
    const CodecSetting& costs = setting(1);
    double expected = costs.fixed_bits + (values_inside ? r * costs.kept_bits : 0);
    if (traits.indices_coded) expected += -r * std::log2(r) - (1 - r) * std::log2(1 - r);
    const double header_bits = 8.0 * 24 / n;
    EXPECT_NEAR(bits, expected, (0.06 + traits.count_tolerance) * expected + header_bits)
        << "ratio " << ratio;
  }
}

TEST_P(CodecConformanceTest, NeverExceedsMaxEncodedBytes) {
  // EncodeOrDie gives exactly this much room; ASan detects writes beyond it.
  for (const size_t n : kSizes) {
    std::vector<std::vector<float>> inputs = {test::NormalVector(n, 3), std::vector<float>(n, 0.0f),
                                              std::vector<float>(n, -1.5f)};
    inputs.push_back(test::NormalVector(n, 4, 1e-30));
    std::vector<float> wide = test::NormalVector(n, 9);
    for (size_t i = 0; i < n; ++i)
      wide[i] *= static_cast<float>(std::pow(10.0, -36.0 + 72.0 * i / n));
    inputs.push_back(wide);
    for (const double ratio : {1.0, 0.6, 0.1, 0.001}) {
      for (const auto& x : inputs) {
        const EncodeContext context = ContextFor(codec(), x, 1, ratio);
        const Encoded encoded = EncodeOrDie(codec(), x, context);
        EXPECT_TRUE(DecodeFor(codec(), encoded.payload, context, x).ok());
      }
    }
  }
}

TEST_P(CodecConformanceTest, TooLittleRoomIsAnErrorNotAnOverrun) {
  const std::vector<float> x = test::NormalVector(1000, 3);
  const EncodeContext context = ContextFor(codec(), x);
  std::vector<std::byte> out(codec().MaxEncodedBytes(x.size(), context) - 1);
  EXPECT_EQ(codec().Encode(x, context, out).status().code(), StatusCode::kInternal);
}

TEST_P(CodecConformanceTest, SameInputGivesSameBytes) {
  const std::vector<float> x = test::NormalVector(10007, 8);
  const EncodeContext context = ContextFor(codec(), x, Allows(3) ? 3 : 1);
  EXPECT_EQ(EncodeOrDie(codec(), x, context).payload, EncodeOrDie(codec(), x, context).payload);
}

TEST_P(CodecConformanceTest, EncodeLeavesTheInputAlone) {
  const std::vector<float> x = test::NormalVector(5003, 8), copy = x;
  EncodeOrDie(codec(), x, ContextFor(codec(), x));
  EXPECT_EQ(x, copy);
}

TEST_P(CodecConformanceTest, RejectsParametersOutsideItsTraits) {
  const CodecTraits& traits = codec().Traits();
  EXPECT_TRUE(codec().Validate({}, 1).ok());
  EXPECT_FALSE(codec().Validate({}, 0).ok());
  EXPECT_FALSE(codec().Validate({.bits = 31}, 1).ok());
  EXPECT_FALSE(codec().Validate({.bits = -1}, 1).ok());
  int world_max = 0;
  for (const CodecSetting& each : traits.settings) {
    world_max = each.world_max == 0 ? INT32_MAX : std::max(world_max, each.world_max);
  }
  if (world_max < INT32_MAX) {
    EXPECT_FALSE(codec().Validate({}, world_max + 1).ok());
  }
  if (!traits.uses_ratio) return;
  const std::vector<float> x(10, 1.0f);
  for (const double ratio : {0.0, -0.1, 1.1, std::nan("")}) {
    EXPECT_EQ(codec().Validate({.ratio = ratio}, 1).code(), StatusCode::kInvalidArgument);
    EncodeContext context;
    context.params.ratio = ratio;
    std::vector<std::byte> out(1000);
    EXPECT_EQ(codec().Encode(x, context, out).status().code(), StatusCode::kInvalidArgument);
  }
}

// --- Error feedback ------------------------------------------------------------------------------

/// payload + residual must be gradient + residual before, up to `tolerance` of the largest input.
void CheckFeedback(const Codec& codec, int bits, size_t n, bool in_place, bool with_state) {
  const std::vector<float> g = test::NormalVector(n, 11, 0.01),
                           r0 = test::NormalVector(n, 12, 0.02);
  std::vector<float> e(n);
  for (size_t i = 0; i < n; ++i) e[i] = g[i] + r0[i];
  // A vote can only be decoded alone if there is no other vote.
  const bool pair =
      !codec.Traits().lanes_are_votes && FindSetting(codec.Traits(), {.bits = bits}, 2) != nullptr;
  EncodeContext context = test::ContextFor(codec, e, pair ? 2 : 1, 0.1, bits);
  const std::unique_ptr<CodecState> state = codec.NewState(n, context);
  if (with_state) context.state = state.get();
  const double rms = n == 0 ? 0 : std::sqrt(test::SquaredNorm(e) / static_cast<double>(n));
  for (int step = 0; step < (with_state ? 3 : 1); ++step) {
    std::vector<float> residual = r0, separate(n, 7.0f);
    std::vector<float>& target = in_place ? residual : separate;
    std::vector<std::byte> out;
    const EncodeResult result = test::FeedbackOrDie(codec, g, residual, target, context, &out);
    const auto decoded = DecodeFor(codec, out, context, e);
    ASSERT_TRUE(decoded.ok()) << ToString(decoded.status());
    const bool keeps = HoldsIndicesOnly(codec.Traits().form);
    double lost = 0;
    for (size_t i = 0; i < n; ++i) {
      const float sent = keeps ? 0.0f : (*decoded)[i];
      // The sent value may be larger than e and round more coarsely.
      ASSERT_NEAR(sent + target[i], e[i], 1e-7 * (std::abs(e[i]) + std::abs(sent)) + 1e-6 * rms)
          << i << " step " << step;
      const double left = keeps ? e[i] - (*decoded)[i] : target[i];
      lost += left * left;
    }
    const double energy = test::SquaredNorm(e);
    EXPECT_NEAR(result.energy_in, energy, 1e-9 * energy);
    EXPECT_NEAR(result.energy_lost, lost, 1e-6 * std::max(energy, lost));
  }
}

TEST_P(CodecConformanceTest, FeedbackLosesNothing) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{17}, size_t{4099}, size_t{70001}}) {
    for (const bool in_place : {false, true}) {
      for (const bool with_state : {false, true})
        CheckFeedback(codec(), GetParam().bits, n, in_place, with_state);
    }
  }
}

TEST_P(CodecConformanceTest, FeedbackEncodesTheSum) {
  // Stateless: the fused pass must give what Encode gives for the sum.
  const size_t n = 9001;
  const std::vector<float> g = test::NormalVector(n, 21), r = test::NormalVector(n, 22);
  std::vector<float> e(n), rest(n);
  for (size_t i = 0; i < n; ++i) e[i] = g[i] + r[i];
  const EncodeContext context = ContextFor(codec(), e, Allows(2) ? 2 : 1);
  std::vector<std::byte> out;
  test::FeedbackOrDie(codec(), g, r, rest, context, &out);
  EXPECT_EQ(out, EncodeOrDie(codec(), e, context).payload);
}

TEST_P(CodecConformanceTest, FeedbackDeliversEverythingInTheLongRun) {
  // The same gradient step after step: the mean of what was delivered approaches it.
  if (codec().Traits().needs_momentum && !codec().Traits().needs_error_feedback) {
    GTEST_SKIP() << "sends a moving sum and keeps no account of the gradient";
  }
  const size_t n = 2000;
  const int steps = 200;
  const std::vector<float> g = test::NormalVector(n, 31);
  std::vector<float> residual(n, 0.0f), delivered(n, 0.0f), e(n);
  EncodeContext context = ContextFor(codec(), g, 1, 0.1);
  const std::unique_ptr<CodecState> state = codec().NewState(n, context);
  context.state = state.get();
  std::vector<std::byte> out;
  for (int step = 0; step < steps; ++step) {
    context.seed = step;
    for (size_t i = 0; i < n; ++i) e[i] = g[i] + residual[i];
    context.shared_max = codec().LocalMax(g, residual, context);
    const EncodeResult result = test::FeedbackOrDie(codec(), g, residual, residual, context, &out);
    if (step == 0 && result.energy_lost >= result.energy_in) {
      GTEST_SKIP() << "no contraction: residuals may grow";
    }
    const auto decoded = DecodeFor(codec(), out, context, e);
    ASSERT_TRUE(decoded.ok());
    for (size_t i = 0; i < n; ++i) delivered[i] += (*decoded)[i];
    if (HoldsIndicesOnly(codec().Traits().form)) {
      for (size_t i = 0; i < n; ++i) residual[i] -= (*decoded)[i];
    }
  }
  double error = 0;
  for (size_t i = 0; i < n; ++i) error += std::pow(delivered[i] / steps - g[i], 2);
  EXPECT_LT(error / test::SquaredNorm(g), 0.02);
}

// --- NaN and infinity
// ------------------------------------------------------------------------------

TEST_P(CodecConformanceTest, NonFiniteInputGivesAnAllZeroPayload) {
  for (const size_t n : {size_t{1}, size_t{100}, size_t{5000}, size_t{70001}}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const size_t at : {size_t{0}, n / 2, n - 1}) {
        std::vector<float> x = test::NormalVector(n, 41);
        EncodeContext context = ContextFor(codec(), x);
        x[at] = bad;
        const Encoded encoded = EncodeOrDie(codec(), x, context);
        EXPECT_TRUE(encoded.result.non_finite) << n << " at " << at;
        const auto decoded = DecodeFor(codec(), encoded.payload, context, x);
        ASSERT_TRUE(decoded.ok());
        if (!codec().Traits().lanes_are_votes) {
          EXPECT_EQ(test::SquaredNorm(*decoded), 0);
        }
        EXPECT_TRUE(std::all_of(encoded.payload.begin(), encoded.payload.end(),
                                [](std::byte b) { return b == std::byte{0}; }) ||
                    codec().Traits().form != PayloadForm::kLanes);
      }
    }
  }
}

TEST_P(CodecConformanceTest, NonFiniteStepLeavesTheStateAsItWas) {
  // A codec that keeps no state in `context` must not keep one elsewhere either.
  const size_t n = 5000;
  const std::vector<float> g = test::NormalVector(n, 42), zero(n, 0.0f);
  EncodeContext context = ContextFor(codec(), g);
  const auto plain = codec().NewState(n, context), hit = codec().NewState(n, context);
  std::vector<std::byte> a, b, ignored;
  std::vector<float> rest(n);
  std::vector<float> bad = g;
  bad[n / 3] = std::numeric_limits<float>::infinity();
  EncodeContext other = context;
  context.state = plain.get();
  other.state = hit.get();
  for (int step = 0; step < 3; ++step) {
    test::FeedbackOrDie(codec(), g, zero, rest, context, &a);
    test::FeedbackOrDie(codec(), g, zero, rest, other, &b);
    EXPECT_TRUE(test::FeedbackOrDie(codec(), bad, zero, rest, other, &ignored).non_finite);
    test::FeedbackOrDie(codec(), g, zero, rest, context, &a);
    test::FeedbackOrDie(codec(), g, zero, rest, other, &b);
    ASSERT_EQ(a, b) << "step " << step;
  }
}

// --- Sums of payloads

// The sum must equal, bit for bit, that of DecodeAdd calls in order. It comes in parts that cover
// the sum once and are final when they are reported, except for later changes by the caller. Sizes
// are around those of the pieces in which selections are decoded; the last one is written past the
// caches, to memory that is only aligned to floats.
TEST_P(CodecSumTest, PayloadsAreSummedInTheOrderOfRanks) {
  constexpr int kWorld = 3;
  ASSERT_TRUE(Allows(kWorld));
  for (const size_t n : {size_t{1}, size_t{600}, size_t{8192}, size_t{100001}, size_t{550001}}) {
    std::vector<std::vector<float>> inputs;
    std::vector<float> largest(n, 0.0f);
    for (int rank = 0; rank < kWorld; ++rank) {
      inputs.push_back(test::NormalVector(n, 90 + rank));
      for (size_t i = 0; i < n; ++i) {
        largest[i] = std::max(largest[i], std::fabs(inputs.back()[i]));
      }
    }
    const EncodeContext context = ContextFor(codec(), largest, kWorld);
    std::vector<std::vector<std::byte>> payloads;
    std::vector<float> expected(n, 0.0f);
    EncodeContext sender = context;
    for (sender.rank = 0; sender.rank < kWorld; ++sender.rank) {
      payloads.push_back(EncodeOrDie(codec(), inputs[sender.rank], sender).payload);
      ASSERT_TRUE(codec().DecodeAdd(payloads.back(), sender, 0.25f, expected).ok());
    }
    codec().Finish(context, 0.25f, expected);

    std::vector<float> room(n + 1, std::numeric_limits<float>::quiet_NaN()), told;
    const std::span<float> sum = std::span(room).subspan(1);
    const Status status =
        codec().DecodeSum(payloads, context, 0.25f, sum, [&](std::span<float> part) {
          told.insert(told.end(), part.begin(), part.end());
          for (float& x : part) x = -x;
        });
    ASSERT_TRUE(status.ok()) << n << ": " << ToString(status);
    ASSERT_EQ(told.size(), n);
    EXPECT_EQ(std::memcmp(told.data(), expected.data(), n * sizeof(float)), 0) << n;
    for (float& x : expected) x = -x;
    EXPECT_EQ(std::memcmp(sum.data(), expected.data(), n * sizeof(float)), 0) << n;
    EXPECT_TRUE(std::isnan(room.front())) << n;

    payloads[1].pop_back();
    const Status cut = codec().DecodeSum(payloads, context, 0.25f, sum, [](std::span<float>) {});
    EXPECT_EQ(cut.code(), StatusCode::kDataLoss) << n;
    EXPECT_NE(Message(cut).find("payload of rank 1"), std::string::npos) << Message(cut);
  }
}

// --- Statistics
// --------------------------------------------------------------------------------------

TEST_P(CodecConformanceTest, StatisticsDescribeGradientPlusResidual) {
  for (const size_t n : {size_t{1000}, size_t{300000}}) {
    const std::vector<float> g = test::NormalVector(n, 51), r = test::NormalVector(n, 52);
    std::vector<float> e(n), rest(n);
    for (size_t i = 0; i < n; ++i) e[i] = g[i] + r[i];
    GradientStatistics reference, seen;
    reference.Add(e);
    EncodeContext context = ContextFor(codec(), e);
    const auto state = codec().NewState(n, context);
    context.state = state.get();
    context.statistics = &seen;
    std::vector<std::byte> out;
    for (int step = 0; step < 2; ++step) {  // the second is the warm pass of a stateful codec
      test::FeedbackOrDie(codec(), g, r, rest, context, &out);
      EXPECT_EQ(seen.count(), n);
      EXPECT_EQ(seen.max_abs(), reference.max_abs());
      EXPECT_NEAR(seen.sum_squares(), reference.sum_squares(), 1e-9 * reference.sum_squares());
      EXPECT_NEAR(seen.GainAtRatio(0.1), reference.GainAtRatio(0.1), 0.02);
      EXPECT_NEAR(seen.ThresholdForRatio(0.1) / reference.ThresholdForRatio(0.1), 1, 0.02);
    }
  }
}

// --- Hostile payloads
// ------------------------------------------------------------------------------------

/// Any result is right, except a crash or a wrong error code.
void DecodeAnything(const Codec& codec, std::span<const std::byte> payload,
                    const EncodeContext& context, size_t n) {
  // The copy on the heap has the exact size, so that ASan detects reads past its end.
  const std::vector<std::byte> exact(payload.begin(), payload.end());
  std::vector<float> out(n, 0.0f);
  const Status status = codec.DecodeAdd(exact, context, 1.0f, out);
  if (HoldsIndicesOnly(codec.Traits().form)) {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  } else if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << ToString(status);
    EXPECT_NE(Message(status).find("offset"), std::string::npos) << Message(status);
  }
  if (codec.Traits().form == PayloadForm::kOpaque) {
    const std::vector<std::vector<std::byte>> both = {exact, exact};
    EXPECT_EQ(codec.DecodeSum(both, context, 1.0f, out, [](std::span<float>) {}).code(),
              status.code());
  }
  std::vector<uint32_t> indices;
  const Status selected = codec.DecodeIndices(exact, n, &indices);
  if (selected.ok()) {
    EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end(), std::less_equal<>()) ||
                indices.size() < 2);
    EXPECT_TRUE(indices.empty() || indices.back() < n);
  }
}

TEST_P(CodecConformanceTest, TruncatedPayloadsAreRejected) {
  for (const double ratio : {0.1, 0.7}) {  // both index codings
    const std::vector<float> x = test::NormalVector(600, 81);
    const EncodeContext context = ContextFor(codec(), x, 1, ratio);
    const Encoded encoded = EncodeOrDie(codec(), x, context);
    for (size_t size = 0; size < encoded.payload.size(); ++size) {
      const auto cut = std::span(encoded.payload).first(size);
      EXPECT_FALSE(DecodeFor(codec(), cut, context, x).ok()) << size;
      DecodeAnything(codec(), cut, context, x.size());
    }
    std::vector<std::byte> longer = encoded.payload;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(DecodeFor(codec(), longer, context, x).ok());
  }
}

TEST_P(CodecConformanceTest, FlippedBitsNeverCrash) {
  for (const double ratio : {0.1, 0.7}) {
    const std::vector<float> x = test::NormalVector(300, 82);
    const EncodeContext context = ContextFor(codec(), x, 1, ratio);
    Encoded encoded = EncodeOrDie(codec(), x, context);
    for (size_t bit = 0; bit < encoded.payload.size() * 8; ++bit) {
      const auto mask = static_cast<std::byte>(1u << (bit % 8));
      encoded.payload[bit / 8] ^= mask;
      DecodeAnything(codec(), encoded.payload, context, x.size());
      encoded.payload[bit / 8] ^= mask;
    }
  }
}

TEST_P(CodecConformanceTest, MutatedPayloadsNeverCrash) {
  // This test is bounded and deterministic; tests/fuzz goes further where there is a fuzzer.
  Random random(83);
  for (int round = 0; round < 3000; ++round) {
    const size_t n = random.Below(400);
    const double ratio = 0.01 + 0.99 * random.Uniform();
    const std::vector<float> x = test::NormalVector(n, random.Next());
    const EncodeContext context = ContextFor(codec(), x, 1, ratio);
    std::vector<std::byte> payload = EncodeOrDie(codec(), x, context).payload;
    const uint64_t mutations = 1 + random.Below(6);
    for (uint64_t m = 0; m < mutations; ++m) {
      switch (random.Below(4)) {
        case 0:
          if (!payload.empty()) payload[random.Below(payload.size())] = std::byte(random.Next());
          break;
        case 1:
          payload.resize(random.Below(payload.size() + 16));
          break;
        case 2:  // the header is where lies pay
          if (payload.size() >= 12) payload[random.Below(12)] = std::byte(random.Next());
          break;
        case 3:
          if (!payload.empty()) payload.erase(payload.begin() + random.Below(payload.size()));
          break;
      }
    }
    DecodeAnything(codec(), payload, context, random.Below(2) == 0 ? n : random.Below(1000));
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecConformanceTest,
                         testing::ValuesIn(test::CasesOf([](const CodecTraits&) { return true; })),
                         test::kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Registry, CodecSumTest, testing::ValuesIn(test::CasesOf([](const auto& t) {
                           return t.form == PayloadForm::kOpaque;
                         })),
                         test::kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Registry, CodecErrorModelTest,
                         testing::ValuesIn(test::CasesOf([](const CodecTraits& traits) {
                           return traits.error_model != ErrorModel::kUnknown;
                         })),
                         test::kNameOfCase);

}  // namespace
}  // namespace weir
