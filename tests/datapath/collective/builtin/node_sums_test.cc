// SPDX-License-Identifier: Apache-2.0
// Sums of nodes that are encoded once: for any list of nodes all ranks get the same, correct sums,
// and one rank of a node encodes each part.

#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

const std::vector<std::vector<int>> kSumNodeLists = {
    {0, 0, 1, 1},        // two nodes of two
    {7, 3, 7, 3},        // interleaved, any numbers
    {0, 0, 0, 0},        // one node
    {0, 1, 2},           // all alone
    {0, 0, 0, 5, 5, 5},  // two of three
    {0, 0, 1},           // unequal
    {2, 1, 1, 1, 0},     // unequal, the leader of a node is not its lowest number's
};

class NodeSumsTest : public ::testing::TestWithParam<const char*> {
 protected:
  const Collective& collective() const { return **Collectives().Find(GetParam()); }
};

std::vector<Contribution> Summands(const std::vector<int>& nodes, size_t count, bool whole) {
  std::vector<Contribution> in(nodes.size());
  for (size_t rank = 0; rank < in.size(); ++rank) {
    Random random(rank + 1);
    std::vector<float> values(count);
    for (float& v : values) {
      v = whole ? static_cast<float>(static_cast<int>(random.Uniform() * 2000) - 1000)
                : static_cast<float>(random.Normal());
    }
    in[rank].lanes = Bytes(values);
    in[rank].nodes = nodes;
  }
  return in;
}

TEST_P(NodeSumsTest, EveryListOfNodesGivesTheSum) {
  for (const std::string transport : {"inproc", "shm"}) {
    for (const auto& nodes : kSumNodeLists) {
      World world = MakeWorld(transport, static_cast<int>(nodes.size()));
      for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{70001}}) {
        for (const size_t segment_bytes : {size_t{1001}, size_t{1} << 20}) {
          SCOPED_TRACE(StrCat(transport, ", ", nodes.size(), " ranks, ", count, " elements"));
          const auto in = Summands(nodes, count, true);
          std::vector<float> sum(count);
          for (const Contribution& c : in) {
            const auto values = Floats(c.lanes);
            for (size_t i = 0; i < count; ++i) sum[i] += values[i];
          }
          for (const Outcome& out : RunAll(world, collective(), in, segment_bytes)) {
            ASSERT_TRUE(out.status.ok()) << out.status;
            ASSERT_EQ(Floats(out.lanes), sum);
          }
        }
      }
    }
  }
}

TEST_P(NodeSumsTest, RandomFloatsHaveTheSameBitsOnAllRanks) {
  for (const auto& nodes : kSumNodeLists) {
    World world = MakeWorld("inproc", static_cast<int>(nodes.size()));
    const auto out = RunAll(world, collective(), Summands(nodes, 5003, false));
    for (const Outcome& each : out) {
      ASSERT_TRUE(each.status.ok()) << each.status;
      ASSERT_EQ(each.lanes, out[0].lanes);
    }
  }
}

TEST_P(NodeSumsTest, WordsAndFlagsOfAnyRankReachEveryRank) {
  for (const auto& nodes : kSumNodeLists) {
    World world = MakeWorld("inproc", static_cast<int>(nodes.size()));
    for (size_t flagged = 0; flagged < nodes.size(); ++flagged) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{100}}) {
        auto in = Summands(nodes, count, true);
        in[flagged].flags = kFlagNonFinite;
        in[flagged].control = {.version = 9, .step = 1234};
        for (const Outcome& out : RunAll(world, collective(), in)) {
          ASSERT_TRUE(out.status.ok()) << out.status;
          EXPECT_EQ(out.flags, kFlagNonFinite) << flagged << " of " << nodes.size();
          EXPECT_EQ(out.control.version, 9u) << flagged << " of " << nodes.size();
        }
      }
    }
  }
}

TEST_P(NodeSumsTest, FlagsOfWhoeverEncodesReachEveryRank) {
  for (const auto& nodes : kSumNodeLists) {
    World world = MakeWorld("inproc", static_cast<int>(nodes.size()));
    auto in = Summands(nodes, 100, true);
    in[0].sum_flags = kFlagNonFinite;  // the first rank encodes in every order
    for (const Outcome& out : RunAll(world, collective(), in)) {
      ASSERT_TRUE(out.status.ok()) << out.status;
      EXPECT_EQ(out.flags, kFlagNonFinite) << nodes.size();
    }
  }
}

TEST_P(NodeSumsTest, OneEncodingOfANodeAndOneDecodingOfEachNodeForEachPart) {
  constexpr size_t kElements = 12000;
  struct Case {
    std::vector<int> nodes;
    int count;
    double parts;  // into which the sum of an even node is cut
  };
  for (const auto& [nodes, count, parts] :
       {Case{{0, 0, 1, 1}, 2, 2}, Case{{0, 0, 0, 1, 1, 1}, 2, 3}, Case{{0, 0, 0}, 1, 3},
        Case{{0, 0, 1}, 2, 1}, Case{{0, 1, 2}, 3, 1}}) {
    World world = MakeWorld("inproc", static_cast<int>(nodes.size()));
    const double cut = collective().Traits().form == "node_shards" ? parts : 1;
    const auto out = RunAll(world, collective(), Summands(nodes, kElements, true));
    size_t busiest = 0;
    for (const Outcome& each : out) busiest = std::max(busiest, each.added_bytes);
    EXPECT_DOUBLE_EQ(static_cast<double>(busiest), 4 * kElements * count / cut);
    std::vector<int> encoders;  // of the first part: ascending first ranks of all nodes
    for (int rank = 0; rank < static_cast<int>(nodes.size()); ++rank) {
      if (std::find(nodes.begin(), nodes.begin() + rank, nodes[rank]) == nodes.begin() + rank) {
        encoders.push_back(rank);
      }
    }
    EXPECT_EQ(out[0].added, encoders);
  }
}

TEST_P(NodeSumsTest, RanksThatDisagreeOnNodesFailAndDoNotHang) {
  World world = MakeWorld("inproc", 4);
  auto in = Summands({0, 0, 1, 1}, 1000, true);
  in[2].nodes = {0, 1, 0, 1};
  int failed = 0;
  for (const Outcome& out : RunAll(world, collective(), in, 1 << 20, 1)) {
    failed += !out.status.ok();
  }
  EXPECT_EQ(failed, 4);
}

INSTANTIATE_TEST_SUITE_P(Orders, NodeSumsTest, ::testing::Values("node_sums", "node_shards"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir::testing
