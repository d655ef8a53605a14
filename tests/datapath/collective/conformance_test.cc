// SPDX-License-Identifier: Apache-2.0
// Every registered collective with every transport, world size and element count: sums are right,
// bits are equal, nothing is lost at the edges, and all ranks get the control word and flags.

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

const std::vector<int> kWorlds = {1, 2, 3, 4, 5, 7};
constexpr size_t kCounts[] = {0, 1, 2, 3, 5, 16, 1000, 65537};

class ConformanceTest : public ::testing::TestWithParam<Subject> {
 protected:
  const Collective& collective() const { return **Collectives().Find(GetParam().collective); }
  const std::string& form() const { return collective().Traits().form; }
  World MakeWorldOf(int size) const { return MakeWorld(GetParam().transport, size); }
};

// The values that a collective computes do not depend on the transport.
class ValuesConformanceTest : public ConformanceTest {};
class SummingConformanceTest : public ConformanceTest {};
class LanesConformanceTest : public ConformanceTest {};
class RegionsConformanceTest : public ConformanceTest {};

float IntegerValue(int rank, size_t i) {
  return static_cast<float>(static_cast<int>(Mix64(i * 131 + rank) % 2001) - 1000);
}

// Rank r keeps every (r + 2)-th element; payload sizes differ between ranks and may be 0.
Contribution IntegerContribution(int rank, size_t count) {
  Contribution c;
  for (size_t i = 0; i < count; ++i) {
    c.dense.push_back(IntegerValue(rank, i));
    if (i % (rank + 2) == 0) c.selection.push_back(static_cast<uint32_t>(i));
  }
  c.lanes = Bytes(c.dense);
  const size_t payload_bytes = rank % 3 == 1 ? 0 : count * 4 + rank * 3;
  for (size_t i = 0; i < payload_bytes; ++i) c.payload.push_back(std::byte(Mix64(i ^ rank)));
  c.norm_squared = static_cast<double>((rank * 5 + 2) % 7);
  c.step = 3;
  return c;
}

bool SumsLanes(std::string_view form) {
  return form == "lanes" || form == "float_lanes" || form == "table_lanes" || EncodesNodeSums(form);
}

void CheckExact(const CollectiveTraits& traits, const std::vector<Contribution>& in,
                const std::vector<Outcome>& out) {
  const int world = static_cast<int>(in.size());
  for (int rank = 0; rank < world; ++rank) {
    ASSERT_TRUE(out[rank].status.ok()) << "rank " << rank << ": " << out[rank].status;
    if (SumsLanes(traits.form)) {
      std::vector<float> sum(in[0].dense.size());
      for (const Contribution& c : in) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += c.dense[i];
      }
      ASSERT_EQ(Floats(out[rank].lanes), sum) << "rank " << rank;
    } else if (traits.form == "opaque") {
      ASSERT_EQ(out[rank].gathered.size(), in.size());
      for (int from = 0; from < world; ++from) {
        ASSERT_EQ(out[rank].gathered[from], in[from].payload) << rank << " from " << from;
      }
    } else if (MovesIndices(traits.form)) {
      const int leader = out[rank].report.leader;
      std::vector<uint32_t> chosen;
      const bool own = traits.form == "own_selections";
      if (own || traits.form == "union_index") {
        ASSERT_EQ(leader, -1);
        std::set<uint32_t> all;
        for (const Contribution& c : in) all.insert(c.selection.begin(), c.selection.end());
        chosen.assign(all.begin(), all.end());
      } else {
        ASSERT_GE(leader, 0);
        ASSERT_LT(leader, world);
        ASSERT_EQ(leader, out[0].report.leader);
        chosen = in[leader].selection;
      }
      ASSERT_EQ(out[rank].indices, chosen);
      std::vector<float> sum;
      for (const uint32_t i : chosen) {
        sum.push_back(0);
        for (const Contribution& c : in) {
          const bool selected = std::binary_search(c.selection.begin(), c.selection.end(), i);
          if (!own || selected) sum.back() += c.dense[i];
        }
      }
      ASSERT_EQ(out[rank].values, sum) << "rank " << rank;
    } else {
      ASSERT_EQ(traits.form, "regions");
      std::vector<float> sum(in[0].dense.size());
      for (const Contribution& c : in) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += c.dense[i];
      }
      ASSERT_EQ(out[rank].gathered.size(), in.size());
      ASSERT_EQ(Floats(Joined(out[rank].gathered)), sum) << "rank " << rank;
      std::vector<int> order(in.size());
      std::iota(order.begin(), order.end(), 0);
      ASSERT_EQ(out[rank].added, order);
    }
  }
}

