// SPDX-License-Identifier: Apache-2.0
// All-reduce by nodes: for any list of nodes all ranks get the same, correct bits, and only shards
// are sent between nodes.

#include <numeric>

#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

const Collective& HierarchicalCollective() { return **Collectives().Find("hierarchical"); }

const std::vector<std::vector<int>> kNodeLists = {
    {0, 0, 1, 1},        // two nodes of two
    {7, 3, 7, 3},        // interleaved, any numbers
    {0, 0, 0, 0},        // one node
    {0, 0, 1, 1, 2, 2},  // three of two
    {0, 0, 0, 5, 5, 5},  // two of three
    {0, 0, 1},           // unequal
    {2, 1, 1, 1, 0},     // unequal, the leader of a node is not its lowest number's
    {0, 1, 1, 0, 1},     // unequal and interleaved
};

std::vector<Contribution> NodeContributions(const std::vector<int>& nodes, size_t count) {
  std::vector<Contribution> in(nodes.size());
  for (size_t rank = 0; rank < in.size(); ++rank) {
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(static_cast<int>(Mix64(i * 31 + rank) % 2001) - 1000));
    }
    in[rank].lanes = Bytes(values);
    in[rank].nodes = nodes;
  }
  return in;
}

TEST(HierarchicalTest, EveryListOfNodesGivesTheSum) {
  for (const std::string transport : {"inproc", "shm"}) {
    for (const auto& nodes : kNodeLists) {
      World world = MakeWorld(transport, static_cast<int>(nodes.size()));
      for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{70001}}) {
        for (const size_t segment_bytes : {size_t{1000}, size_t{1} << 20}) {
          SCOPED_TRACE(StrCat(transport, ", ", nodes.size(), " ranks, ", count, " elements"));
          const auto in = NodeContributions(nodes, count);
          std::vector<float> sum(count);
          for (const Contribution& c : in) {
            const auto values = Floats(c.lanes);
            for (size_t i = 0; i < count; ++i) sum[i] += values[i];
          }
          for (const Outcome& out : RunAll(world, HierarchicalCollective(), in, segment_bytes)) {
            ASSERT_TRUE(out.status.ok()) << out.status;
            ASSERT_EQ(Floats(out.lanes), sum);
          }
        }
      }
    }
  }
}

TEST(HierarchicalTest, RandomFloatsHaveTheSameBitsOnAllRanks) {
  for (const auto& nodes : kNodeLists) {
    World world = MakeWorld("inproc", static_cast<int>(nodes.size()));
    auto in = NodeContributions(nodes, 0);
    for (size_t rank = 0; rank < in.size(); ++rank) {
      Random random(rank + 1);
      std::vector<float> values(5003);
      for (float& v : values) v = static_cast<float>(random.Normal());
      in[rank].lanes = Bytes(values);
    }
    const auto out = RunAll(world, HierarchicalCollective(), in);
    for (const Outcome& each : out) {
      ASSERT_TRUE(each.status.ok()) << each.status;
      ASSERT_EQ(each.lanes, out[0].lanes);
    }
  }
}

TEST(HierarchicalTest, WordsAndFlagsOfAnyRankReachEveryRank) {
  for (const auto& nodes : kNodeLists) {
    World world = MakeWorld("inproc", static_cast<int>(nodes.size()));
    for (size_t flagged = 0; flagged < nodes.size(); ++flagged) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{100}}) {
        auto in = NodeContributions(nodes, count);
        in[flagged].flags = kFlagNonFinite;
        in[flagged].control = {.version = 9, .step = 1234};
        for (const Outcome& out : RunAll(world, HierarchicalCollective(), in)) {
          ASSERT_TRUE(out.status.ok()) << out.status;
          EXPECT_EQ(out.flags, kFlagNonFinite) << flagged << " of " << nodes.size();
          EXPECT_EQ(out.control.version, 9u) << flagged << " of " << nodes.size();
        }
      }
    }
  }
}

