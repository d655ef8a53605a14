// SPDX-License-Identifier: Apache-2.0
#include "controller/model/node_layout.h"

#include <gtest/gtest.h>

#include "controller/model/cost_model.h"
#include "controller/model/network_model.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

TEST(NodeLayoutTest, CountsNodesAndTheFullestOne) {
  EXPECT_EQ(LayoutOf({}), NodeLayout{});
  const NodeLayout even = LayoutOf({{0, 1, 0, 1, 4, 4}, 3e-6, 2e-10});
  EXPECT_EQ(even, (NodeLayout{3, 2, true, 3e-6, 2e-10, {0, 1, 0, 1, 4, 4}}));
  const NodeLayout uneven = LayoutOf({{0, 0, 0, 3}, 0, 0});
  EXPECT_EQ(uneven,
            (NodeLayout{2, 3, false, kWithinLatencyS, kWithinSecondsPerByte, {0, 0, 0, 3}}));
}

/// 12 MB of float32 over the by-node collective of the fixture: alpha 1 ms, 100 MB/s, gamma 1 ns;
/// within nodes 10 us and 1 GB/s.
double SecondsOn(const std::vector<int>& nodes) {
  Snapshot snapshot;
  snapshot.world = static_cast<int>(nodes.size());
  snapshot.reduce_s_per_byte = 1e-9;
  snapshot.memory = {nodes, 1e-5, 1e-9};
  BucketModel bucket;
  bucket.elements = 3000000;
  return PredictBucket(snapshot, bucket, test::Lanes("identity", 32, false), test::ByNode(), 1)
      .NetworkSeconds(1e-3, 1e-8);
}

TEST(NodeCostTest, EvenNodesAddTheirOwnStepsToThoseOfTheNetwork) {
  // Three nodes of four. Network: 2 * 2 latencies, 2 * 2/3 of 12 MB at 100 MB/s, a quarter of 2/3
  // summed. Node: 2 * 2 latencies of 10 us, 2 * 3/4 of 12 MB at 1 GB/s, 3/4 summed.
  EXPECT_NEAR(SecondsOn({0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}),
              4e-3 + 0.16 + 0.002 + 4e-5 + 0.018 + 0.009, 1e-9);
  // In whatever order.
  EXPECT_NEAR(SecondsOn({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}),
              SecondsOn({0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}), 1e-12);
}

TEST(NodeCostTest, UnevenNodesGoThroughTheirFirstRanks) {
  // Three ranks on the fuller of two nodes. Network: 2 latencies, 12 MB, half of it summed. Node:
  // 2 + 2 latencies, 2 + 2 * 2/3 payloads, 2 summed.
  EXPECT_NEAR(SecondsOn({0, 0, 0, 1}), 2e-3 + 0.12 + 0.006 + 4e-5 + 0.04 + 0.024, 1e-9);
}

TEST(NodeCostTest, RanksThatStandAloneHaveTheNetworkOnly) {
  // 2 * 2 latencies, 2 * 3/4 payloads, 3/4 summed.
  EXPECT_NEAR(SecondsOn({0, 1, 2, 3}), 4e-3 + 0.18 + 0.009, 1e-9);
  const CollectiveFeatures unknown = FeaturesOf(test::ByNode(), 4, NodeLayout{});
  const CollectiveFeatures alone = FeaturesOf(test::ByNode(), 4, LayoutOf({{0, 1, 2, 3}, 1, 1}));
  EXPECT_EQ(unknown.payload, alone.payload);
  EXPECT_EQ(unknown.within_latency_s, 0);
  EXPECT_EQ(alone.within_s_per_byte, 0);
}

TEST(NodeCostTest, ASingleNodeIsTheNetworkThatWasMeasured) {
  EXPECT_NEAR(SecondsOn({0, 0, 0, 0}), 4e-3 + 0.18 + 0.009, 1e-9);
}

TEST(NodeCostTest, RanksOfANodeShareItsInterfaceForPairs) {
  CollectiveModel pairs = test::Collective("mesh", "lanes");
  pairs.latency.constant = 2;
  pairs.payload.n_minus_1_over_n = 2;
  pairs.index.n_minus_1 = 1;
  pairs.all_pairs = true;
  // Two of four: each sends a quarter twice to the two ranks elsewhere.
  const CollectiveFeatures two = FeaturesOf(pairs, 4, LayoutOf({{0, 0, 2, 2}, 0, 0}));
  EXPECT_DOUBLE_EQ(two.payload, 2 * 2 * 2 * 0.25);
  EXPECT_DOUBLE_EQ(two.index, 2 * 2);
  EXPECT_DOUBLE_EQ(two.latency, 2);
  // Six of eight: a fourth of the bytes of six ranks.
  const CollectiveFeatures six = FeaturesOf(pairs, 8, LayoutOf({{0, 0, 0, 0, 0, 0, 6, 7}, 0, 0}));
  EXPECT_DOUBLE_EQ(six.payload, 6 * 2 * 2 * 0.125);
  for (const std::vector<int>& lowest : {std::vector{0, 1, 2, 3}, {0, 0, 0, 0}, {}}) {
    EXPECT_DOUBLE_EQ(FeaturesOf(pairs, 4, LayoutOf({lowest, 0, 0})).payload, 1.5);
  }
}

