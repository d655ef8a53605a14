// SPDX-License-Identifier: Apache-2.0
// Properties of the lane codecs beyond the conformance suite.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

/// The sum over `world` ranks that all contribute x, as decoded from summed lanes.
std::vector<float> SumOverRanks(const Codec& codec, std::span<const float> x, int world,
                                float shared_max) {
  std::vector<std::byte> sum;
  EncodeContext context;
  context.world = world;
  context.shared_max = shared_max;
  for (int rank = 0; rank < world; ++rank) {
    context.rank = rank;
    const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
    if (rank == 0) {
      sum = encoded.payload;
    } else {
      codec.Accumulate(context, sum, encoded.payload);
    }
  }
  return test::DecodeFor(codec, sum, context, x).value();
}

TEST(Fp16Test, SumsAreRightAtEveryScale) {
  // A loss may be scaled by any factor, so gradients of any magnitude must arrive.
  const Codec& codec = test::FindCodec("fp16");
  for (const float scale : {1e-30f, 1e-9f, 1.0f, 65504.0f, 4.1e6f, 1e30f}) {
    const std::vector<float> x = {scale, -scale, 0.9f * scale, 1e-4f * scale, -3e-5f * scale};
    for (const int world : {1, 2, 3, 4, 7, 8, 64, 1000}) {
      const std::vector<float> sum = SumOverRanks(codec, x, world, scale);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(sum[i] / (world * x[i]), 1, 0.001 + world * 0x1p-12) << scale << " " << world;
      }
    }
  }
}

TEST(Fp16Test, GreatestAndLeastFloatsAreEncodable) {
  const Codec& codec = test::FindCodec("fp16");
  constexpr float kGreatest = std::numeric_limits<float>::max();
  for (const int world : {1, 4, 8192}) {
    EncodeContext context;
    context.world = world;
    context.shared_max = kGreatest;
    const std::vector<float> greatest = {kGreatest}, least = {0x1p-126f, 0x1p-149f}, none = {0.0f};
    EXPECT_NEAR(test::RoundTrip(codec, greatest, context)[0] / kGreatest, 1, 0x1p-11) << world;
    context.shared_max = 0x1p-126f;
    EXPECT_EQ(test::RoundTrip(codec, least, context), std::vector<float>({0x1p-126f, 0.0f}));
    context.shared_max = 0.0f;
    EXPECT_EQ(test::RoundTrip(codec, none, context), none) << world;
  }
  EXPECT_EQ(codec.Validate({}, 8193).code(), StatusCode::kInvalidArgument);
}

TEST(Fp16Test, WhatIsRoundedOffStaysInTheResidual) {
  const Codec& codec = test::FindCodec("fp16");
  const std::vector<float> g = {1e6f, -3e8f, 1.0f}, zero(3, 0.0f);
  std::vector<float> rest(3);
  EncodeContext context;
  context.shared_max = codec.LocalMax(g, {}, context);
  std::vector<std::byte> out(6);
  ASSERT_TRUE(codec.EncodeWithFeedback(g, zero, rest, context, out).ok());
  std::vector<float> decoded(3, 0.0f);
  ASSERT_TRUE(codec.DecodeAdd(out, context, 1, decoded).ok());
  // The last places of half precision are 2^9 and 2^18 here, and 2^-10 for 1.
  EXPECT_EQ(decoded, std::vector<float>({999936.0f, -299892736.0f, 1.0f}));
  for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(rest[i], g[i] - decoded[i]);
}

TEST(Fp16Test, AnInfiniteMaximumOfAnotherRankGivesZeros) {
  const Codec& codec = test::FindCodec("fp16");
  EncodeContext context;
  context.shared_max = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {1.0f, 2.0f};
  const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
  EXPECT_TRUE(encoded.result.non_finite);
  EXPECT_EQ(encoded.payload, std::vector<std::byte>(4));
}

TEST(LaneCodecTest, NonFiniteLanesFromAPeerAreRejected) {
  for (const char* name : {"identity", "fp16", "bf16", "random_k"}) {
    const Codec& codec = test::FindCodec(name);
    for (const size_t n : {size_t{1}, size_t{40}}) {
      const size_t lane = codec.LaneBytes({});
      std::vector<std::byte> payload(n * lane);
      payload[payload.size() - 1] = std::byte{0x7F};  // exponent all ones
      payload[payload.size() - 2] = std::byte{0xFF};
      std::vector<float> out(n, 0.0f);
      EXPECT_EQ(codec.DecodeAdd(payload, {}, 1, out).code(), StatusCode::kDataLoss) << name;
    }
  }
}

