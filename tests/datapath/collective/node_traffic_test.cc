// SPDX-License-Identifier: Apache-2.0
// The planners' model of the load of an interface that ranks of one node share, compared with the
// bytes of real runs, which are counted by pairs of ranks and added up by nodes.

#include <deque>
#include <map>

#include "controller/model/cost_model.h"
#include "datapath/base/mutex.h"
#include "datapath/codec/codec_names.h"
#include "tests/controller/support/model_fixture.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

// For messages in flight: how many messages between nodes had to come before each could arrive.
struct CrossingNetwork {
  std::vector<int> nodes;  // of all ranks
  Mutex mutex;
  std::map<std::pair<int, int>, std::deque<int>> in_flight WEIR_GUARDED_BY(mutex);
};

// Counts the bytes that one rank sends to each other one, and the longest chain of messages between
// nodes that precedes its state.
class PairCountingTransport : public Transport {
 public:
  PairCountingTransport(Transport& inner, CrossingNetwork& network)
      : inner_(inner), network_(network), sent(network.nodes.size()) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  const TransportAddress& address() const override { return inner_.address(); }
  Status Connect(const std::vector<TransportAddress>&, TimePoint) override { return OkStatus(); }
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override {
    sent[peer] += static_cast<double>(payload.size());
    {
      MutexLock lock(network_.mutex);
      const bool crosses = network_.nodes[peer] != network_.nodes[rank()];
      network_.in_flight[{rank(), peer}].push_back(crossings + crosses);
    }
    return inner_.PostSend(peer, header, payload);
  }
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override {
    WEIR_ASSIGN_OR_RETURN(const Ticket ticket, inner_.PostReceive(peer, buffer));
    senders_[ticket] = peer;
    return ticket;
  }
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override {
    WEIR_ASSIGN_OR_RETURN(const FrameHeader header, inner_.Wait(ticket, deadline));
    const auto sender = senders_.find(ticket);
    if (sender == senders_.end()) return header;
    MutexLock lock(network_.mutex);
    std::deque<int>& waiting = network_.in_flight[{sender->second, rank()}];
    crossings = std::max(crossings, waiting.front());
    waiting.pop_front();
    senders_.erase(sender);
    return header;
  }
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket>, TimePoint) override {
    return Unimplemented("collectives wait for one message at a time");
  }
  void Wake() override { inner_.Wake(); }
  void Abort(std::string_view reason) override { inner_.Abort(reason); }
  void Abandon(std::string_view reason) override { inner_.Abandon(reason); }
  void Interrupt() override { inner_.Interrupt(); }
  std::vector<PathSample> Samples() const override { return {}; }
  uint64_t bytes_sent() const override { return inner_.bytes_sent(); }

 private:
  Transport& inner_;
  CrossingNetwork& network_;
  std::map<Ticket, int> senders_;

 public:
  std::vector<double> sent;  // bytes of payload to each rank
  int crossings = 0;
};

struct Counted {
  double payloads = 0;  // through the busier side of the busiest node's interface
  int crossings = 0;    // the longest chain of messages between nodes
};

// Divides by every world size below. Index payloads and values are as large as lanes.
constexpr size_t kTrafficCount = 5 * 7 * 9 * 16 * 11;

Counted CountTraffic(const Collective& collective, const std::vector<int>& nodes, bool knows_nodes,
                     size_t count = kTrafficCount) {
  const int world_size = static_cast<int>(nodes.size());
  CrossingNetwork network;
  network.nodes = nodes;
  World inner = MakeWorld("inproc", world_size);
  std::vector<std::unique_ptr<PairCountingTransport>> world;
  for (auto& transport : inner) {
    world.push_back(std::make_unique<PairCountingTransport>(*transport, network));
  }
  std::vector<Outcome> out(world_size);
  RunRanks(world_size, [&](int rank) {
    Contribution in;
    in.dense.assign(count, 1);
    in.lanes = in.payload = Bytes(in.dense);
    if (knows_nodes) in.nodes = nodes;
    for (uint32_t i = 0; i < count; ++i) in.selection.push_back(i);
    out[rank] = RunRank(*world[rank], collective, in, 64 << 10, Within(120));
  });
  std::map<int, double> sent, received;
  Counted counted;
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_TRUE(out[rank].status.ok()) << out[rank].status;
    counted.crossings = std::max(counted.crossings, world[rank]->crossings);
    for (int peer = 0; peer < world_size; ++peer) {
      if (nodes[rank] == nodes[peer]) continue;
      sent[nodes[rank]] += world[rank]->sent[peer];
      received[nodes[peer]] += world[rank]->sent[peer];
    }
  }
  const double payload_bytes = sizeof(float) * static_cast<double>(count);
  for (const auto& [node, bytes] : sent) {
    counted.payloads =
        std::max({counted.payloads, bytes / payload_bytes, received[node] / payload_bytes});
  }
  return counted;
}

