// What every codec of the registry must do, checked for all of them: a new codec is covered by
// being listed.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "datapath/codec/codec.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

using test::ContextFor;
using test::DecodeFor;
using test::Encoded;
using test::EncodeOrDie;

const std::vector<size_t> kSizes = {0, 1, 2, 3, 15, 16, 17, 127, 128, 129, 997, 4096, 4099, 65537};

class CodecConformanceTest : public testing::TestWithParam<std::string> {
 protected:
  const Codec& codec() const { return test::FindCodec(GetParam()); }
};

TEST_P(CodecConformanceTest, TraitsAreComplete) {
  const CodecTraits& traits = codec().Traits();
  EXPECT_EQ(traits.name, GetParam());
  EXPECT_FALSE(traits.summary.empty());
  EXPECT_GT(Codecs().WireId(traits.name), 0);
  EXPECT_GT(traits.fixed_bits + traits.kept_bits, 0);
  EXPECT_EQ(traits.form == PayloadForm::kLanes, codec().LaneBytes() > 0);
  EXPECT_EQ(traits.lossy, traits.error_model != ErrorModel::kExact);
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
    EXPECT_NEAR(encoded.result.energy_lost, lost, 1e-9 * energy) << n;
    if (!codec().Traits().lossy) {
      EXPECT_EQ(lost, 0) << n;
    }
  }
}

TEST_P(CodecConformanceTest, LossFollowsTheDeclaredModel) {
  const size_t n = 200000;
  const std::vector<float> x = test::NormalVector(n, 5, 0.01);
  GradientStatistics statistics;
  statistics.Add(x);
  for (const int world : {1, 4}) {
    const EncodeContext context = ContextFor(codec(), x, world, 0.05);
    const EncodeResult result = EncodeOrDie(codec(), x, context).result;
    const double loss = result.energy_lost / result.energy_in;
    const CodecTraits& traits = codec().Traits();
    double expected = 0;
    switch (traits.error_model) {
      case ErrorModel::kExact:
        break;
      case ErrorModel::kSelection:
        expected = 1 - statistics.GainAtRatio(0.05);
        break;
      case ErrorModel::kUniformSelection:
        expected = 0.95;
        break;
      case ErrorModel::kRelative:
        expected = traits.relative_error_squared;
        break;
      case ErrorModel::kMaxScaled: {
        const double levels = traits.levels / (traits.levels_divided_by_world ? world : 1);
        const double step = context.shared_max_abs / std::floor(levels);
        expected = static_cast<double>(n) * step * step / traits.error_divisor / result.energy_in;
      }
    }
    // Where a distribution lies between two powers of two moves a relative error by some 20 %.
    const double tolerance = traits.error_model == ErrorModel::kRelative ? 0.25 : 0.15;
    EXPECT_NEAR(loss, expected, tolerance * expected) << "world " << world;
  }
}

TEST_P(CodecConformanceTest, PayloadBitsFollowTheTraits) {
  const size_t n = 200000;
  const std::vector<float> x = test::NormalVector(n, 6);
  const CodecTraits& traits = codec().Traits();
  for (const double ratio : {0.3, 0.05, 0.01, 0.001}) {
    const EncodeContext context = ContextFor(codec(), x, 1, ratio);
    const double bits = 8.0 * EncodeOrDie(codec(), x, context).payload.size() / n;
    const double r = context.params.ratio;
    // Values of a shared selection travel beside the payload.
    const bool values_inside = traits.form != PayloadForm::kSharedIndex;
    double expected = traits.fixed_bits + (values_inside ? r * traits.kept_bits : 0);
    if (traits.indices_coded) expected += -r * std::log2(r) - (1 - r) * std::log2(1 - r);
    EXPECT_NEAR(bits, expected, 0.06 * expected) << "ratio " << ratio;
  }
}

TEST_P(CodecConformanceTest, NeverExceedsMaxEncodedBytes) {
  // EncodeOrDie gives exactly that much room; ASan sees what goes past it.
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
  std::vector<std::byte> out(codec().MaxEncodedBytes(x.size(), context.params) - 1);
  EXPECT_EQ(codec().Encode(x, context, out).status().code(), StatusCode::kInternal);
}

