// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace weir {
namespace {

// The published SplitMix64 sequence from seed 0: a change would desynchronise ranks of two builds.
TEST(RandomTest, MixIsSplitMix64) {
  static_assert(Mix64(0) == 0xE220A8397B1DCDAFull);
  static_assert(Mix64(0x9E3779B97F4A7C15ull) == 0x6E789E6AA1B965F4ull);
  static_assert(Mix64(2 * 0x9E3779B97F4A7C15ull) == 0x06C45D188009454Full);
}

TEST(RandomTest, SameSeedSameStreamOtherSeedOtherStream) {
  Random a(42), b(42), c(43);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.Next();
    EXPECT_EQ(value, b.Next());
    differs |= value != c.Next();
  }
  EXPECT_TRUE(differs);
}

TEST(RandomTest, MixSeedIsNotSymmetricAndSpreadsCounters) {
  EXPECT_NE(MixSeed(1, 2), MixSeed(2, 1));
  std::set<uint64_t> seeds;
  for (uint64_t bucket = 0; bucket < 100; ++bucket) {
    for (uint64_t step = 0; step < 100; ++step) seeds.insert(MixSeed(bucket, step));
  }
  EXPECT_EQ(seeds.size(), 10000u);
}

TEST(RandomTest, BelowIsUniformAndBounded) {
  Random random(7);
  EXPECT_EQ(random.Below(1), 0u);
  std::array<int, 7> counts{};
  constexpr int kDraws = 70000;
  for (int i = 0; i < kDraws; ++i) ++counts[random.Below(7)];
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 7, 500);  // five deviations
  // Without rejection a bound of 3/4 of the range would favour its lower third by two to one.
  constexpr uint64_t kBound = 3ull << 62;
  int low = 0;
  for (int i = 0; i < kDraws; ++i) low += random.Below(kBound) < kBound / 3;
  EXPECT_NEAR(low, kDraws / 3, 650);
}

TEST(RandomTest, UniformAndNormalHaveTheirMoments) {
  Random random(9);
  constexpr int kDraws = 200000;
  double sum = 0, normal_sum = 0, normal_squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.Uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    const double n = random.Normal();
    ASSERT_TRUE(std::isfinite(n));
    normal_sum += n;
    normal_squares += n * n;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.004);
  EXPECT_NEAR(normal_sum / kDraws, 0.0, 0.012);
  EXPECT_NEAR(normal_squares / kDraws, 1.0, 0.016);
}

}  // namespace
}  // namespace weir