/// Counts what one rank sends to ranks of other nodes.
class CountingTransport : public Transport {
 public:
  CountingTransport(Transport& inner, const std::vector<int>& nodes)
      : inner_(inner), nodes_(nodes) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  const TransportAddress& address() const override { return inner_.address(); }
  Status Connect(const std::vector<TransportAddress>&, TimePoint) override { return OkStatus(); }
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override {
    if (nodes_[peer] != nodes_[rank()]) across += payload.size();
    return inner_.PostSend(peer, header, payload);
  }
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override {
    return inner_.PostReceive(peer, buffer);
  }
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override {
    return inner_.Wait(ticket, deadline);
  }
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override {
    return inner_.WaitAny(tickets, deadline);
  }
  void Wake() override { inner_.Wake(); }
  void Abort(std::string_view reason) override { inner_.Abort(reason); }
  void Abandon(std::string_view reason) override { inner_.Abandon(reason); }
  void Interrupt() override { inner_.Interrupt(); }
  std::vector<PathSample> Samples() const override { return {}; }
  uint64_t bytes_sent() const override { return inner_.bytes_sent(); }

  size_t across = 0;

 private:
  Transport& inner_;
  const std::vector<int>& nodes_;
};

TEST(HierarchicalTest, OnlyShardsCrossBetweenNodes) {
  constexpr size_t kElements = 12000;
  struct Case {
    std::vector<int> nodes;
    double payloads;  // that the busiest rank sends to other nodes
  };
  // 2 (n-1) / (n p); by leaders 2 (n-1) / n.
  for (const Case& one :
       {Case{{0, 0, 1, 1}, 0.5}, Case{{0, 1, 0, 1}, 0.5}, Case{{0, 0, 1, 1, 2, 2}, 4.0 / 6},
        Case{{0, 0, 0, 1, 1, 1}, 1.0 / 3}, Case{{0, 0, 0}, 0}, Case{{0, 0, 1}, 1}}) {
    const std::vector<int>& nodes = one.nodes;
    World inner = MakeWorld("inproc", static_cast<int>(nodes.size()));
    const auto in = NodeContributions(nodes, kElements);
    std::vector<size_t> across(nodes.size());
    RunRanks(static_cast<int>(nodes.size()), [&](int rank) {
      CountingTransport transport(*inner[rank], nodes);
      const Outcome out =
          RunRank(transport, HierarchicalCollective(), in[rank], 1 << 20, Within(20));
      EXPECT_TRUE(out.status.ok()) << out.status;
      across[rank] = transport.across;
    });
    EXPECT_DOUBLE_EQ(*std::max_element(across.begin(), across.end()) / (4.0 * kElements),
                     one.payloads);
  }
}

TEST(HierarchicalTest, ADeadRankIsNamedByItsRankInTheJob) {
  for (const std::vector<int>& nodes : {std::vector{0, 0, 1, 1}, std::vector{0, 1, 1, 1}}) {
    World world = MakeWorld("inproc", 4);
    const auto in = NodeContributions(nodes, 1000);
    std::vector<Outcome> out(4);
    const TimePoint deadline = Within(0.3);
    RunRanks(4, [&](int rank) {
      if (rank == 3) return;  // never takes part
      out[rank] = RunRank(*world[rank], HierarchicalCollective(), in[rank], 64, deadline);
    });
    int named = 0;
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_FALSE(out[rank].status.ok());
      named += Message(out[rank].status).find("rank 3") != std::string::npos;
    }
    EXPECT_GE(named, 1) << out[2].status;
  }
}

TEST(HierarchicalTest, RanksThatDisagreeOnNodesFailAndDoNotHang) {
  World world = MakeWorld("inproc", 4);
  auto in = NodeContributions({0, 0, 1, 1}, 1000);
  in[2].nodes = {0, 1, 0, 1};
  for (const Outcome& out : RunAll(world, HierarchicalCollective(), in, 1 << 20, 1)) {
    EXPECT_FALSE(out.status.ok());
  }
}

}  // namespace
}  // namespace weir::testing