TEST_P(ValuesConformanceTest, IntegersAreExactForEveryWorldAndCount) {
  for (const int world_size : kWorlds) {
    World world = MakeWorldOf(world_size);
    ASSERT_EQ(world.size(), static_cast<size_t>(world_size));
    for (const size_t count : kCounts) {
      std::vector<Contribution> in;
      for (int rank = 0; rank < world_size; ++rank) in.push_back(IntegerContribution(rank, count));
      SCOPED_TRACE(StrCat("world ", world_size, " count ", count));
      CheckExact(collective().Traits(), in, RunAll(world, collective(), in));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ValuesConformanceTest, SmallSegmentsGiveTheSameResult) {
  for (const int world_size : {2, 3, 5}) {
    World world = MakeWorldOf(world_size);
    ASSERT_EQ(world.size(), static_cast<size_t>(world_size));
    // The last size reaches the bound on the number of segments.
    for (const auto& [count, segment_bytes] :
         {std::pair<size_t, size_t>{1000, 64}, {1024, 4096}, {1000, 3}, {65537, 512}}) {
      std::vector<Contribution> in;
      for (int rank = 0; rank < world_size; ++rank) in.push_back(IntegerContribution(rank, count));
      SCOPED_TRACE(StrCat("world ", world_size, " count ", count, " segment ", segment_bytes));
      CheckExact(collective().Traits(), in, RunAll(world, collective(), in, segment_bytes));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SummingConformanceTest, LargeRandomFloatsAreCloseAndBitIdenticalOnAllRanks) {
  constexpr int kWorld = 5;
  constexpr size_t kCount = 300'001;
  World world = MakeWorldOf(kWorld);
  ASSERT_EQ(world.size(), size_t{kWorld});
  std::vector<Contribution> in(kWorld);
  std::vector<double> sum(kCount), magnitude(kCount);
  for (int rank = 0; rank < kWorld; ++rank) {
    Random random(rank + 1);
    for (size_t i = 0; i < kCount; ++i) {
      in[rank].dense.push_back(static_cast<float>(random.Uniform() - 0.5));
      if (i % 2 == 0) in[rank].selection.push_back(static_cast<uint32_t>(i));
      sum[i] += in[rank].dense[i];
      magnitude[i] += std::abs(in[rank].dense[i]);
    }
    in[rank].lanes = Bytes(in[rank].dense);
  }
  // The sum has all elements, not only those of a selection.
  const bool lanes = SumsLanes(form()) || form() == "regions";
  std::vector<Outcome> out = RunAll(world, collective(), in);
  for (Outcome& each : out) {
    if (form() == "regions") each.lanes = Joined(each.gathered);
  }
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(out[rank].status.ok()) << out[rank].status;
    // Compared as bytes: equal floats could still differ in the sign of zero.
    ASSERT_TRUE(lanes ? out[rank].lanes == out[0].lanes
                      : Bytes(out[rank].values) == Bytes(out[0].values))
        << "rank " << rank;
  }
  const std::vector<float> got = lanes ? Floats(out[0].lanes) : out[0].values;
  ASSERT_EQ(got.size(), lanes ? kCount : in[0].selection.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t at = lanes ? i : in[0].selection[i];
    ASSERT_NEAR(got[i], sum[at], magnitude[at] * kWorld * 1.2e-7) << i;
  }
}

TEST_P(LanesConformanceTest, LanesOfEverySizeStayWhole) {
  World world = MakeWorldOf(3);
  ASSERT_EQ(world.size(), 3u);
  for (const size_t lane_bytes : {1, 2, 3, 8, 33, 260}) {
    for (const size_t lane_count : {0, 1, 2, 4, 1001}) {
      std::vector<Contribution> in(3);
      std::vector<std::byte> sum(lane_count * lane_bytes);
      for (int rank = 0; rank < 3; ++rank) {
        in[rank].lane_bytes = lane_bytes;
        for (size_t i = 0; i < sum.size(); ++i) {
          in[rank].lanes.push_back(std::byte(Mix64(i * 3 + rank)));
        }
        AddLanes(1, sum, in[rank].lanes);
      }
      SCOPED_TRACE(StrCat("lane of ", lane_bytes, " bytes, ", lane_count, " lanes"));
      for (const Outcome& outcome : RunAll(world, collective(), in, 128)) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        ASSERT_EQ(outcome.lanes, sum);
      }
    }
  }
}

TEST_P(ValuesConformanceTest, ControlWordOfRankZeroReachesEveryRank) {
  const ControlWord announced{.version = 9, .step = 1234};
  for (const int world_size : kWorlds) {
    World world = MakeWorldOf(world_size);
    ASSERT_EQ(world.size(), static_cast<size_t>(world_size));
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}}) {
      std::vector<Contribution> in;
      for (int rank = 0; rank < world_size; ++rank) in.push_back(IntegerContribution(rank, count));
      in[0].control = announced;
      for (const Outcome& outcome : RunAll(world, collective(), in)) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        EXPECT_EQ(outcome.control, announced) << "world " << world_size << " count " << count;
        EXPECT_EQ(outcome.flags, 0);
      }
    }
  }
}

