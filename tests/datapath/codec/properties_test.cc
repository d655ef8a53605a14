// SPDX-License-Identifier: Apache-2.0
// Statistical properties that traits declare, over the whole registry and with stated confidence:
// unbiasedness, contraction, independence of noise, sums up to the largest world. A test looks at
// some 100 settings, so a bound of six deviations fails by chance once in millions of runs; inputs
// and seeds are fixed, so it does not fail by chance at all.

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

using test::ContextFor;
using test::DecodeFor;
using test::EncodeOrDie;
using test::ForEachSetting;

struct Input {
  std::string name;
  std::vector<float> x;
};

/// Inputs that are hard for one codec or another: heavy tails, ties, one element, many zeros.
std::vector<Input> HardInputs(size_t n) {
  std::vector<Input> inputs;
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    inputs.push_back({distribution.name, test::Draw(distribution, n, 3)});
  }
  inputs.push_back({"constant", std::vector<float>(n, 0.7f)});
  inputs.push_back({"one element", std::vector<float>(n, 0.0f)});
  inputs.back().x[n / 3] = -2.5f;
  inputs.push_back({"alternating", std::vector<float>(n)});
  for (size_t i = 0; i < n; ++i) inputs.back().x[i] = i % 2 == 0 ? 1.0f : -1.0f;
  inputs.push_back({"geometric", std::vector<float>(n)});
  for (size_t i = 0; i < n; ++i) {
    inputs.back().x[i] = static_cast<float>(std::pow(0.999, static_cast<double>(i)));
  }
  inputs.push_back({"diagonal", std::vector<float>(n, 0.0f)});  // equal singular values
  const auto side = static_cast<size_t>(std::sqrt(static_cast<double>(n)));
  for (size_t i = 0; i < side; ++i) inputs.back().x[i * side + i] = 1;
  return inputs;
}

double SquaredError(std::span<const float> x, std::span<const float> y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(y[i]) - x[i], 2);
  return sum;
}

TEST(UnbiasedPropertyTest, TheMeanOfManyDecodingsIsTheInput) {
  // If errors are independent, the mean's squared length is variance / draws, give or take 4 % over
  // 1500 elements; it may be half as large again. An error along x, such as shrinking, has a
  // deviation of its own and may be six times that.
  const size_t n = 1500;
  const int draws = 300;
  size_t checked = 0;
  const std::vector<Input> inputs = HardInputs(n);
  ForEachSetting([&](const Codec& codec, int bits) {
    if (!codec.Traits().unbiased || !codec.Traits().lossy) return;
    for (const size_t which : {size_t{1}, size_t{4}}) {  // normal, and Student's t
      const std::vector<float>& x = inputs[which].x;
      EncodeContext context = ContextFor(codec, x, 1, 1, bits);
      std::vector<double> mean(n, 0.0);
      double variance = 0, along = 0, along_square = 0;
      for (int draw = 0; draw < draws; ++draw) {
        context.seed = 7000 + draw;
        const auto decoded =
            DecodeFor(codec, EncodeOrDie(codec, x, context).payload, context, x).value();
        double projection = 0;
        for (size_t i = 0; i < n; ++i) {
          const double error = static_cast<double>(decoded[i]) - x[i];
          mean[i] += error / draws;
          variance += error * error / draws;
          projection += error * x[i];
        }
        along += projection / draws;
        along_square += projection * projection / draws;
      }
      const double energy = test::SquaredNorm(x);
      double bias = 0;
      for (const double v : mean) bias += v * v;
      EXPECT_LT(bias, 1.5 * variance / draws + 1e-5 * energy) << inputs[which].name;
      const double deviation = std::sqrt(std::max(0.0, along_square - along * along) / draws);
      EXPECT_LT(std::abs(along), 6 * deviation + 1e-3 * energy) << inputs[which].name;
      ++checked;
    }
  });
  EXPECT_GE(checked, 20u);
}

