// SPDX-License-Identifier: Apache-2.0
#include "controller/model/deterministic_math.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weir {
namespace {

TEST(DeterministicMathTest, AgreesWithTheLibrary) {
  for (double x = 1e-12; x < 1e12; x *= 1.37) {
    EXPECT_NEAR(DetLog(x), std::log(x), 1e-13 * std::max(1.0, std::fabs(std::log(x)))) << x;
  }
  for (double x = -60; x < 60; x += 0.317) {
    EXPECT_NEAR(DetExp(x) / std::exp(x), 1, 1e-12) << x;
  }
  for (double z = -6; z < 6; z += 0.1) {
    EXPECT_NEAR(DetNormalCdf(z), 0.5 * std::erfc(-z / std::sqrt(2)), 2e-7) << z;
  }
}

TEST(DeterministicMathTest, EdgesAreDefined) {
  EXPECT_EQ(DetLog(1), 0);
  EXPECT_EQ(DetLog(0), -1e9);
  EXPECT_EQ(DetExp(0), 1);
  EXPECT_EQ(DetPow(0.37, 1), 0.37);
  EXPECT_EQ(DetPow(0.37, 0), 1);
  EXPECT_EQ(DetPow(0, 2), 0);
  EXPECT_NEAR(DetPow(2, 0.5), std::sqrt(2), 1e-14);
  EXPECT_EQ(DetNormalCdf(100), 1);
  EXPECT_EQ(DetNormalCdf(-100), 0);
  EXPECT_LT(DetExp(-1e9), 1e-300);
}

}  // namespace
}  // namespace weir