TEST(NodeCostTest, AllGathersByNodesBringEachPayloadAcrossOnce) {
  CollectiveModel gather = test::Collective("node_all_gather", "opaque");
  gather.latency.constant = gather.payload.n_minus_1 = 1;
  gather.by_node = true;
  gather.within_even = gather.within_uneven = {gather.latency, gather.payload, {}};
  const CollectiveFeatures four = FeaturesOf(gather, 8, LayoutOf({{0, 0, 0, 0, 4, 4, 4, 4}, 0, 0}));
  EXPECT_DOUBLE_EQ(four.payload, 4);
  EXPECT_DOUBLE_EQ(four.latency, 1);
  EXPECT_DOUBLE_EQ(four.within_latency_s, kWithinLatencyS);
  EXPECT_DOUBLE_EQ(four.within_s_per_byte, 2 * 3 * kWithinSecondsPerByte);
  EXPECT_DOUBLE_EQ(FeaturesOf(gather, 4, LayoutOf({{0, 0, 0, 0}, 0, 0})).payload, 3);
  EXPECT_DOUBLE_EQ(FeaturesOf(gather, 4, LayoutOf({{0, 1, 2, 3}, 0, 0})).payload, 3);
}

TEST(NodeCostTest, SumsOfNodesMoveFloatsWithinAndPayloadsAcross) {
  Snapshot snapshot = test::MakeSnapshot(8, 5e-4, 1e8);
  snapshot.reduce_s_per_byte = 1e-9;
  CodecModel codec = test::Selecting("x", "opaque", 16, true);
  codec.encode.per_element_s = 4e-9;
  codec.decode.per_element_s = 1e-9;
  BucketModel bucket;
  bucket.elements = 1000000;
  const CollectiveModel shards = test::NodeSums("node_shards"), sums = test::NodeSums("node_sums");
  const double payload = PredictWireBytes(codec, 1e6, 0.1).payload;
  const auto cost = [&](const CollectiveModel& collective, std::vector<int> lowest_ranks) {
    snapshot.memory.lowest_ranks = std::move(lowest_ranks);
    return PredictBucket(snapshot, bucket, codec, collective, 0.1);
  };
  // Two nodes of four. Four ranks encode a fourth each and decode two of that size.
  const BucketCost four = cost(shards, {0, 0, 0, 0, 4, 4, 4, 4});
  EXPECT_EQ(four.encode_fixed_s, 0);
  EXPECT_EQ(four.decode_s, 0);
  EXPECT_DOUBLE_EQ(four.network_alphas, 1);
  EXPECT_NEAR(four.network_beta_bytes, payload, 1e-6);
  EXPECT_NEAR(four.network_fixed_s,
              1e-3 + 2 * 0.25e-3 + 2 * kWithinLatencyS + 1.5 * 4e6 * kWithinSecondsPerByte +
                  0.75 * 4e6 * 1e-9,
              1e-9);
  // The first ranks encode and decode all of it.
  const BucketCost first = cost(sums, {0, 0, 0, 0, 4, 4, 4, 4});
  EXPECT_NEAR(first.network_beta_bytes, payload, 1e-6);
  EXPECT_NEAR(
      first.network_fixed_s,
      4e-3 + 2e-3 + 4 * kWithinLatencyS + 4.5 * 4e6 * kWithinSecondsPerByte + 3 * 4e6 * 1e-9, 1e-9);
  // The loss happens once, however many ranks a node has.
  EXPECT_DOUBLE_EQ(four.gain, PredictGain(codec, test::Collective("g", "opaque"), bucket, 0.1, 8));
  // Uneven nodes are the first ranks' in both orders, ranks that stand alone nodes of one.
  const std::vector<int> uneven = {0, 0, 0, 0, 0, 5, 5, 5}, alone = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_DOUBLE_EQ(cost(shards, uneven).network_fixed_s, cost(sums, uneven).network_fixed_s);
  EXPECT_NEAR(cost(shards, alone).network_beta_bytes, 7 * payload, 1e-6);
  EXPECT_NEAR(cost(shards, alone).network_fixed_s, 4e-3 + 8e-3, 1e-9);
  // One node is the network that was measured, and carries floats alone.
  const BucketCost one = cost(shards, std::vector<int>(8, 0));
  EXPECT_NEAR(one.network_beta_bytes, 2 * 7.0 / 8 * 4e6, 1e-6);
  EXPECT_DOUBLE_EQ(one.network_alphas, 2);
}