TEST(UnbiasedPropertyTest, VarianceStaysWithinTheDeclaredBound) {
  // Declared of normal input; the mean of 100 draws of 20000 errors strays by less than 5 %, where
  // a distribution lies between two powers of two by 20 %.
  const size_t n = 20000;
  const std::vector<float> x = test::NormalVector(n, 5, 0.01);
  ForEachSetting([&](const Codec& codec, int bits) {
    const CodecTraits& traits = codec.Traits();
    if (!traits.unbiased || !traits.lossy) return;
    EncodeContext context = ContextFor(codec, x, 1, 1, bits);
    double loss = 0;
    const int draws = 20;
    for (int draw = 0; draw < draws; ++draw) {
      context.seed = draw;
      const EncodeResult result = EncodeOrDie(codec, x, context).result;
      loss += result.energy_lost / result.energy_in / draws;
    }
    const CodecSetting& setting = *FindSetting(traits, {.bits = bits}, 1);
    double declared = setting.relative_error_squared;
    if (traits.error_model == ErrorModel::kMaxScaled) {
      const double peak = MaxAbs(x, {}) / std::sqrt(test::SquaredNorm(x) / n);
      declared = std::pow(peak / std::floor(setting.levels), 2) / traits.error_divisor;
    }
    EXPECT_LT(loss, 1.25 * declared);
  });
}

TEST(ContractionTest, HoldsOnHardInputsForEveryCodecThatDeclaresIt) {
  // E|C(x) - x|^2 <= (1 - contraction * ratio) |x|^2, the mean over seeds with six deviations.
  const size_t n = 16384;
  const std::vector<Input> inputs = HardInputs(n);
  const std::vector<TensorShape> shape = {{128, 128}};
  size_t declared = 0;
  ForEachSetting([&](const Codec& codec, int bits) {
    const CodecTraits& traits = codec.Traits();
    if (traits.contraction == 0) return;
    EXPECT_LE(traits.contraction, 1);
    ++declared;
    for (const double ratio : {0.3, 0.05}) {
      if (!traits.uses_ratio && ratio < 0.3) continue;
      for (const Input& input : inputs) {
        EncodeContext context = ContextFor(codec, input.x, 1, ratio, bits);
        context.shape = shape;
        // Positions drawn at random take many draws to be seen to hit.
        const bool drawn = traits.error_model == ErrorModel::kUniformSelection &&
                           !traits.size_in_steps && traits.kept_block == 1;
        const int draws = drawn ? 2000 : 8;
        double mean = 0, square = 0;
        for (int draw = 0; draw < draws; ++draw) {
          context.seed = draw;
          const EncodeResult result = EncodeOrDie(codec, input.x, context).result;
          const double loss = result.energy_lost / result.energy_in;
          mean += loss / draws;
          square += loss * loss / draws;
        }
        // A loss lies between 0 and 1, so that its variance is below mean (1 - mean).
        const double variance = drawn ? mean * (1 - mean) : std::max(0.0, square - mean * mean);
        const double deviation = std::sqrt(variance / draws);
        const double kept = traits.contraction * (traits.uses_ratio ? ratio : 1);
        EXPECT_LE(mean, 1 - kept + 6 * deviation + 1e-6) << input.name << " ratio " << ratio;
      }
    }
  });
  EXPECT_GE(declared, 20u);
}

TEST(ContractionTest, IsDeclaredWhereFeedbackIsUsedByDefaultOrSaidNotToBe) {
  // Codecs under feedback without a bound: each of them is here for a reason.
  const std::set<std::string> without = {
      "adaq",                     // two means for many magnitudes
      "inceptionn",               // drops what lies below a fixed bound
      "minmax",                   // one bit sends the ends of the range
      "qsgd",                     // unbiased; one level sends more than there is
      "thc",                      // clipped at multiples of the bucket's root mean square
      "thc_uniform",              // likewise
      "threshold",                // a fixed threshold may keep nothing
      "threshold:selector=hard",  // likewise
      "sidco:fit=e",              // likewise, when its fit is off
      "sidco:fit=gp",
      "sidco:fit=p"};
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    if (!traits.needs_error_feedback) continue;
    EXPECT_EQ(traits.contraction == 0, without.contains(traits.name)) << traits.name;
  }
}

