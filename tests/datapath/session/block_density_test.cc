// SPDX-License-Identifier: Apache-2.0
// The block densities that ranks report of their gradients and sums.

#include <gtest/gtest.h>

#include "tests/datapath/session/session_world.h"

namespace weir::testing {
namespace {

constexpr size_t kDensityElements = 64 * 100;

TEST(BlockDensitySessionTest, RanksReportTheirOwnAndTheUnionsBlocks) {
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define({{"w", kDensityElements}});
  // Each rank has ten blocks, five of which are the same on both.
  std::vector<std::vector<float>> data(2, std::vector<float>(kDensityElements));
  for (size_t block = 0; block < 10; ++block) {
    data[0][64 * block] = 1;
    data[1][64 * (block + 5) + 63] = -2;
  }
  job.Begin();
  job.AllReduce(key, data);
  job.End();
  job.Begin();  // sends the last step's report
  job.End();
  for (int rank = 0; rank < 2; ++rank) {
    const auto reports = job.ports[rank]->All<StepReport>();
    ASSERT_FALSE(reports.empty());
    bool found = false;
    for (const BlockDensity& density : reports[0].block_densities) {
      EXPECT_EQ(density.bucket, key);
      if (density.block_elements != 64) continue;
      found = true;
      EXPECT_DOUBLE_EQ(density.own, 0.10);
      EXPECT_DOUBLE_EQ(density.combined, 0.15);
    }
    EXPECT_TRUE(found);
  }
}

}  // namespace
}  // namespace weir::testing
