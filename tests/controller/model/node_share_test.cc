// SPDX-License-Identifier: Apache-2.0
// By hand; tests/datapath/collective/node_traffic_test.cc compares with real runs.

#include "controller/model/node_share.h"

#include <gtest/gtest.h>

#include "controller/model/node_layout.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

const std::vector<int> kFourOfFour = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};

TEST(NodeShareTest, DoublingBeginsWithinNodesAndThenCrossesWithAllRanksAtOnce) {
  // Two rounds within, two across with four payloads each; alone, four rounds of one payload.
  const NodeShare share = ShareOf("doubling", kFourOfFour);
  EXPECT_DOUBLE_EQ(share.payloads, 8.0 / 4);
  EXPECT_DOUBLE_EQ(share.latencies_within, 2);
  EXPECT_DOUBLE_EQ(share.payloads_within, 2);
  // Ranks that alternate cross in the first round alone.
  const NodeShare alternating = ShareOf("doubling", {0, 1, 0, 1, 0, 1, 0, 1});
  EXPECT_DOUBLE_EQ(alternating.payloads, 4.0 / 3);
  EXPECT_DOUBLE_EQ(alternating.latencies_within, 2);
}

TEST(NodeShareTest, StarAndPairsLeaveOutTheNodesOwnRanks) {
  EXPECT_DOUBLE_EQ(ShareOf("star", kFourOfFour).payloads, 12.0 / 15);
  EXPECT_DOUBLE_EQ(ShareOf("pairs", kFourOfFour).payloads, 4 * 12.0 / 15);
  EXPECT_DOUBLE_EQ(ShareOf("star", {0, 0, 0}).payloads, 0);
}

TEST(NodeShareTest, PatternsThatAreNotKnownShareNothing) {
  for (const char* pattern : {"", "of next year"}) {
    const NodeShare share = ShareOf(pattern, kFourOfFour);
    EXPECT_EQ(share.payloads, 1);
    EXPECT_EQ(share.latencies_within, 0);
    EXPECT_EQ(share.payloads_within, 0);
  }
  EXPECT_EQ(ShareOf("doubling", {0}).payloads, 1);
}

TEST(NodeShareTest, RoundsWithinNodesTakeWhatNodesTake) {
  CollectiveModel doubling = test::Collective("recursive_doubling", "lanes");
  doubling.latency.log2_n = doubling.payload.log2_n = doubling.reduce.log2_n = 1;
  doubling.payload_pattern = "doubling";
  const CollectiveFeatures f = FeaturesOf(doubling, 16, LayoutOf({kFourOfFour, 1e-6, 1e-10}));
  EXPECT_DOUBLE_EQ(f.latency, 2);
  EXPECT_DOUBLE_EQ(f.within_latency_s, 2e-6);
  EXPECT_DOUBLE_EQ(f.payload, 8);
  EXPECT_DOUBLE_EQ(f.within_s_per_byte, 2e-10);
  EXPECT_DOUBLE_EQ(f.reduce, 4);
}

}  // namespace
}  // namespace weir
