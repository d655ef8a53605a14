// SPDX-License-Identifier: Apache-2.0
// Lanes of powers of two and their addition.

#include <gtest/gtest.h>

#include <cmath>

#include "datapath/codec/kernels/quantise.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

/// The level and sign of a code as a number; level 32 is 1.
double ValueOf(uint8_t code) {
  const int level = code & 63;
  const double magnitude = level == 0 ? 0 : std::ldexp(1.0, level - 32);
  return code & 128 ? -magnitude : magnitude;
}

TEST(AccumulatePowersTest, TakesOneOfTheTwoPowersAroundTheSum) {
  // All pairs of codes, many draws of each.
  const size_t draws = 200;
  for (int a = 0; a < 256; a += 5) {
    for (int b = 0; b < 256; ++b) {
      std::vector<uint8_t> sum(draws, static_cast<uint8_t>(a));
      const std::vector<uint8_t> addend(draws, static_cast<uint8_t>(b));
      kernels::AccumulatePowers(sum.data(), addend.data(), draws, a * 256 + b, 5);
      const double exact = ValueOf(a) + ValueOf(b);
      const double below = exact == 0 ? 0 : std::exp2(std::floor(std::log2(std::abs(exact))));
      double up = 0, salted = 0;
      for (const uint8_t code : sum) {
        const double drawn = ValueOf(code);
        salted += (code & 64) != 0;
        if (exact == 0) {
          ASSERT_EQ(drawn, 0) << a << " " << b;
          continue;
        }
        ASSERT_TRUE(drawn * exact > 0) << a << " " << b;
        const double ratio = std::abs(drawn) / below;
        // Level 63 is the last one.
        ASSERT_TRUE(ratio == 1 || ratio == 2 || (code & 63) == 63) << a << " " << b;
        up += ratio == 2;
      }
      EXPECT_NEAR(salted / draws, 0.5, 6 * std::sqrt(0.25 / draws));
      if ((a & 63) == 63 || (b & 63) == 63) continue;
      const double chance = exact == 0 ? 0 : std::max(0.0, std::abs(exact) / below - 1);
      // Six deviations, and three hits more where a hit is next to impossible.
      EXPECT_NEAR(up / draws, chance, (6 * std::sqrt(chance * (1 - chance) * draws) + 3) / draws)
          << a << " " << b;
    }
  }
}

TEST(AccumulatePowersTest, DrawsFollowSeedAndPosition) {
  const std::vector<uint8_t> ones(1000, 32), threes(1000, 33);
  std::vector<uint8_t> a = ones, b = ones, c = ones, tail(ones.begin() + 37, ones.end());
  kernels::AccumulatePowers(a.data(), threes.data(), a.size(), 1, 0);
  kernels::AccumulatePowers(b.data(), threes.data(), b.size(), 2, 0);
  kernels::AccumulatePowers(c.data(), threes.data(), c.size(), 1, 0);
  kernels::AccumulatePowers(tail.data(), threes.data(), tail.size(), 1, 37);
  EXPECT_EQ(a, c);
  EXPECT_NE(a, b);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), a.begin() + 37));
}

TEST(ExponentialQsgdTest, SumsAreUnbiasedOverManyHopsWithEqualPayloads) {
  // Every rank holds the same: a draw that did not change from hop to hop would keep a lane where
  // it stayed once, and the mean would fall short.
  const Codec& codec = test::FindCodec("qsgd:levels=exponential");
  const size_t n = 8;
  const int world = 16, draws = 20000;
  const std::vector<float> x(n, 1.0f);
  double total = 0, squares = 0;
  for (int draw = 0; draw < draws; ++draw) {
    EncodeContext context = test::ContextFor(codec, x, world);
    context.seed = draw;
    std::vector<std::byte> sum = test::EncodeOrDie(codec, x, context).payload;
    for (context.rank = 1; context.rank < world; ++context.rank) {
      codec.Accumulate(context, sum, test::EncodeOrDie(codec, x, context).payload);
    }
    const std::vector<float> decoded = test::DecodeFor(codec, sum, context, x).value();
    for (const float v : decoded) {
      total += v - world;
      squares += std::pow(v - world, 2);
    }
  }
  const double deviation = std::sqrt(squares);
  EXPECT_GT(squares, 0);
  EXPECT_LT(std::abs(total), 5 * deviation);
}

TEST(ExponentialQsgdTest, LevelsReachFarBelowAndAboveTheMaximum) {
  const Codec& codec = test::FindCodec("qsgd:levels=exponential");
  for (const float largest : {1.0f, 0x1p-120f, 0x1p100f, 3.0e38f}) {
    const std::vector<float> x = {largest, -largest * 0x1p-20f, largest * 0x1p-36f, 0.0f};
    EncodeContext context = test::ContextFor(codec, x, 1024);
    const std::vector<std::byte> one = test::EncodeOrDie(codec, x, context).payload;
    const auto decoded = test::DecodeFor(codec, one, context, x).value();
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) < 0x1p-126f) continue;  // below single precision's normal numbers
      EXPECT_LE(std::abs(decoded[i] - x[i]), std::abs(x[i])) << largest << " " << i;
    }
    // Sums of 1024 stay in order of size, or at the largest power there is.
    std::vector<std::byte> sum = one;
    for (context.rank = 1; context.rank < 1024; ++context.rank) {
      codec.Accumulate(context, sum, test::EncodeOrDie(codec, x, context).payload);
    }
    const auto total = test::DecodeFor(codec, sum, context, x).value();
    EXPECT_TRUE(std::isfinite(total[0]));
    EXPECT_GE(total[0], std::min(128.0f * decoded[0], 0x1p126f)) << largest;
    EXPECT_LE(total[1], 0);
    EXPECT_EQ(total[3], 0);
  }
}

}  // namespace
}  // namespace weir
