// SPDX-License-Identifier: Apache-2.0
// Shards by shares: all ranks cut lanes in the same way, sums are right and equal on all ranks for
// any shares, and a rank that owns nothing moves less.

#include <numeric>

#include "datapath/base/random.h"
#include "datapath/collective/primitives.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

/// Shares of `world` ranks: even, all on one rank, none on one, and random.
std::vector<std::vector<uint32_t>> SharesOf(int world) {
  const auto ranks = static_cast<size_t>(world);
  std::vector<std::vector<uint32_t>> all;
  for (const size_t rank : {size_t{0}, ranks - 1}) {
    all.emplace_back(ranks, 0u)[rank] = kShardShareTotal;
  }
  const auto with_rest = [&](std::vector<uint32_t> shares, size_t rest) {
    shares[rest] += kShardShareTotal - std::accumulate(shares.begin(), shares.end(), 0u);
    all.push_back(std::move(shares));
  };
  with_rest(std::vector<uint32_t>(ranks, kShardShareTotal / world), 0);
  if (world > 1) {
    std::vector<uint32_t> none(ranks, kShardShareTotal / (world - 1));
    none[1] = 0;
    with_rest(none, 0);
  }
  Random random(static_cast<uint64_t>(world));
  std::vector<uint32_t> some(ranks);
  for (uint32_t& share : some) {
    share = static_cast<uint32_t>(random.Below(kShardShareTotal / ranks));
  }
  with_rest(some, ranks / 2);
  return all;
}

std::vector<Contribution> ContributionsWith(const std::vector<uint32_t>& shares, size_t count,
                                            size_t lane_bytes) {
  std::vector<Contribution> in(shares.size());
  for (size_t rank = 0; rank < in.size(); ++rank) {
    Contribution& one = in[rank];
    one.shards = shares;
    one.lane_bytes = lane_bytes;
    for (size_t i = 0; i < count; ++i) {
      one.dense.push_back(0.1f * static_cast<float>((7 * i + 13 * rank) % 101) +
                          (i % 3 == rank ? 1e3f : 0));
    }
    one.lanes = Bytes(one.dense);
  }
  return in;
}