WorldFunctionModel ModelOf(const WorldFunction& f) {
  return {f.constant, f.n_minus_1, f.n_minus_1_over_n, f.log2_n, f.n};
}

WithinNodeModel ModelOf(const WithinNodeCost& c) {
  return {ModelOf(c.latency), ModelOf(c.payload), ModelOf(c.reduce)};
}

/// The collective as ranks describe it to planners.
CollectiveModel ModelOf(const CollectiveTraits& traits) {
  CollectiveModel model;
  model.name = traits.name;
  model.form = traits.form;
  model.exchange.gathers = traits.form == "opaque";
  model.latency = ModelOf(traits.cost.latency);
  model.payload = ModelOf(traits.cost.payload);
  model.index = ModelOf(traits.cost.index);
  model.reduce = ModelOf(traits.cost.reduce);
  model.all_pairs = traits.all_pairs;
  model.payload_pattern = traits.payload_pattern;
  model.index_pattern = traits.index_pattern;
  model.by_node = traits.node_cost.by_node;
  model.within_even = ModelOf(traits.node_cost.even);
  model.within_uneven = ModelOf(traits.node_cost.uneven);
  return model;
}

/// The nodes of consecutive ranks, sizes[i] of them on the i-th. Each node has the number of its
/// lowest rank.
std::vector<int> Blocks(const std::vector<int>& sizes) {
  std::vector<int> nodes;
  for (const int size : sizes) nodes.insert(nodes.end(), size, static_cast<int>(nodes.size()));
  return nodes;
}

// With few ranks the thread sanitizer finds the same races as with many, in a tenth of the time.
#ifdef __SANITIZE_THREAD__
constexpr size_t kTrafficWorldMax = 4;
#else
constexpr size_t kTrafficWorldMax = 16;
#endif

const std::vector<std::vector<int>> kBlocks = {
    {2, 2}, {3, 1},    {1, 2, 1}, {4, 4},       {2, 2, 2, 2}, {3, 3, 3}, {2, 3},
    {5, 2}, {4, 4, 4}, {6, 6},    {4, 4, 4, 4}, {1, 7, 3, 5}, {8, 8},    {3, 2, 4, 2}};

class NodeTrafficTest : public ::testing::TestWithParam<std::string> {
 protected:
  const Collective& collective() const { return **Collectives().Find(GetParam()); }
  const CollectiveTraits& traits() const { return collective().Traits(); }
  void ExpectAsCounted(const std::vector<int>& nodes) const {
    SCOPED_TRACE(::testing::PrintToString(nodes));
    const int world = static_cast<int>(nodes.size());
    const CollectiveFeatures features =
        FeaturesOf(ModelOf(traits()), world, LayoutOf({nodes, 0, 0}));
    const bool indexed = MovesIndices(traits().form);
    const double predicted = features.payload + (indexed ? features.index : 0);
    const double counted = CountTraffic(collective(), nodes, false).payloads;
    // The features of trees are those of four ranks and more, an upper bound for fewer.
    const double least = GetParam() == "tree" && world < 4 ? 0.5 : 0.99;
    EXPECT_LE(counted, predicted * 1.01);
    EXPECT_GE(counted, predicted * least);
  }
};

TEST_P(NodeTrafficTest, IsWhatPlannersPredict) {
  for (const std::vector<int>& sizes : kBlocks) {
    const std::vector<int> nodes = Blocks(sizes);
    if (nodes.size() <= kTrafficWorldMax) ExpectAsCounted(nodes);
  }
}

TEST_P(NodeTrafficTest, AndWhereRanksAreNotConsecutive) {
  if (traits().uses_ring_order) return;  // the ring order of a plan takes care of that
  ExpectAsCounted({0, 1, 0, 1});
  ExpectAsCounted({0, 1, 1, 0, 0});
  if (kTrafficWorldMax >= 8) ExpectAsCounted({0, 1, 2, 0, 1, 2, 0, 1});
}

