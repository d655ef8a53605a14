// SPDX-License-Identifier: Apache-2.0
// The choice of shares, when a change is worth it, and their description.

#include "controller/model/shard_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "datapath/base/random.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

/// Four ranks on hosts of their own with 100 MB of float32 in 16 segments a shard; rank 3's host
/// has `slow` of the others' rate.
Snapshot WithSlowHost(double slow, int world = 4) {
  Snapshot snapshot = test::MakeSnapshot(world, 1e-4, slow * 1e8);
  snapshot.buckets[0].elements = 25'000'000;
  CollectiveModel mesh = test::Collective("mesh", "lanes");
  mesh.shard_segment_bytes = static_cast<uint32_t>(4 * 25'000'000 / world / 16);
  snapshot.collectives.push_back(mesh);
  for (int a = 0; a < world; ++a) {
    snapshot.node_links.nodes.push_back(a);
    for (int b = 0; b < world; ++b) {
      const double rate = 1e8 * (a == 3 || b == 3 ? slow : 1);
      snapshot.node_links.s_per_byte.push_back(a == b ? 0 : 1 / rate);
    }
  }
  return snapshot;
}

TEST(ShardChoiceTest, ASlowHostOwnsLittle) {
  const Snapshot snapshot = WithSlowHost(0.1);
  const ShardChoice choice = ChooseShards(snapshot);
  ASSERT_EQ(choice.shares.size(), 4u);
  EXPECT_TRUE(AreShardShares(choice.shares, 4));
  EXPECT_LT(choice.shares[3], kShareUnits / 100);
  for (const int rank : {0, 1, 2}) EXPECT_NEAR(choice.shares[rank], kShareUnits / 3.0, 100);
  EXPECT_NEAR(choice.speedup, 1.5 / (1 + 1.0 / 16), 0.01);
  const std::string text = ShardText(DescribeShards(snapshot, choice.shares));
  EXPECT_THAT(text,
              HasSubstr("ranks own 33 33 33 0 % of a bucket, which moves 1.41 times as fast"));
  EXPECT_THAT(text, HasSubstr("rank 3 owns least, its fastest link gives 80 Mb/s"));
  EXPECT_THAT(text, HasSubstr("800 Mb/s"));
}

TEST(ShardChoiceTest, EqualLinksStayEvenWhateverTheNoise) {
  EXPECT_TRUE(ChooseShards(WithSlowHost(1)).shares.empty());
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    Snapshot snapshot = WithSlowHost(1, 3 + round % 6);
    for (double& cost : snapshot.node_links.s_per_byte) cost *= std::exp(0.1 * random.Normal());
    snapshot.node_links.relative_deviation = 0.1;
    const ShardChoice choice = ChooseShards(snapshot);
    EXPECT_TRUE(choice.shares.empty())
        << round << ": " << ShardText(DescribeShards(snapshot, choice.shares));
    EXPECT_EQ(choice.speedup, 1);
  }
}

TEST(ShardChoiceTest, UncertainOrSmallDifferencesChangeNothing) {
  EXPECT_TRUE(ChooseShards(WithSlowHost(0.9)).shares.empty());
  Snapshot snapshot = WithSlowHost(0.6);
  EXPECT_FALSE(ChooseShards(snapshot).shares.empty());
  snapshot.node_links.relative_deviation = 0.3;
  EXPECT_TRUE(ChooseShards(snapshot).shares.empty());
  // A tenth is a tenth, even when each rate may be wrong by a half.
  snapshot = WithSlowHost(0.1);
  snapshot.node_links.relative_deviation = 0.5;
  EXPECT_FALSE(ChooseShards(snapshot).shares.empty());
}

TEST(ShardChoiceTest, SmallBucketsHaveNothingToOverlap) {
  Snapshot snapshot = WithSlowHost(0.1);
  snapshot.buckets[0].elements = 1000;
  EXPECT_EQ(UnpipelinedShare(snapshot.buckets, snapshot.collectives, 4), 1);
  EXPECT_TRUE(ChooseShards(snapshot).shares.empty());
  for (CollectiveModel& one : snapshot.collectives) one.shard_segment_bytes = 0;
  snapshot.buckets[0].elements = 25'000'000;
  EXPECT_EQ(UnpipelinedShare(snapshot.buckets, snapshot.collectives, 4), 1);
  EXPECT_TRUE(ChooseShards(snapshot).shares.empty());
}