TEST(ShardsTest, CutsCoverEveryLaneOnceByTheirShares) {
  for (const int world : {1, 2, 3, 7}) {
    for (const std::vector<uint32_t>& shares : SharesOf(world)) {
      for (const size_t lanes : {0, 1, 2, 5, 1000, 100'003}) {
        std::vector<std::byte> bytes(4 * lanes);
        const Partition partition(bytes, {.parts = shares.size(),
                                          .segment_bytes = 4096,
                                          .pipeline_depth = 4,
                                          .segments_max = 16,
                                          .shares = shares});
        const std::byte* next = bytes.data();
        for (size_t chunk = 0; chunk < shares.size(); ++chunk) {
          const double wanted = 1.0 * lanes * shares[chunk] / kShardShareTotal;
          EXPECT_NEAR(partition.Chunk(chunk).size() / 4.0, wanted, 1) << lanes;
          if (shares[chunk] == 0) {
            EXPECT_TRUE(partition.Chunk(chunk).empty());
          }
          for (size_t s = 0; s < partition.segments(); ++s) {
            const auto segment = partition.Segment(chunk, s);
            EXPECT_EQ(partition.Travels(chunk, s),
                      !segment.empty() || (lanes == 0 && chunk == 0 && s == 0));
            if (segment.empty()) continue;
            EXPECT_EQ(segment.data(), next);
            EXPECT_LE(segment.size(), partition.segment_bytes());
            next += segment.size();
          }
        }
        EXPECT_EQ(next, bytes.data() + bytes.size());
      }
    }
  }
}

TEST(ShardsTest, EqualSharesOfWholeLanesAreEvenOnes) {
  std::vector<std::byte> bytes(4 * 4096);
  const std::vector<uint32_t> shares(4, kShardShareTotal / 4);
  const PartitionOptions even{.parts = 4, .segment_bytes = 1024, .pipeline_depth = 4};
  PartitionOptions shared = even;
  shared.shares = shares;
  const Partition a(bytes, even), b(bytes, shared);
  ASSERT_EQ(a.segments(), b.segments());
  for (size_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(a.Chunk(chunk).data(), b.Chunk(chunk).data());
    EXPECT_EQ(a.Chunk(chunk).size(), b.Chunk(chunk).size());
  }
}

class ShardsOverTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ShardsOverTest, SumsAreTheOwnersAndTheSameBytesOnEveryRank) {
  const Collective& mesh = **Collectives().Find("mesh");
  for (const int world : {1, 2, 3, 5}) {
    World ranks = MakeWorld(GetParam(), world);
    for (const std::vector<uint32_t>& shares : SharesOf(world)) {
      for (const size_t count : {0, 1, 3, 1000, 70'001}) {
        const auto in = ContributionsWith(shares, count, 4);
        const auto out = RunAll(ranks, mesh, in, 4096, 10);
        // The expected sum of each owner: its own value first, then those of the ranks after it.
        std::vector<float> sum;
        std::vector<std::byte> place(4 * count);
        const Partition cut(place, {.parts = shares.size(), .segment_bytes = 1, .shares = shares});
        for (int owner = 0; owner < world; ++owner) {
          const size_t begin = sum.size(), end = begin + cut.Chunk(owner).size() / 4;
          for (size_t i = begin; i < end; ++i) {
            float lane = in[owner].dense[i];
            for (int d = 1; d < world; ++d) lane += in[(owner + d) % world].dense[i];
            sum.push_back(lane);
          }
        }
        for (int rank = 0; rank < world; ++rank) {
          ASSERT_TRUE(out[rank].status.ok()) << out[rank].status;
          ASSERT_EQ(Floats(out[rank].lanes), sum) << "rank " << rank << " of " << world;
        }
      }
    }
  }
}

TEST_P(ShardsOverTest, WordAndFlagsOfEveryRankReachAll) {
  const std::vector<uint32_t> shares = {0, kShardShareTotal, 0, 0};
  for (const size_t count : {0, 1, 5000}) {
    for (int speaker = 0; speaker < 4; ++speaker) {
      World ranks = MakeWorld(GetParam(), 4);
      auto in = ContributionsWith(shares, count, 4);
      in[speaker].control = {.version = 9, .step = 40};
      in[speaker].flags = 4;
      for (const Outcome& out : RunAll(ranks, **Collectives().Find("mesh"), in, 4096, 10)) {
        ASSERT_TRUE(out.status.ok()) << out.status;
        EXPECT_EQ(out.control.version, 9u) << speaker;
        EXPECT_EQ(out.flags, 4) << speaker;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ShardsOverTest, ::testing::ValuesIn(TransportNames()));

TEST(ShardsTest, WhoOwnsNothingSendsAndReceivesOnePayload) {
  World ranks = MakeWorld("inproc", 4);
  const std::vector<uint32_t> shares = {21846, 21845, 21845, 0};
  constexpr size_t kCount = 65'536;
  const auto out = RunAll(ranks, **Collectives().Find("mesh"), ContributionsWith(shares, kCount, 4),
                          1 << 18, 10);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(out[rank].status.ok()) << out[rank].status;
    const double payloads = static_cast<double>(out[rank].report.bytes_sent) / (4.0 * kCount);
    EXPECT_NEAR(payloads, rank == 3 ? 1 : 2.0 / 3 + 1, 0.01) << rank;
  }
}

TEST(ShardsTest, RanksThatDisagreeOnTheSharesFailAndDoNotHang) {
  World ranks = MakeWorld("inproc", 3);
  auto in = ContributionsWith({kShardShareTotal, 0, 0}, 1000, 4);
  in[2].shards = {0, kShardShareTotal, 0};
  for (const Outcome& out : RunAll(ranks, **Collectives().Find("mesh"), in, 4096, 1)) {
    EXPECT_FALSE(out.status.ok());
  }
}

TEST(ShardsTest, PartsOfAGroupAreEven) {
  World ranks = MakeWorld("inproc", 2);
  RunRanks(2, [&](int rank) {
    Group group(*ranks[rank]);
    group.SetShards({kShardShareTotal, 0});
    group.Begin({.plan_version = 1, .op_sequence = 1, .bucket = 1}, {}, 0, Within(kPatience));
    EXPECT_EQ(group.shards().size(), 2u);
    const GroupPart part(group, {rank}, 0);
    EXPECT_TRUE(group.shards().empty());
  });
}

}  // namespace
}  // namespace weir::testing