TEST(ZerosTest, StayZeroAndAreNeverDividedBy) {
  ForEachSetting([&](const Codec& codec, int bits) {
    if (codec.Traits().lanes_are_votes) return;  // no vote stands for zero
    for (const double ratio : {1.0, 0.1, 0.001}) {
      const std::vector<float> zeros(4099, 0.0f);
      const EncodeContext context = ContextFor(codec, zeros, 1, ratio, bits);
      const test::Encoded encoded = EncodeOrDie(codec, zeros, context);
      EXPECT_FALSE(encoded.result.non_finite);
      EXPECT_EQ(encoded.result.energy_in, 0);
      EXPECT_EQ(encoded.result.energy_lost, 0);
      EXPECT_EQ(DecodeFor(codec, encoded.payload, context, zeros).value(), zeros);
    }
  });
}

TEST(ZerosTest, MoreZerosThanTheRatioLeavesOutBreakNothing) {
  // 0.5 % nonzero at a ratio of 5 %: fitted thresholds and histograms meet their edges.
  const size_t n = 20000;
  std::vector<float> x(n, 0.0f);
  for (size_t i = 0; i < n; i += 200) x[i] = static_cast<float>(1 + i % 7) * (i % 400 ? 1 : -1);
  ForEachSetting([&](const Codec& codec, int bits) {
    const CodecTraits& traits = codec.Traits();
    const EncodeContext context = ContextFor(codec, x, 1, 0.05, bits);
    const test::Encoded encoded = EncodeOrDie(codec, x, context);
    const auto decoded = DecodeFor(codec, encoded.payload, context, x).value();
    for (const float v : decoded) ASSERT_TRUE(std::isfinite(v));
    if (traits.error_model != ErrorModel::kSelection || traits.kept_block > 1) return;
    // A selector sends them all, and no zero.
    for (size_t i = 0; i < n; ++i) {
      ASSERT_TRUE(x[i] != 0 || decoded[i] == 0) << i;
    }
    EXPECT_LT(SquaredError(x, decoded), 0.3 * test::SquaredNorm(x));
  });
}

TEST(NoiseTest, OfUnbiasedCodecsIsIndependentAcrossRanksAndSteps) {
  // Equal gradients on two ranks, or in two steps: errors that went together would not average
  // out. Of 4096 products of independent errors the mean deviates by 1/64 of their size.
  const size_t n = 4096;
  const std::vector<float> x = test::NormalVector(n, 15);
  ForEachSetting([&](const Codec& codec, int bits) {
    const CodecTraits& traits = codec.Traits();
    if (!traits.unbiased || !traits.lossy) return;
    EncodeContext context = ContextFor(codec, x, 1, 1, bits);
    const auto error = [&](uint64_t seed, int rank) {
      context.seed = seed;
      context.rank = rank;
      auto decoded = DecodeFor(codec, EncodeOrDie(codec, x, context).payload, context, x).value();
      for (size_t i = 0; i < n; ++i) decoded[i] -= x[i];
      return decoded;
    };
    const std::vector<float> first = error(1, 0);
    for (const auto& other : {error(1, 1), error(2, 0)}) {
      double product = 0;
      for (size_t i = 0; i < n; ++i) product += static_cast<double>(first[i]) * other[i];
      const double size = std::sqrt(test::SquaredNorm(first) * test::SquaredNorm(other));
      EXPECT_LT(std::abs(product) / size, 6.0 / 64);
    }
  });
}

