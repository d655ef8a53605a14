// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/maximum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

// Returns each rank's result of AllReduceMax over the inputs that `value` gives.
std::vector<std::vector<float>> Maxima(int world_size, size_t n,
                                       const std::function<float(int rank, size_t i)>& value) {
  World world = MakeWorld("inproc", world_size);
  std::vector<std::vector<float>> all(world.size(), std::vector<float>(n));
  RunRanks(world_size, [&](int rank) {
    Group group(*world[rank], 1 << 16);
    group.Begin({.plan_version = 1, .op_sequence = 1, .bucket = 0}, {}, 0, Within(10));
    for (size_t i = 0; i < n; ++i) all[rank][i] = value(rank, i);
    ASSERT_TRUE(AllReduceMax(group, all[rank]).ok());
  });
  return all;
}

// Few values are sent to all ranks at once, many in rounds; 5 x 4000 floats are more than 64 KiB.
constexpr size_t kFewAndMany[] = {0, 1, 7, 3000, 4000, 20'001};

TEST(MaximumTest, EveryElementIsTheGreatestOfAllRanks) {
  for (const int world : {1, 2, 5}) {
    for (const size_t n : kFewAndMany) {
      const auto value = [&](int rank, size_t i) {
        return rank == static_cast<int>(i % world) ? -1.5f : -2.0f - static_cast<float>(rank);
      };
      for (const auto& found : Maxima(world, n, value)) {
        EXPECT_EQ(found, std::vector<float>(n, -1.5f)) << world << " ranks, " << n;
      }
    }
  }
}

TEST(MaximumTest, KeepsNanAndInfinityWhereTheyAre) {
  for (const float special :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t n : {size_t{5}, size_t{9000}}) {
      for (int where = 0; where < 3; ++where) {
        const auto value = [&](int rank, size_t i) {
          return rank == where && i == 3 ? special : 1e30f;
        };
        for (const auto& found : Maxima(3, n, value)) {
          for (size_t i = 0; i < n; ++i) {
            ASSERT_EQ(std::isnan(found[i]), i == 3 && std::isnan(special)) << i;
            ASSERT_EQ(std::isinf(found[i]), i == 3 && std::isinf(special)) << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weir::testing