TEST(ShardChoiceTest, LinksThatNobodyMeasuredAttractNoShares) {
  Snapshot snapshot = WithSlowHost(0.1);
  snapshot.node_links.s_per_byte[1] = -1;
  EXPECT_TRUE(ChooseShards(snapshot).shares.empty());
  EXPECT_EQ(ShardSecondsPerByte(snapshot.node_links, {}, 0), 0);
  snapshot.node_links = {};
  EXPECT_TRUE(ChooseShards(snapshot).shares.empty());
}

TEST(ShardChoiceTest, SharesThatRunStayUntilOthersAreClearlyBetter) {
  Snapshot snapshot = WithSlowHost(0.1);
  snapshot.layout.shard_shares = {20000, 20000, 20000, 5536};
  snapshot.speedup.shards = 1.3;
  // Almost as good: they stay, and what is predicted with them does.
  snapshot.layout.shard_shares = {21800, 21800, 21800, 136};
  EXPECT_EQ(ChooseShards(snapshot).shares, snapshot.layout.shard_shares);
  EXPECT_EQ(ChooseShards(snapshot).speedup, 1.3);
  // Another host has become the slow one.
  snapshot.layout.shard_shares = {0, 21846, 21845, 21845};
  const ShardChoice other = ChooseShards(snapshot);
  EXPECT_LT(other.shares[3], other.shares[0]);
  EXPECT_GT(other.speedup, 1.1 * 1.3);
  // The links are alike again: even shares, though they gain less than others would have to.
  snapshot = WithSlowHost(1);
  snapshot.layout.shard_shares = {21846, 21845, 21845, 0};
  snapshot.speedup.shards = 1.4;
  const ShardChoice even = ChooseShards(snapshot);
  EXPECT_TRUE(even.shares.empty());
  EXPECT_GT(even.speedup, 1.05 * 1.4);
}

TEST(ShardChoiceTest, RanksOfANodeOwnAlike) {
  Snapshot snapshot = WithSlowHost(0.1);
  // Nodes 0 and 1 with two ranks each, 2 and 3 with one.
  snapshot.world = 6;
  snapshot.node_links.nodes = {0, 1, 2, 0, 3, 1};
  const ShardChoice choice = ChooseShards(snapshot);
  ASSERT_EQ(choice.shares.size(), 6u);
  EXPECT_EQ(std::accumulate(choice.shares.begin(), choice.shares.end(), 0u), kShareUnits);
  EXPECT_NEAR(choice.shares[0], choice.shares[3], 1);
  EXPECT_NEAR(choice.shares[1], choice.shares[5], 1);
  EXPECT_LT(choice.shares[4], kShareUnits / 50);
}

TEST(ShardChoiceTest, SnapshotsThatDoNotFitAreRefused) {
  Snapshot snapshot = WithSlowHost(0.1);
  EXPECT_TRUE(CheckShards(snapshot).ok());
  snapshot.layout.shard_shares = {kShareUnits, 0, 0};
  EXPECT_THAT(Message(CheckShards(snapshot)), HasSubstr("a share of each of 4 ranks"));
  snapshot.layout.shard_shares = {kShareUnits, 1, 0, 0};
  EXPECT_THAT(Message(CheckShards(snapshot)), HasSubstr("found 4 with a sum of 65537"));
  snapshot.layout.shard_shares = {kShareUnits, 0, 0, 0};
  EXPECT_TRUE(CheckShards(snapshot).ok());
  snapshot.speedup.shards = 0;
  EXPECT_THAT(Message(CheckShards(snapshot)), HasSubstr("shard_speedup"));
}

TEST(ShardChoiceTest, LongListsAreShownInPart) {
  const std::vector<uint32_t> shares(32, kShareUnits / 32);
  EXPECT_EQ(ShareText(shares), "3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 ... % of 32");
}

}  // namespace
}  // namespace weir