TEST(QsgdTest, SumsNeverWrapAtAnyWorldSize) {
  const Codec& codec = test::FindCodec("qsgd");
  std::vector<float> x(1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 2.0f : -2.0f;
  for (int world = 1; world <= 127; ++world) {
    const std::vector<float> sum = SumOverRanks(codec, x, world, 2.0f);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(sum[i], world * x[i], 1e-3 * world) << world;
  }
}

TEST(QsgdTest, IsUnbiased) {
  const Codec& codec = test::FindCodec("qsgd");
  const std::vector<float> x(100000, 0.3217f);
  EncodeContext context;
  context.world = 8;  // 15 levels
  context.shared_max = 1;
  const std::vector<float> decoded = test::RoundTrip(codec, x, context);
  double mean = 0;
  for (const float v : decoded) mean += v;
  mean /= static_cast<double>(x.size());
  EXPECT_NEAR(mean, 0.3217, 5 * (1.0 / 15 / 2) / std::sqrt(x.size()));
  EXPECT_EQ(std::set<float>(decoded.begin(), decoded.end()).size(), 2u);
}

TEST(QsgdTest, NoiseDiffersBetweenRanksStepsAndElements) {
  const Codec& codec = test::FindCodec("qsgd");
  const size_t n = 20000;
  const std::vector<float> x(n, 0.5f);
  const auto bits = [&](uint64_t seed, int rank) {
    EncodeContext context;
    context.world = 8;
    context.shared_max = 1;
    context.seed = seed;
    context.rank = rank;
    return test::RoundTrip(codec, x, context);
  };
  const std::vector<float> a = bits(1, 0);
  for (const auto& b : {bits(1, 1), bits(2, 0)}) {
    size_t equal = 0, shifted = 0;
    for (size_t i = 0; i + 1 < n; ++i) {
      equal += a[i] == b[i];
      shifted += a[i] == b[i + 1];
    }
    // Independent coins with chances 1/2 agree on half of the elements.
    EXPECT_NEAR(static_cast<double>(equal) / n, 0.5, 0.02);
    EXPECT_NEAR(static_cast<double>(shifted) / n, 0.5, 0.02);
  }
}

TEST(QsgdTest, ValuesBeyondTheSharedMaximumAreClampedAndKept) {
  const Codec& codec = test::FindCodec("qsgd");
  const std::vector<float> g = {5.0f, -7.0f, 1e30f}, zero(3, 0.0f);
  std::vector<float> rest(3);
  EncodeContext context;
  context.shared_max = 1;
  std::vector<std::byte> out(3);
  ASSERT_TRUE(codec.EncodeWithFeedback(g, zero, rest, context, out).ok());
  EXPECT_EQ(out[0], std::byte{127});
  EXPECT_EQ(out[1], std::byte(uint8_t(-127)));
  EXPECT_NEAR(rest[0], 4, 1e-6);
  EXPECT_NEAR(rest[1], -6, 1e-6);
}

TEST(QsgdTest, DegenerateScalesSendZeros) {
  const Codec& codec = test::FindCodec("qsgd");
  const std::vector<float> x = {1e-40f, -1e-40f, 0.0f};
  for (const float scale : {0.0f, 1e-40f}) {
    EncodeContext context;
    context.shared_max = scale;
    const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
    EXPECT_FALSE(encoded.result.non_finite);
    EXPECT_EQ(encoded.payload, std::vector<std::byte>(3));
  }
  EncodeContext context;
  context.shared_max = std::numeric_limits<float>::infinity();  // another rank met NaN
  EXPECT_TRUE(test::EncodeOrDie(codec, x, context).result.non_finite);
  context.shared_max = -1;
  std::vector<std::byte> out(3);
  EXPECT_EQ(codec.Encode(x, context, out).status().code(), StatusCode::kInvalidArgument);
}

TEST(RandomKTest, PositionsAreDistinctAndCoverEverythingEvenly) {
  const Codec& codec = test::FindCodec("random_k");
  const size_t n = 1003;
  const int draws = 3000;
  const std::vector<float> x(n, 1.0f);
  std::vector<double> hits(n, 0.0);
  EncodeContext context;
  context.params.ratio = 0.1;
  for (int draw = 0; draw < draws; ++draw) {
    context.seed = draw;
    const std::vector<float> decoded = test::RoundTrip(codec, x, context);
    // A position drawn twice would decode to 2.
    EXPECT_EQ(std::count(decoded.begin(), decoded.end(), 1.0f), 100);
    for (size_t i = 0; i < n; ++i) hits[i] += decoded[i];
  }
  const auto [low, high] = std::minmax_element(hits.begin(), hits.end());
  EXPECT_GT(*low, 0.1 * draws * 0.7);
  EXPECT_LT(*high, 0.1 * draws * 1.35);
}

TEST(RandomKTest, SeedDecidesAndRankDoesNot) {
  const Codec& codec = test::FindCodec("random_k");
  const std::vector<float> x = test::NormalVector(1000, 1);
  EncodeContext context;
  context.params.ratio = 0.1;
  context.seed = 5;
  const auto a = test::EncodeOrDie(codec, x, context).payload;
  context.rank = 3;
  EXPECT_EQ(test::EncodeOrDie(codec, x, context).payload, a);
  context.seed = 6;
  EXPECT_NE(test::EncodeOrDie(codec, x, context).payload, a);
}

}  // namespace
}  // namespace weir