TEST_P(CodecConformanceTest, SameInputGivesSameBytes) {
  const std::vector<float> x = test::NormalVector(10007, 8);
  const EncodeContext context = ContextFor(codec(), x, 3);
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
  if (traits.world_max > 0) {
    EXPECT_FALSE(codec().Validate({}, traits.world_max + 1).ok());
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
void CheckFeedback(const Codec& codec, size_t n, bool in_place, bool with_state) {
  const std::vector<float> g = test::NormalVector(n, 11, 0.01),
                           r0 = test::NormalVector(n, 12, 0.02);
  std::vector<float> e(n);
  for (size_t i = 0; i < n; ++i) e[i] = g[i] + r0[i];
  EncodeContext context = ContextFor(codec, e, 2);
  const std::unique_ptr<CodecState> state = codec.NewState(n, context.params);
  if (with_state) context.state = state.get();
  std::vector<std::byte> out(codec.MaxEncodedBytes(n, context.params));
  for (int step = 0; step < (with_state ? 3 : 1); ++step) {
    std::vector<float> residual = r0, separate(n, 7.0f);
    std::vector<float>& target = in_place ? residual : separate;
    const auto result = codec.EncodeWithFeedback(g, residual, target, context, out);
    ASSERT_TRUE(result.ok()) << ToString(result.status());
    const auto decoded = DecodeFor(codec, std::span(out).first(result->bytes), context, e);
    ASSERT_TRUE(decoded.ok());
    const bool keeps = codec.Traits().form == PayloadForm::kSharedIndex;
    double lost = 0;
    for (size_t i = 0; i < n; ++i) {
      const float sent = keeps ? 0.0f : (*decoded)[i];
      ASSERT_NEAR(sent + target[i], e[i], 1e-7 * std::abs(e[i]) + 1e-9) << i << " step " << step;
      const double left = keeps ? e[i] - (*decoded)[i] : target[i];
      lost += left * left;
    }
    const double energy = test::SquaredNorm(e);
    EXPECT_NEAR(result->energy_in, energy, 1e-9 * energy);
    EXPECT_NEAR(result->energy_lost, lost, 1e-9 * energy);
  }
}

TEST_P(CodecConformanceTest, FeedbackLosesNothing) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{17}, size_t{4099}, size_t{70001}}) {
    for (const bool in_place : {false, true}) {
      for (const bool with_state : {false, true}) CheckFeedback(codec(), n, in_place, with_state);
    }
  }
}

TEST_P(CodecConformanceTest, FeedbackEncodesTheSum) {
  // Stateless: the fused pass must give what Encode gives for the sum.
  const size_t n = 9001;
  const std::vector<float> g = test::NormalVector(n, 21), r = test::NormalVector(n, 22);
  std::vector<float> e(n), rest(n);
  for (size_t i = 0; i < n; ++i) e[i] = g[i] + r[i];
  const EncodeContext context = ContextFor(codec(), e, 2);
  std::vector<std::byte> out(codec().MaxEncodedBytes(n, context.params));
  const auto result = codec().EncodeWithFeedback(g, r, rest, context, out);
  ASSERT_TRUE(result.ok());
  out.resize(result->bytes);
  EXPECT_EQ(out, EncodeOrDie(codec(), e, context).payload);
}

TEST_P(CodecConformanceTest, FeedbackDeliversEverythingInTheLongRun) {
  // The same gradient step after step: the mean of what was delivered approaches it.
  const size_t n = 2000;
  const int steps = 200;
  const std::vector<float> g = test::NormalVector(n, 31);
  std::vector<float> residual(n, 0.0f), delivered(n, 0.0f), e(n);
  EncodeContext context = ContextFor(codec(), g, 1, 0.1);
  const std::unique_ptr<CodecState> state = codec().NewState(n, context.params);
  context.state = state.get();
  std::vector<std::byte> out(codec().MaxEncodedBytes(n, context.params));
  for (int step = 0; step < steps; ++step) {
    context.seed = step;
    for (size_t i = 0; i < n; ++i) e[i] = g[i] + residual[i];
    context.shared_max_abs = MaxAbs(g, residual);
    const auto result = codec().EncodeWithFeedback(g, residual, residual, context, out);
    ASSERT_TRUE(result.ok());
    const auto decoded = DecodeFor(codec(), std::span(out).first(result->bytes), context, e);
    ASSERT_TRUE(decoded.ok());
    for (size_t i = 0; i < n; ++i) delivered[i] += (*decoded)[i];
    if (codec().Traits().form == PayloadForm::kSharedIndex) {
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
        EXPECT_EQ(test::SquaredNorm(*decoded), 0);
      }
    }
  }
}