// The mean of the times that all ranks report must give the times of one bucket again.
TEST(NodeCostTest, WorkOnSumsOfNodesIsThatOfTheMeanRank) {
  const CodecModel codec = test::Selecting("x", "opaque", 16, true);
  const NodeLayout even = LayoutOf({{0, 0, 0, 0, 4, 4, 4, 4}, 0, 0});
  for (const char* form : {"node_sums", "node_shards"}) {
    const CodecWork work = WorkOf(codec, test::NodeSums(form), 8, even);
    EXPECT_DOUBLE_EQ(work.MeanEncodes(), 0.25) << form;
    EXPECT_DOUBLE_EQ(work.MeanDecodes(), 0.5) << form;
    EXPECT_DOUBLE_EQ(work.payload_share, 0.25) << form;
  }
  const CodecWork gathered = WorkOf(codec, test::Collective("g", "opaque"), 8, even);
  EXPECT_DOUBLE_EQ(gathered.MeanEncodes(), 1);
  EXPECT_DOUBLE_EQ(gathered.MeanDecodes(), 8);
}

TEST(NodeCostTest, EachRankOfANodeSendsToTheAggregator) {
  CollectiveModel offload = test::Collective("switchml", "float_lanes");
  offload.payload.constant = 1;
  EXPECT_DOUBLE_EQ(FeaturesOf(offload, 4, LayoutOf({{0, 0, 2, 2}, 0, 0})).payload, 1);
  offload.needs_lease = true;
  EXPECT_DOUBLE_EQ(FeaturesOf(offload, 4, LayoutOf({{0, 0, 2, 2}, 0, 0})).payload, 2);
  EXPECT_DOUBLE_EQ(FeaturesOf(offload, 4, LayoutOf({{0, 1, 2, 3}, 0, 0})).payload, 1);
}

TEST(NodeCostTest, PayloadsGoAroundARingWhereRanksShareAnInterface) {
  const auto seconds = [](const CollectiveModel& collective, std::vector<int> lowest_ranks) {
    Snapshot snapshot = test::MakeSnapshot(8, 5e-4, 1e8);
    snapshot.memory.lowest_ranks = std::move(lowest_ranks);
    return PredictBucket(snapshot, snapshot.buckets[0], test::Selecting("x", "opaque", 16, true),
                         collective, 0.1)
        .NetworkSeconds(5e-4, 1e-8);
  };
  CollectiveModel pairs = test::Collective("pairs", "opaque");
  pairs.latency.constant = pairs.payload.n_minus_1 = 1;
  pairs.all_pairs = true;
  CollectiveModel ring = test::Collective("ring", "opaque");
  ring.latency.n_minus_1 = ring.payload.n_minus_1 = 1;
  // 4 * 4 payloads leave each node between all pairs, 7 around the ring.
  const std::vector<int> shared = {0, 0, 0, 0, 4, 4, 4, 4}, alone = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_LT(seconds(ring, shared), 0.6 * seconds(pairs, shared));
  EXPECT_GT(seconds(ring, alone), seconds(pairs, alone));
}

TEST(NodeCostTest, CollectivesThatKnowNoNodesCostTheSameOnAny) {
  const CollectiveModel ring = test::Collectives()[0];
  const CollectiveFeatures shared = FeaturesOf(ring, 4, LayoutOf({{0, 0, 2, 2}, 0, 0}));
  EXPECT_EQ(shared.latency, ring.latency.At(4));
  EXPECT_EQ(shared.payload, ring.payload.At(4));
  EXPECT_EQ(shared.reduce, ring.reduce.At(4));
  EXPECT_EQ(shared.within_s_per_byte, 0);
}

TEST(NodeCostTest, MemoryThatDoesNotFitTheWorldIsRefused) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-3, 1e8);
  EXPECT_TRUE(CheckMemory(snapshot).ok());
  snapshot.memory.lowest_ranks = {0, 0, 2, 2};
  EXPECT_TRUE(CheckMemory(snapshot).ok());
  for (const std::vector<int>& wrong : {std::vector{0, 0, 2}, {0, 0, 2, 4}, {0, -1, 2, 2}}) {
    snapshot.memory.lowest_ranks = wrong;
    EXPECT_EQ(CheckMemory(snapshot).code(), StatusCode::kInvalidArgument);
  }
}

