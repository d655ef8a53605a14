// SPDX-License-Identifier: Apache-2.0
// The kernels of the threshold estimators on every SIMD target of this machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "datapath/codec/kernels/kernels.h"
#include "tests/datapath/codec/codec_test_support.h"
#include "tests/support/every_target.h"

namespace weir {
namespace {

TEST(TailKernelsTest, MomentsAreThoseOfThePlainLoop) {
  for (const size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{1000}, size_t{2048}}) {
    std::vector<float> g = test::NormalVector(n, n), r = test::NormalVector(n, n + 1);
    if (n > 100) g[77] = std::numeric_limits<float>::quiet_NaN();
    for (const bool sampled : {false, true}) {
      kernels::TailMoments expected;
      for (size_t i = 0; i < n; ++i) {
        const float e = std::abs(g[i] + r[i]);
        if (!(e > 0.7f) || (sampled && !kernels::IsSampled(i))) continue;
        ++expected.count;
        expected.sum += static_cast<double>(e) - 0.7f;
        expected.sum_squares += std::pow(static_cast<double>(e) - 0.7f, 2);
        expected.sum_logs += std::log(e);
        expected.smallest = std::min(expected.smallest, e);
        expected.largest = std::max(expected.largest, e);
      }
      test::OnEveryTarget([&](const char* target) {
        const kernels::Block block{.gradient = g.data(), .residual = r.data(), .size = n};
        kernels::TailMoments seen;
        kernels::MomentsAbove(block, 0.7f, sampled, 0, &seen);
        kernels::LogsAbove(block, 0.7f, sampled, 0, &seen);
        EXPECT_EQ(seen.count, expected.count) << target << " " << n;
        EXPECT_EQ(seen.smallest, expected.smallest) << target << " " << n;
        EXPECT_EQ(seen.largest, expected.largest) << target << " " << n;
        EXPECT_NEAR(seen.sum, expected.sum, 1e-6 * n) << target << " " << n;
        EXPECT_NEAR(seen.sum_squares, expected.sum_squares, 1e-5 * n) << target << " " << n;
        EXPECT_NEAR(seen.sum_logs, expected.sum_logs, 1e-5 * n) << target << " " << n;
      });
    }
  }
}

TEST(TailKernelsTest, MomentumIsTheSameBitsOnEveryTarget) {
  const size_t n = 1003;
  const std::vector<float> g = test::NormalVector(n, 1), u = test::NormalVector(n, 2);
  test::OnEveryTarget([&](const char* target) {
    std::vector<float> next = u;
    kernels::AddMomentum(g.data(), next.data(), n, 0.9f, next.data());
    for (size_t i = 0; i < n; ++i) {
      const float product = 0.9f * u[i];
      ASSERT_EQ(next[i], product + g[i]) << target << " " << i;
    }
  });
}

TEST(TailKernelsTest, CodesAndErrorsAreThoseOfTheFormulaOnEveryTarget) {
  for (const int levels : {127, 7}) {
    std::vector<float> values = test::NormalVector(203, 5);
    float low = 1e9f, high = 0;
    for (float& v : values) {
      v = std::copysign(std::abs(v) + 0.5f, v);
      low = std::min(low, std::abs(v));
      high = std::max(high, std::abs(v));
    }
    const float step = (high - low) / static_cast<float>(levels), inverse = 1.0f / step;
    test::OnEveryTarget([&](const char* target) {
      std::vector<float> errors = values;
      std::vector<uint8_t> codes(values.size());
      kernels::QuantiseMagnitudes(errors.data(), errors.size(),
                                  {.low = low, .step = step, .levels = levels}, codes.data());
      for (size_t i = 0; i < values.size(); ++i) {
        const float scaled = (std::abs(values[i]) - low) * inverse;
        const int level = std::min(levels, static_cast<int>(std::floor(scaled + 0.5f)));
        ASSERT_EQ(codes[i], level | (values[i] < 0 ? levels + 1 : 0)) << target << " " << i;
        const float product = static_cast<float>(level) * step;
        ASSERT_EQ(errors[i], values[i] - std::copysign(low + product, values[i])) << target;
      }
    });
  }
}

}  // namespace
}  // namespace weir