TEST_P(NodeTrafficTest, OfRanksThatStandAloneIsTheFeatureItself) {
  const CollectiveModel model = ModelOf(traits());
  for (int world = 2; world <= 16; ++world) {
    std::vector<int> alone(world);
    for (int rank = 0; rank < world; ++rank) alone[rank] = rank;
    for (const NodeLayout& layout : {NodeLayout{}, LayoutOf({alone, 0, 0})}) {
      const CollectiveFeatures features = FeaturesOf(model, world, layout);
      EXPECT_EQ(features.payload, model.payload.At(world));
      EXPECT_EQ(features.index, model.index.At(world));
      EXPECT_EQ(features.latency, model.latency.At(world));
      EXPECT_EQ(features.within_latency_s, 0);
      EXPECT_EQ(features.within_s_per_byte, 0);
    }
  }
}

// The longest chain of messages between nodes is the number of latencies: exactly for powers of
// two, and within two otherwise, as for the features themselves.
TEST_P(NodeTrafficTest, CrossesAsManyTimesInTurnAsPlannersPredict) {
  if (traits().uses_ring_order) return;  // all of its latencies count as the network's
  for (const std::vector<int>& sizes : kBlocks) {
    const std::vector<int> nodes = Blocks(sizes);
    if (nodes.size() > kTrafficWorldMax) continue;
    SCOPED_TRACE(::testing::PrintToString(sizes));
    const int world = static_cast<int>(nodes.size());
    const NodeLayout layout = LayoutOf({nodes, 0, 0});
    const double predicted = FeaturesOf(ModelOf(traits()), world, layout).latency;
    const double tolerance = std::has_single_bit(nodes.size()) ? 0 : 2;
    EXPECT_NEAR(CountTraffic(collective(), nodes, false, 1584).crossings, predicted, tolerance);
  }
}

// cost_test.cc covers collectives by nodes, through aggregators and with their own coded positions.
std::vector<std::string> NamesWithoutNodes() {
  std::vector<std::string> names;
  for (const Collective* collective : Collectives().All()) {
    const CollectiveTraits& traits = collective->Traits();
    if (!traits.lease_mode.empty() || traits.node_cost.by_node) continue;
    if (traits.form == "own_selections" || traits.by_caller) continue;
    names.push_back(traits.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, NodeTrafficTest, ::testing::ValuesIn(NamesWithoutNodes()),
                         [](const auto& info) { return info.param; });

// If only interfaces limit the speed, the order of the predicted times is that of the bytes.
TEST(NodeTrafficRankingTest, FollowsTheCountedBytes) {
  if (kTrafficWorldMax < 16) GTEST_SKIP() << "16 ranks are too many here";
  const std::vector<int> nodes = Blocks({4, 4, 4, 4});
  Snapshot snapshot;
  snapshot.world = 16;
  snapshot.memory = {nodes, 1e-9, 1e-15};
  BucketModel bucket;
  bucket.elements = kTrafficCount;
  std::vector<std::pair<double, std::string>> predicted, counted;
  for (const Collective* collective : Collectives().All()) {
    const CollectiveTraits& traits = collective->Traits();
    if (traits.form != "lanes") continue;
    const BucketCost cost =
        PredictBucket(snapshot, bucket, test::Lanes("identity", 32, false), ModelOf(traits), 1);
    predicted.emplace_back(cost.NetworkSeconds(1e-9, 1e-6), traits.name);
    const double payloads = CountTraffic(*collective, nodes, traits.node_cost.by_node).payloads;
    counted.emplace_back(payloads * 4 * kTrafficCount * 1e-6, traits.name);
    EXPECT_NEAR(predicted.back().first / counted.back().first, 1, 0.02) << traits.name;
  }
  std::sort(predicted.begin(), predicted.end());
  std::sort(counted.begin(), counted.end());
  ASSERT_GE(predicted.size(), 6u);
  EXPECT_EQ(predicted.front().second, "hierarchical");
  for (size_t i = 0; i < predicted.size(); ++i) {
    if (predicted[i].second == counted[i].second) continue;
    // These two send the same number of bytes.
    EXPECT_NEAR(predicted[i].first / counted[i].first, 1, 0.02) << predicted[i].second;
  }
}

}  // namespace
}  // namespace weir::testing