TEST(NodeCostTest, TheFilterPredictsSumsOfNodesAsTheCostModelDoes) {
  const std::vector<CollectiveModel> orders = {test::NodeSums("node_shards"),
                                               test::NodeSums("node_sums")};
  CodecModel codec = test::Selecting("x", "opaque", 16, true);
  codec.encode = codec.decode = {};
  for (const std::vector<int>& lowest : {std::vector{0, 0, 2, 2}, {0, 0, 0, 3}, {0, 0, 0, 0}}) {
    NetworkModel network(4);
    network.SetCollectives(orders);
    for (int rank = 0; rank < 4; ++rank) network.SetLowestRank(rank, lowest[rank]);
    for (int order = 0; order < 2; ++order) {
      Snapshot snapshot;
      snapshot.world = 4;
      snapshot.collectives = orders;
      network.filter().Calibrate(order, &snapshot.collectives[order]);
      snapshot.reduce_s_per_byte = network.filter().gamma_s_per_byte();
      snapshot.memory = network.memory();
      BucketModel bucket;
      bucket.elements = 1000000;
      const double predicted =
          PredictBucket(snapshot, bucket, codec, snapshot.collectives[order], 0.1)
              .NetworkSeconds(network.filter().alpha_s(), network.filter().beta_s_per_byte());
      CollectiveSample sample;
      sample.collective = order;
      sample.payload_bytes = PredictWireBytes(codec, 1e6, 0.1).payload;
      sample.dense_bytes = 4e6;
      EXPECT_NEAR(network.filter().Predict(sample) / predicted, 1, 1e-9) << order;
    }
  }
}

TEST(NodeCostTest, TheFilterPredictsWhatTheCostModelDoes) {
  NetworkModel network(4);
  network.SetCollectives({test::ByNode()});
  for (int rank = 0; rank < 4; ++rank) network.SetLowestRank(rank, rank / 2 * 2);
  network.SetLowestRank(3, 4);  // nobody
  network.SetLowestRank(4, 0);
  LinkObservation within;
  within.source_node = within.target_node = "a";
  within.method = "tcp_info";
  within.rtt_s = 4e-5;
  within.bandwidth_bytes_per_s = 5e8;
  network.AddLink(1, within);
  EXPECT_EQ(network.memory().lowest_ranks, (std::vector{0, 0, 2, 2}));
  EXPECT_NEAR(network.memory().latency_s, 2e-5, 1e-12);
  EXPECT_NEAR(network.memory().s_per_byte, 2e-9, 1e-16);
  Snapshot snapshot;
  snapshot.world = 4;
  snapshot.collectives = {test::ByNode()};
  network.filter().Calibrate(0, &snapshot.collectives[0]);
  snapshot.reduce_s_per_byte = network.filter().gamma_s_per_byte();
  snapshot.memory = network.memory();
  BucketModel bucket;
  bucket.elements = 1000000;
  const BucketCost cost = PredictBucket(snapshot, bucket, test::Lanes("identity", 32, false),
                                        snapshot.collectives[0], 1);
  const double predicted =
      cost.NetworkSeconds(network.filter().alpha_s(), network.filter().beta_s_per_byte());
  EXPECT_NEAR(network.filter().Predict({0, 1, 4e6, 0, 0}) / predicted, 1, 1e-9);
  // Half of the bytes cross; the other half goes at 500 MB/s.
  EXPECT_NEAR(cost.network_beta_bytes, 4e6, 1);
  EXPECT_GT(cost.network_fixed_s, 8e-3);
}

TEST(NodeCostTest, TheNetworksBandwidthIsLearntFromCollectivesByNodes) {
  CollectiveModel by_node = test::ByNode();
  NetworkModel network(8);
  network.SetCollectives({by_node});
  for (int rank = 0; rank < 8; ++rank) network.SetLowestRank(rank, rank / 4 * 4);
  const NodeLayout layout = LayoutOf(network.memory());
  const CollectiveFeatures f = FeaturesOf(by_node, 8, layout);
  constexpr double kAlpha = 5e-4, kBeta = 1 / 2e7, kOverhead = 3e-4, kGamma = 2e-10;
  for (int step = 0; step < 80; ++step) {
    std::vector<CollectiveSample> samples;
    for (const double bytes : {2e5, 4e6, 1e6}) {
      CollectiveSample sample;
      sample.payload_bytes = bytes;
      sample.seconds = kOverhead + f.latency * kAlpha + f.payload * bytes * kBeta +
                       f.within_latency_s + f.within_s_per_byte * bytes + f.reduce * kGamma * bytes;
      samples.push_back(sample);
    }
    network.AddStep(0.2 * step, samples, 0.5);
  }
  EXPECT_NEAR(std::log(network.filter().beta_s_per_byte() / kBeta), 0, 0.2);
}

}  // namespace
}  // namespace weir
