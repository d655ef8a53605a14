// SPDX-License-Identifier: Apache-2.0
// Sums of block-sparse lanes equal the dense sums in rank order bit for bit, and only blocks that
// are not zero are sent.

#include <bit>
#include <cmath>

#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

constexpr size_t kBlockFloats = 256;

// Lanes of which a share of about `density` of the blocks has random floats, with zeros of both
// signs among them.
Contribution Sparse(int rank, size_t count, double density) {
  Contribution c;
  c.dense.resize(count);
  Random random(77 + static_cast<uint64_t>(rank));
  for (size_t begin = 0; begin < count; begin += kBlockFloats) {
    if (random.Uniform() >= density) continue;
    for (size_t i = begin; i < std::min(count, begin + kBlockFloats); ++i) {
      const double u = random.Uniform();
      c.dense[i] = u < 0.1 ? 0.0f : u < 0.3 ? -0.0f : static_cast<float>(u - 0.6);
    }
  }
  c.lanes = Bytes(c.dense);
  return c;
}

std::vector<float> SumInRankOrder(const std::vector<Contribution>& in) {
  std::vector<float> sum = in[0].dense;
  for (size_t rank = 1; rank < in.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += in[rank].dense[i];
  }
  return sum;
}

const Collective& BlockMesh() { return **Collectives().Find("block_mesh"); }

TEST(BlockMeshTest, IsTheDenseSumInRankOrderBitForBit) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    World world = MakeWorld("inproc", ranks);
    for (const double density : {0.0, 0.02, 0.5, 1.0}) {
      for (const size_t segment_bytes : {size_t{1} << 20, size_t{2048}, size_t{100}}) {
        SCOPED_TRACE(StrCat(ranks, " ranks, density ", density, ", segments ", segment_bytes));
        std::vector<Contribution> in;
        for (int rank = 0; rank < ranks; ++rank) in.push_back(Sparse(rank, 50'123, density));
        const std::vector<std::byte> expected = Bytes(SumInRankOrder(in));
        for (const Outcome& outcome : RunAll(world, BlockMesh(), in, segment_bytes)) {
          ASSERT_TRUE(outcome.status.ok()) << outcome.status;
          ASSERT_TRUE(outcome.lanes == expected);
        }
      }
    }
  }
}

// Lanes whose zero bytes do not represent zero: the sum of blocks that no rank sends is right.
TEST(BlockMeshTest, AbsentBlocksAddUpAsTheirLanesDo) {
  World world = MakeWorld("inproc", 3);
  std::vector<Contribution> in;
  for (int rank = 0; rank < 3; ++rank) {
    in.push_back(Sparse(rank, 10'000, 0.1));
    in.back().accumulate = [](std::span<std::byte> sum, std::span<const std::byte> addend) {
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] = std::byte(std::to_integer<int>(sum[i]) + std::to_integer<int>(addend[i]) + 5);
      }
    };
  }
  std::vector<std::byte> expected = in[0].lanes;
  in[0].accumulate(expected, in[1].lanes);
  in[0].accumulate(expected, in[2].lanes);
  for (const Outcome& outcome : RunAll(world, BlockMesh(), in, 4096)) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_TRUE(outcome.lanes == expected);
  }
}

TEST(BlockMeshTest, SendsWhatBlocksHoldAndHardlyMoreThanDenseLanes) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 1 << 20;
  World world = MakeWorld("inproc", kRanks);
  const double dense = 2.0 * (kRanks - 1) / kRanks * 4 * kCount;
  for (const double density : {0.01, 0.25, 1.0}) {
    std::vector<Contribution> in;
    for (int rank = 0; rank < kRanks; ++rank) in.push_back(Sparse(rank, kCount, density));
    const double any = 1 - std::pow(1 - density, kRanks);
    // The bytes agree with the trait from which controllers compute the cost.
    const BlockTraits& blocks = BlockMesh().Traits().blocks;
    const double expected =
        dense * (1 - blocks.own_share * (1 - density) - blocks.union_share * (1 - any));
    for (const Outcome& outcome : RunAll(world, BlockMesh(), in, 256 << 10)) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      const auto sent = static_cast<double>(outcome.report.bytes_sent);
      EXPECT_NEAR(sent, expected, 0.1 * expected + 0.012 * dense) << density;
      EXPECT_TRUE(density < 1 || sent < 1.003 * dense) << sent;
    }
  }
}

TEST(BlockMeshTest, SegmentsOfZerosDoNotTravel) {
  constexpr size_t kCount = 1 << 20;
  World world = MakeWorld("inproc", 2);
  std::vector<Contribution> in(2);
  for (Contribution& c : in) c.dense.resize(kCount);
  in[1].dense[kCount - 1] = 3;
  for (Contribution& c : in) c.lanes = Bytes(c.dense);
  const std::vector<std::byte> expected = in[1].lanes;
  for (const Outcome& outcome : RunAll(world, BlockMesh(), in, 64 << 10)) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_TRUE(outcome.lanes == expected);
    EXPECT_LT(outcome.report.bytes_sent, 4 * (kFrameHeaderBytes + 16 + 8) + 1024u);
  }
}

TEST(BlockMeshTest, AnotherSizeOfSparseLanesIsAnErrorOnEveryRank) {
  World world = MakeWorld("inproc", 2);
  std::vector<Contribution> in = {Sparse(0, 1000, 0), Sparse(1, 1004, 0)};
  for (const Outcome& outcome : RunAll(world, BlockMesh(), in)) {
    EXPECT_THAT(Message(outcome.status), ::testing::HasSubstr("disagree"));
  }
}

}  // namespace
}  // namespace weir::testing
