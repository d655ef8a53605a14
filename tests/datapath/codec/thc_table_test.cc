// SPDX-License-Identifier: Apache-2.0
// Level tables against the published ones, brute force and numbers worked out elsewhere.

#include "datapath/codec/thc_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

using Levels = std::vector<int>;

ThcTableSpec Spec(int bits, int granularity, double tail) {
  return {.bits = bits, .granularity = granularity, .range = ThcRange(tail)};
}

/// The rounding error by Simpson's rule, from the definition.
double IntegratedError(const ThcTableSpec& spec, const Levels& levels) {
  const int steps = 200 * spec.granularity;
  const double unit = 2 * spec.range / spec.granularity, h = 2 * spec.range / steps;
  double sum = 0;
  for (int i = 0; i <= steps; ++i) {
    const double t = -spec.range + i * h;
    size_t upper = 1;
    while (upper + 1 < levels.size() && -spec.range + levels[upper] * unit < t) ++upper;
    const double a = -spec.range + levels[upper - 1] * unit, c = -spec.range + levels[upper] * unit;
    const double density = std::exp(-t * t / 2) / std::sqrt(2 * std::numbers::pi);
    const double weight = i == 0 || i == steps ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * (t - a) * (c - t) * density;
  }
  return sum * h / 3;
}

/// The least error over all level sets with both ends, symmetric ones only when asked.
double BruteForceError(const ThcTableSpec& spec, bool symmetric) {
  const int inner = spec.granularity - 1;
  double least = 1e9;
  for (uint32_t mask = 0; mask < 1u << inner; ++mask) {
    const int left_out = (1 << spec.bits) - 2 - std::popcount(mask);
    if (left_out != 0 && !(symmetric && left_out == 1)) continue;  // the centre counts twice
    Levels levels = {0};
    bool mirrored = true;
    for (int i = 0; i < inner; ++i) {
      if ((mask >> i & 1) != (mask >> (inner - 1 - i) & 1)) mirrored = false;
      if ((mask >> i & 1) != 0) levels.push_back(i + 1);
    }
    if (symmetric && !mirrored) continue;
    levels.push_back(spec.granularity);
    least = std::min(least, ThcRoundingError(spec, levels));
  }
  return least;
}

TEST(ThcTableTest, ReproducesThePublishedTables) {
  EXPECT_EQ(SymmetricThcTable(Spec(4, 30, 1.0 / 32)),
            (Levels{0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30}));
  // Its siblings in the paper's repository.
  EXPECT_EQ(SymmetricThcTable(Spec(4, 30, 1.0 / 128)),
            (Levels{0, 4, 6, 8, 10, 12, 13, 14, 16, 17, 18, 20, 22, 24, 26, 30}));
  EXPECT_EQ(SymmetricThcTable(Spec(3, 16, 1.0 / 128)), (Levels{0, 3, 5, 7, 9, 11, 13, 16}));
  EXPECT_EQ(SymmetricThcTable(Spec(3, 16, 1.0 / 1024)), (Levels{0, 4, 6, 7, 9, 10, 12, 16}));
  EXPECT_EQ(SymmetricThcTable(Spec(3, 42, 1.0 / 1024)), (Levels{0, 10, 15, 19, 23, 27, 32, 42}));
  // Published with the centre twice.
  EXPECT_EQ(SymmetricThcTable(Spec(4, 16, 1.0 / 64)),
            (Levels{0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16}));
}

TEST(ThcTableTest, RangeIsTheNormalQuantile) {
  EXPECT_NEAR(ThcRange(1.0 / 32), 2.15387, 1e-4);
  EXPECT_NEAR(ThcRange(1e-4), 3.89059, 1e-5);
  EXPECT_NEAR(ThcRange(0.3173105), 1, 1e-6);
}

TEST(ThcTableTest, ErrorIsTheIntegral) {
  const ThcTableSpec spec = Spec(3, 17, 1.0 / 64);
  const Levels levels = {0, 4, 6, 8, 9, 11, 13, 17};
  EXPECT_NEAR(ThcRoundingError(spec, levels), IntegratedError(spec, levels), 1e-6);
  // Monte Carlo of clamping: the range 1 loses E (|z| - 1)^2 beyond it.
  const std::vector<float> z = test::NormalVector(2000000, 3);
  double lost = 0;
  for (const float v : z) lost += std::pow(std::max(0.0f, std::abs(v) - 1), 2);
  EXPECT_NEAR(ThcClippingError(1) / (lost / z.size()), 1, 0.01);
}

TEST(ThcTableTest, OptimalTablesHaveTheKnownErrors) {
  // The error is not monotonic in the granularity: 25 is worse than 17.
  const std::pair<int, double> known[] = {{15, .01332}, {17, .01253}, {25, .01415},
                                          {30, .01306}, {34, .01213}, {51, .01201}};
  for (const auto& [granularity, error] : known) {
    const ThcTableSpec spec = Spec(4, granularity, 1.0 / 32);
    EXPECT_NEAR(ThcRoundingError(spec, OptimalThcTable(spec)), error, 6e-6) << granularity;
  }
}

TEST(ThcTableTest, BothTablesAreOptimalOnSmallGrids) {
  for (const int bits : {2, 3}) {
    for (int granularity = (1 << bits) - 1; granularity <= 13; ++granularity) {
      for (const double tail : {1.0 / 8, 1.0 / 32, 1.0 / 1024}) {
        const ThcTableSpec spec = Spec(bits, granularity, tail);
        const Levels free = OptimalThcTable(spec), symmetric = SymmetricThcTable(spec);
        EXPECT_EQ(free.size(), size_t{1} << bits);
        EXPECT_NEAR(ThcRoundingError(spec, free), BruteForceError(spec, false), 1e-12);
        EXPECT_NEAR(ThcRoundingError(spec, symmetric), BruteForceError(spec, true), 1e-12);
        for (size_t i = 0; i < symmetric.size(); ++i) {
          EXPECT_EQ(symmetric[i] + symmetric[symmetric.size() - 1 - i], granularity);
        }
      }
    }
  }
}

TEST(ThcTableTest, SmallGridsAreUsedWhole) {
  EXPECT_EQ(SymmetricThcTable(Spec(4, 4, 0.1)), (Levels{0, 1, 2, 3, 4}));
  EXPECT_EQ(OptimalThcTable(Spec(2, 3, 0.1)), (Levels{0, 1, 2, 3}));
}

}  // namespace
}  // namespace weir
