// SPDX-License-Identifier: Apache-2.0
// All-gather by nodes: for any list of nodes and any sizes every rank gets every payload, and each
// payload is sent to another node only once.

#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

const Collective& NodeAllGatherCollective() { return **Collectives().Find("node_all_gather"); }

const std::vector<std::vector<int>> kGatherNodeLists = {
    {0, 0, 1, 1},           // two nodes of two
    {7, 3, 7, 3},           // interleaved, any numbers
    {0, 0, 0, 0},           // one node
    {0, 1, 2},              // all alone
    {0, 0, 1, 1, 2, 2},     // three of two
    {0, 0, 1},              // unequal
    {2, 1, 1, 1, 0},        // unequal, two alone
    {0, 1, 1, 0, 1, 1, 1},  // unequal and interleaved: five to two
};

// Payloads of various sizes, including empty ones.
std::vector<Contribution> PayloadsOf(const std::vector<int>& nodes, size_t bytes) {
  std::vector<Contribution> in(nodes.size());
  for (size_t rank = 0; rank < in.size(); ++rank) {
    const size_t size = rank % 3 == 1 ? 0 : bytes + rank;
    for (size_t i = 0; i < size; ++i) in[rank].payload.push_back(std::byte(Mix64(i * 31 + rank)));
    in[rank].nodes = nodes;
  }
  return in;
}

TEST(NodeAllGatherTest, EveryListOfNodesBringsAllPayloads) {
  for (const std::string transport : {"inproc", "shm"}) {
    for (const auto& nodes : kGatherNodeLists) {
      World world = MakeWorld(transport, static_cast<int>(nodes.size()));
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{300001}}) {
        for (const size_t segment_bytes : {size_t{1000}, size_t{1} << 18}) {
          SCOPED_TRACE(StrCat(transport, ", ", nodes.size(), " ranks, ", bytes, " bytes"));
          const auto in = PayloadsOf(nodes, bytes);
          for (const Outcome& out : RunAll(world, NodeAllGatherCollective(), in, segment_bytes)) {
            ASSERT_TRUE(out.status.ok()) << out.status;
            ASSERT_EQ(out.gathered.size(), in.size());
            for (size_t from = 0; from < in.size(); ++from) {
              ASSERT_EQ(out.gathered[from], in[from].payload) << "from " << from;
            }
          }
        }
      }
    }
  }
}

TEST(NodeAllGatherTest, WordsAndFlagsOfAnyRankReachEveryRank) {
  for (const auto& nodes : kGatherNodeLists) {
    World world = MakeWorld("inproc", static_cast<int>(nodes.size()));
    for (size_t flagged = 0; flagged < nodes.size(); ++flagged) {
      auto in = PayloadsOf(nodes, 10);
      in[flagged].flags = kFlagNonFinite;
      in[flagged].control = {.version = 9, .step = 1234};
      for (const Outcome& out : RunAll(world, NodeAllGatherCollective(), in)) {
        ASSERT_TRUE(out.status.ok()) << out.status;
        EXPECT_EQ(out.flags, kFlagNonFinite) << flagged << " of " << nodes.size();
        EXPECT_EQ(out.control.version, 9u) << flagged << " of " << nodes.size();
      }
    }
  }
}

TEST(NodeAllGatherTest, APayloadBeyondTheBoundIsNamedOnOtherNodesToo) {
  World world = MakeWorld("inproc", 4);
  auto in = PayloadsOf({0, 0, 1, 1}, 100);
  for (Contribution& each : in) each.payload_bytes_max = 103;
  in[0].payload.resize(104);
  in[0].payload_bytes_max = 104;
  for (int rank = 1;
       const Outcome& out : RunAll(world, NodeAllGatherCollective(), in, 1 << 20, 5)) {
    if (rank++ == 1) continue;
    ASSERT_FALSE(out.status.ok());
    EXPECT_THAT(Message(out.status), ::testing::HasSubstr("rank 0"));
  }
}

TEST(NodeAllGatherTest, RanksThatDisagreeOnNodesFailAndDoNotHang) {
  World world = MakeWorld("inproc", 4);
  auto in = PayloadsOf({0, 0, 1, 1}, 1000);
  in[2].nodes = {0, 1, 0, 1};
  for (const Outcome& out : RunAll(world, NodeAllGatherCollective(), in, 1 << 20, 1)) {
    EXPECT_FALSE(out.status.ok());
  }
}

}  // namespace
}  // namespace weir::testing