TEST(IndexWidthTest, PositionsPastWhatAFloatHoldsAreExact) {
  // Odd positions above 2^24: as float32 they would be even, as int16 anything.
  const size_t n = (size_t{1} << 24) + 4096;
  std::vector<float> x(n, 0.0f);
  std::vector<uint32_t> expected;
  for (uint32_t i = (1u << 24) + 1; expected.size() < 16; i += 254) expected.push_back(i);
  for (const uint32_t i : expected) x[i] = 1.0f + static_cast<float>(i % 7);
  for (const char* name : {"top_k", "shared_top_k", "threshold:selector=ms_top_k", "sidco"}) {
    const Codec& codec = test::FindCodec(name);
    const EncodeContext context = ContextFor(codec, x, 1, 1e-6);
    std::vector<uint32_t> indices;
    const test::Encoded encoded = EncodeOrDie(codec, x, context);
    ASSERT_TRUE(codec.DecodeIndices(encoded.payload, n, &indices).ok()) << name;
    // With few elements, a histogram may select half instead of all.
    EXPECT_GE(indices.size(), 8u) << name;
    EXPECT_TRUE(std::includes(expected.begin(), expected.end(), indices.begin(), indices.end()))
        << name;
  }
}

/// x on even ranks, its negative or again x on odd ones.
void CheckSums(const Codec& codec, int bits, int world, bool opposed) {
  const size_t n = 160;
  std::vector<float> x(n), y(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = i % 3 == 0 ? 2.0f : i % 3 == 1 ? -2.0f : 0.3f;
    y[i] = opposed ? -x[i] : x[i];
  }
  std::vector<EncodeContext> contexts;
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < world; ++rank) {
    inputs.push_back(rank % 2 == 0 ? x : y);
    contexts.push_back(ContextFor(codec, x, world, 0.1, bits));
    contexts.back().rank = rank;
  }
  const test::Exchanged exchanged = test::ExchangeOrDie(codec, inputs, contexts);
  std::vector<float> sum_of_decodings(n, 0.0f), decoded_sum(n, 0.0f);
  for (int rank = 0; rank < world; ++rank) {
    ASSERT_TRUE(
        codec.DecodeAdd(exchanged.ranks[rank].payload, contexts[rank], 1.0f, sum_of_decodings)
            .ok());
  }
  ASSERT_TRUE(codec.DecodeAdd(exchanged.sum, contexts[0], 1.0f, decoded_sum).ok());
  const double offset =
      codec.Traits().lanes_are_votes ? world * (world - 1.0) * contexts[0].shared_max.one() : 0.0;
  for (size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(decoded_sum[i], sum_of_decodings[i] + offset, 1e-4 * world * world)
        << i << " world " << world;
  }
}

TEST(LargestWorldTest, SumsEqualSumsOfDecodingsAndOneRankMoreIsRefused) {
  std::set<std::string> checked;
  ForEachSetting([&](const Codec& codec, int bits) {
    const CodecTraits& traits = codec.Traits();
    if (traits.form != PayloadForm::kLanes) return;
    for (const CodecSetting& setting : traits.settings) {
      if (setting.bits != bits || setting.world_max == 0) continue;
      checked.insert(traits.name);
      // Votes beyond 255 and lanes of 16 bits go to worlds that take long; 1200 will do.
      const int world = std::min(setting.world_max, 1200);
      CheckSums(codec, bits, world, /*opposed=*/false);
      CheckSums(codec, bits, world, /*opposed=*/true);
    }
    int most = 0;
    for (const CodecSetting& setting : traits.settings) {
      if (setting.bits != bits) continue;
      most = setting.world_max == 0 ? INT32_MAX : std::max(most, setting.world_max);
    }
    if (most == INT32_MAX) return;
    const std::vector<float> x(64, 1.0f);
    EncodeContext context = ContextFor(codec, x, most, 0.1, bits);
    std::vector<std::byte> out(codec.MaxEncodedBytes(x.size(), context));
    EXPECT_TRUE(codec.Encode(x, context, out).ok());
    context.world = most + 1;
    EXPECT_EQ(codec.Encode(x, context, out).status().code(), StatusCode::kInvalidArgument);
    std::vector<float> decoded(64);
    EXPECT_EQ(codec.DecodeAdd(out, context, 1, decoded).code(), StatusCode::kInvalidArgument);
  });
  for (const char* name : {"qsgd", "terngrad", "signsgd", "thc", "thc_uniform"}) {
    EXPECT_TRUE(checked.contains(name)) << name;
  }
}

}  // namespace
}  // namespace weir