TEST_P(ValuesConformanceTest, FlagOfAnyRankReachesEveryRank) {
  for (const int world_size : kWorlds) {
    World world = MakeWorldOf(world_size);
    ASSERT_EQ(world.size(), static_cast<size_t>(world_size));
    for (int flagged = 0; flagged < world_size; ++flagged) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{100}}) {
        std::vector<Contribution> in;
        for (int rank = 0; rank < world_size; ++rank) {
          in.push_back(IntegerContribution(rank, count));
        }
        in[flagged].flags = kFlagNonFinite;
        for (const Outcome& outcome : RunAll(world, collective(), in)) {
          ASSERT_TRUE(outcome.status.ok()) << outcome.status;
          EXPECT_EQ(outcome.flags, kFlagNonFinite)
              << "world " << world_size << " flagged " << flagged << " count " << count;
        }
      }
    }
  }
}

TEST_P(ConformanceTest, HigherControlVersionWinsAndFlagsUnite) {
  World world = MakeWorldOf(4);
  ASSERT_EQ(world.size(), 4u);
  std::vector<Contribution> in;
  for (int rank = 0; rank < 4; ++rank) in.push_back(IntegerContribution(rank, 100));
  in[0].control = {.version = 5, .step = 50};
  in[2].control = {.version = 7, .step = 70};
  in[1].flags = 1;
  in[3].flags = 4;
  for (const Outcome& outcome : RunAll(world, collective(), in)) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.control, (ControlWord{.version = 7, .step = 70}));
    EXPECT_EQ(outcome.flags, 5);
  }
}

TEST_P(ConformanceTest, ManySegmentsOfTheDefaultSize) {
  constexpr size_t kCount =
      1'500'000;  // chunks of several segments, for which the receiver does not wait
  World world = MakeWorldOf(2);
  ASSERT_EQ(world.size(), 2u);
  std::vector<Contribution> in;
  for (int rank = 0; rank < 2; ++rank) in.push_back(IntegerContribution(rank, kCount));
  CheckExact(collective().Traits(), in, RunAll(world, collective(), in, kSegmentBytesDefault));
}

TEST_P(ConformanceTest, ManyOperationsInARowOnOneWorld) {
  World world = MakeWorldOf(4);
  ASSERT_EQ(world.size(), 4u);
  for (uint64_t op = 0; op < 50; ++op) {
    std::vector<Contribution> in;
    for (int rank = 0; rank < 4; ++rank) {
      in.push_back(IntegerContribution(rank, op * 7));
      in.back().id = {.plan_version = op / 10, .op_sequence = op, .bucket = op % 3};
      in.back().step = op;
    }
    CheckExact(collective().Traits(), in, RunAll(world, collective(), in));
    if (HasFatalFailure()) return;
  }
}

// The owner of a region is the last to learn that its sum is not finite.
TEST_P(RegionsConformanceTest, FlagsRaisedOverASumReachEveryRank) {
  for (const int world_size : {2, 5}) {
    World world = MakeWorldOf(world_size);
    for (int owner = 0; owner < world_size; ++owner) {
      std::vector<Contribution> in;
      for (int rank = 0; rank < world_size; ++rank) in.push_back(IntegerContribution(rank, 3));
      in[owner].sum_flags = kFlagNonFinite;
      for (const Outcome& outcome : RunAll(world, collective(), in)) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        EXPECT_EQ(outcome.flags, kFlagNonFinite) << "world " << world_size << " owner " << owner;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, ConformanceTest, ::testing::ValuesIn(AllSubjects()),
                         SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, ValuesConformanceTest,
                         ::testing::ValuesIn(Over("inproc", AllSubjects())), SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, SummingConformanceTest,
                         ::testing::ValuesIn(Subjects({"lanes", "float_lanes", "table_lanes",
                                                       "shared_index", "union_index", "regions",
                                                       "node_sums", "node_shards"})),
                         SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, LanesConformanceTest, ::testing::ValuesIn(Subjects({"lanes"})),
                         SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, RegionsConformanceTest,
                         ::testing::ValuesIn(Subjects({"regions", "node_sums", "node_shards"})),
                         SubjectName);

}  // namespace
}  // namespace weir::testing