TEST_P(CodecConformanceTest, NonFiniteStepLeavesTheStateAsItWas) {
  const size_t n = 5000;
  const std::vector<float> g = test::NormalVector(n, 42), zero(n, 0.0f);
  EncodeContext context = ContextFor(codec(), g);
  const auto plain = codec().NewState(n, context.params), hit = codec().NewState(n, context.params);
  if (plain == nullptr) GTEST_SKIP() << "keeps no state";
  std::vector<std::byte> a(codec().MaxEncodedBytes(n, context.params)), b = a;
  std::vector<float> rest(n);
  std::vector<float> bad = g;
  bad[n / 3] = std::numeric_limits<float>::infinity();
  EncodeContext other = context;
  context.state = plain.get();
  other.state = hit.get();
  size_t bytes_a = 0, bytes_b = 0;
  for (int step = 0; step < 3; ++step) {
    bytes_a = codec().EncodeWithFeedback(g, zero, rest, context, a)->bytes;
    bytes_b = codec().EncodeWithFeedback(g, zero, rest, other, b)->bytes;
    EXPECT_TRUE(codec().EncodeWithFeedback(bad, zero, rest, other, a)->non_finite);
    bytes_a = codec().EncodeWithFeedback(g, zero, rest, context, a)->bytes;
    bytes_b = codec().EncodeWithFeedback(g, zero, rest, other, b)->bytes;
    ASSERT_EQ(bytes_a, bytes_b);
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + bytes_a, b.begin())) << "step " << step;
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
    const auto state = codec().NewState(n, context.params);
    context.state = state.get();
    context.statistics = &seen;
    std::vector<std::byte> out(codec().MaxEncodedBytes(n, context.params));
    for (int step = 0; step < 2; ++step) {  // the second is the warm pass of a stateful codec
      ASSERT_TRUE(codec().EncodeWithFeedback(g, r, rest, context, out).ok());
      EXPECT_EQ(seen.count(), n);
      EXPECT_EQ(seen.max_abs(), reference.max_abs());
      EXPECT_NEAR(seen.sum_squares(), reference.sum_squares(), 1e-9 * reference.sum_squares());
      EXPECT_NEAR(seen.GainAtRatio(0.1), reference.GainAtRatio(0.1), 0.02);
      EXPECT_NEAR(seen.ThresholdForRatio(0.1) / reference.ThresholdForRatio(0.1), 1, 0.02);
    }
  }
}

// --- Lanes
// ---------------------------------------------------------------------------------------------

TEST_P(CodecConformanceTest, SumOfPayloadsDecodesToSumOfDecodings) {
  if (codec().Traits().form != PayloadForm::kLanes) GTEST_SKIP() << "no lanes";
  const size_t n = 4099;
  for (int world = 2; world <= 8; ++world) {
    std::vector<float> sum_of_decodings(n, 0.0f);
    std::vector<std::byte> sum;
    EncodeContext context;
    double largest = 0;
    for (int rank = 0; rank < world; ++rank) {
      const std::vector<float> x = test::NormalVector(n, 60 + rank, 0.1);
      context = ContextFor(codec(), x, world);
      context.rank = rank;
      if (context.shared_max_abs > 0) context.shared_max_abs = 1.0f;  // one value for all ranks
      for (const float v : x) largest = std::max<double>(largest, std::abs(v));
      const Encoded encoded = EncodeOrDie(codec(), x, context);
      ASSERT_EQ(encoded.payload.size() % codec().LaneBytes(), 0u);
      ASSERT_TRUE(codec().DecodeAdd(encoded.payload, context, 1.0f, sum_of_decodings).ok());
      if (rank == 0) {
        sum = encoded.payload;
      } else {
        codec().Accumulate(sum, encoded.payload);
      }
    }
    std::vector<float> decoded_sum(n, 0.0f);
    ASSERT_TRUE(codec().DecodeAdd(sum, context, 1.0f, decoded_sum).ok());
    // 16-bit lanes round at every addition: a unit in the last place of the sum each time.
    const double lane_error = codec().LaneBytes() == 2 ? world * largest * 0x1p-8 : 1e-5 * largest;
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(decoded_sum[i], sum_of_decodings[i], lane_error) << i << " world " << world;
    }
  }
}

TEST_P(CodecConformanceTest, LanesMayBeAddedInPieces) {
  if (codec().Traits().form != PayloadForm::kLanes) GTEST_SKIP() << "no lanes";
  const std::vector<float> x = test::NormalVector(1000, 71), y = test::NormalVector(1000, 72);
  EncodeContext context = ContextFor(codec(), x, 2, 1.0);
  const Encoded a = EncodeOrDie(codec(), x, context), b = EncodeOrDie(codec(), y, context);
  std::vector<std::byte> whole = a.payload, pieces = a.payload;
  codec().Accumulate(whole, b.payload);
  const size_t lane = codec().LaneBytes();
  for (size_t at = 0, lanes = 1; at < pieces.size(); lanes = lanes * 2 + 1) {
    const size_t size = std::min(lanes * lane, pieces.size() - at);
    codec().Accumulate(std::span(pieces).subspan(at, size), std::span(b.payload).subspan(at, size));
    at += size;
  }
  EXPECT_EQ(whole, pieces);
}

// --- Hostile payloads
// ------------------------------------------------------------------------------------

/// Any verdict but a crash or a wrong code will do.
void DecodeAnything(const Codec& codec, std::span<const std::byte> payload,
                    const EncodeContext& context, size_t n) {
  // An exact copy on the heap: ASan sees a read past its end.
  const std::vector<std::byte> exact(payload.begin(), payload.end());
  std::vector<float> out(n, 0.0f);
  const Status status = codec.DecodeAdd(exact, context, 1.0f, out);
  if (codec.Traits().form == PayloadForm::kSharedIndex) {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  } else if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << ToString(status);
    EXPECT_NE(Message(status).find("offset"), std::string::npos) << Message(status);
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
  // Bounded and deterministic; tests/fuzz goes on from here where there is a fuzzer.
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

std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const Codec* codec : Codecs().All()) names.push_back(codec->Traits().name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecConformanceTest, testing::ValuesIn(AllNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace weir
