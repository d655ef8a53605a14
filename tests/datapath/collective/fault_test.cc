// SPDX-License-Identifier: Apache-2.0
// If the ranks do not agree or one of them fails, every rank ends with an error that names the
// guilty one, and no rank gets a sum.

#include "datapath/transport/fault.h"
#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 4;
constexpr size_t kSegmentBytes = 64;  // many messages: faults strike in the middle

class FaultTest : public ::testing::TestWithParam<Subject> {
 protected:
  const Collective& collective() const { return **Collectives().Find(GetParam().collective); }
  const std::string& form() const { return collective().Traits().form; }
  World MakeWorldOf(int size) const { return MakeWorld(GetParam().transport, size); }
};

class SummingFaultTest : public FaultTest {};
class LostMessageTest : public FaultTest {};
class CallbackFaultTest : public FaultTest {};
class PayloadFaultTest : public FaultTest {};
class LanesFaultTest : public FaultTest {};
class RegionsFaultTest : public FaultTest {};

std::vector<Contribution> Contributions(int world, size_t count = 1000) {
  std::vector<Contribution> in(world);
  for (int rank = 0; rank < world; ++rank) {
    for (size_t i = 0; i < count; ++i) {
      in[rank].dense.push_back(static_cast<float>(i + rank));
      in[rank].selection.push_back(static_cast<uint32_t>(i));
    }
    in[rank].lanes = in[rank].payload = Bytes(in[rank].dense);
    in[rank].norm_squared = rank;
  }
  return in;
}

// All messages have the same size, so that a confusion of two is not detected by their lengths.
std::vector<Contribution> SmallContributions() {
  std::vector<Contribution> in(kWorld);
  for (int rank = 0; rank < kWorld; ++rank) {
    for (int i = 0; i < 64; ++i) in[rank].dense.push_back(static_cast<float>(100 * rank + i));
    for (int i = 0; i < 16; ++i) in[rank].selection.push_back(4 * i + rank);
    in[rank].lanes = in[rank].payload = Bytes(in[rank].dense);
    in[rank].norm_squared = rank;
    in[rank].step = 1;
  }
  return in;
}

bool SameResult(const Outcome& a, const Outcome& b) {
  return a.lanes == b.lanes && a.gathered == b.gathered && a.indices == b.indices &&
         a.values == b.values;
}

// Every rank of a world in which rank 1 differs must fail with a message that contains both texts.
// (Sums that are encoded on their way take two operations, 17 and 18; the first may stay within
// nodes.)
void ExpectAllNameBoth(const std::vector<Outcome>& out, const std::string& one,
                       const std::string& other) {
  bool found_locally = false;
  for (size_t rank = 0; rank < out.size(); ++rank) {
    ASSERT_FALSE(out[rank].status.ok()) << "rank " << rank << " succeeded";
    const std::string message = Message(out[rank].status);
    EXPECT_THAT(message, HasSubstr(one)) << "rank " << rank;
    EXPECT_THAT(message, HasSubstr(other)) << "rank " << rank;
    EXPECT_THAT(message, HasSubstr("rank 1")) << "rank " << rank;
    found_locally |= out[rank].status.code() == StatusCode::kInternal;
  }
  EXPECT_TRUE(found_locally);
}

TEST_P(FaultTest, AnotherPlanIsAnErrorOnEveryRank) {
  for (const int world_size : {2, 3, kWorld}) {
    World world = MakeWorldOf(world_size);
    std::vector<Contribution> in = Contributions(world_size);
    in[1].id.plan_version = 3;
    const std::vector<Outcome> out = RunAll(world, collective(), in, kSegmentBytes);
    ExpectAllNameBoth(out, "plan 2 op 1", "plan 3 op 1");
    if (world_size > 2) continue;
    for (const Outcome& outcome : out) EXPECT_EQ(outcome.summed_bytes, 0u);
  }
}

TEST_P(FaultTest, AnotherOperationIsAnErrorOnEveryRank) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld);
  in[1].id.op_sequence = 27;
  ExpectAllNameBoth(RunAll(world, collective(), in, kSegmentBytes), "op 1", "op 2");
}

TEST_P(FaultTest, AnotherBucketIsAnErrorOnEveryRank) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld);
  in[1].id.bucket = 0xBEEF;
  ExpectAllNameBoth(RunAll(world, collective(), in, kSegmentBytes), "c0ffee", "beef");
}

TEST_P(FaultTest, AnEmptyOperationIsCheckedToo) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld, 0);
  in[1].id.plan_version = 3;
  ExpectAllNameBoth(RunAll(world, collective(), in), "plan 2 op 1", "plan 3 op 1");
}

TEST_P(SummingFaultTest, AnotherElementCountIsAnErrorOnEveryRank) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld);
  in[1] = Contributions(kWorld, 1400)[1];
  in[1].norm_squared = 0;
  if (MovesIndices(form())) {
    in[1].dense.resize(500);  // the others' indices exceed it
    in[1].step = in[0].step = in[2].step = in[3].step = 2;
  }
  for (const Outcome& outcome : RunAll(world, collective(), in, kSegmentBytes, 5)) {
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_NE(outcome.status.code(), StatusCode::kDeadlineExceeded) << outcome.status;
  }
}

TEST_P(FaultTest, DeathOfARankIsNamedOnEveryOther) {
  FaultOptions faults;
  faults.rank = 2;
  faults.disconnect_after_frames = 2;
  const std::unique_ptr<TransportFactory> factory =
      MakeFaultFactory(FactoryNamed(GetParam().transport), faults);
  StatusOr<World> world = ConnectWorld(*factory, kWorld);
  ASSERT_TRUE(world.ok()) << world.status();
  std::vector<Contribution> in = Contributions(kWorld);
  for (Contribution& c : in) c.norm_squared = 1, c.step = 2;
  const std::vector<Outcome> out = RunAll(*world, collective(), in, kSegmentBytes);
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_FALSE(out[rank].status.ok()) << "rank " << rank;
    EXPECT_EQ(out[rank].status.code(), StatusCode::kUnavailable) << out[rank].status;
    EXPECT_THAT(Message(out[rank].status), HasSubstr("rank 2")) << "rank " << rank;
  }
}

TEST_P(FaultTest, CorruptionIsNamedOnEveryOtherRank) {
  FaultOptions faults;
  faults.rank = 1;
  faults.every_peer.corrupt_probability = 1;
  const std::unique_ptr<TransportFactory> factory =
      MakeFaultFactory(FactoryNamed(GetParam().transport), faults);
  StatusOr<World> world = ConnectWorld(*factory, kWorld);
  ASSERT_TRUE(world.ok()) << world.status();
  const auto out = RunAll(*world, collective(), Contributions(kWorld), kSegmentBytes);
  for (const int rank : {0, 2, 3}) {  // rank 1 may end with a right result before it learns of it
    ASSERT_FALSE(out[rank].status.ok()) << "rank " << rank;
    EXPECT_THAT(Message(out[rank].status), HasSubstr("rank 1"));
  }
}

// Whichever message is lost, no rank mistakes the next one for it.
TEST_P(LostMessageTest, NobodyEndsWithAWrongResult) {
  constexpr int kFaulty = 1;
  for (const size_t segment_bytes : {size_t{1} << 20, size_t{160}}) {
    const std::vector<Contribution> in = SmallContributions();
    const std::vector<Outcome> expected = [&] {
      World whole = MakeWorldOf(kWorld);
      return RunAll(whole, collective(), in, segment_bytes);
    }();
    int failed = 0;
    for (uint64_t frame = 1;; ++frame) {
      FaultOptions faults;
      faults.rank = kFaulty;
      faults.drop_frame = frame;
      const auto factory = MakeFaultFactory(FactoryNamed(GetParam().transport), faults);
      StatusOr<World> world = ConnectWorld(*factory, kWorld);
      ASSERT_TRUE(world.ok()) << world.status();
      const std::vector<Outcome> out = RunAll(*world, collective(), in, segment_bytes, 0.1);
      int wrong = 0, late = 0;
      for (int rank = 0; rank < kWorld; ++rank) {
        late += !out[rank].status.ok();
        wrong += out[rank].status.ok() && !SameResult(out[rank], expected[rank]);
      }
      EXPECT_EQ(wrong, 0) << "frame " << frame << ", segments of " << segment_bytes;
      failed += late > 0;
      if (late == 0) break;  // it sends no frame of that number
    }
    EXPECT_GT(failed, 0);
  }
}

TEST_P(LostMessageTest, ASilentRankEndsTheOthersAtTheDeadline) {
  World world = MakeWorldOf(3);
  const std::vector<Contribution> in = Contributions(3);
  std::vector<Outcome> out(3);
  const TimePoint start = RealClock().Now(), deadline = Within(0.3);
  RunRanks(3, [&](int rank) {
    if (rank == 1) return;  // connected, but never takes part
    out[rank] = RunRank(*world[rank], collective(), in[rank], kSegmentBytes, deadline);
  });
  EXPECT_LT(ToSeconds(RealClock().Now() - start), 5);
  int named = 0;
  for (const int rank : {0, 2}) {
    EXPECT_FALSE(out[rank].status.ok()) << "rank " << rank;
    named += Message(out[rank].status).find("rank 1") != std::string::npos;
  }
  // A rank that waits for a rank that waits names the latter; ranks that wait for rank 1 name it.
  EXPECT_GE(named, 1) << out[0].status << "\n" << out[2].status;
}

TEST_P(CallbackFaultTest, AFailedCallbackIsReportedToEveryRank) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld);
  in[2].open_status = DataLoss("index 99 past the end");
  for (const Outcome& outcome : RunAll(world, collective(), in, kSegmentBytes, 5)) {
    EXPECT_THAT(Message(outcome.status), HasSubstr("index 99 past the end"));
  }
}

TEST_P(PayloadFaultTest, APayloadBeyondTheBoundIsRefused) {
  for (const size_t segment_bytes : {size_t{64}, size_t{1} << 20}) {
    World world = MakeWorldOf(kWorld);
    std::vector<Contribution> in = Contributions(kWorld);
    for (Contribution& c : in) c.payload_bytes_max = 3999, c.step = 1;  // payloads have 4000 bytes
    in[1].payload_bytes_max = 4000;
    in[1].norm_squared = 100;
    for (const int rank : {0, 2, 3}) {
      in[rank].payload.resize(100);
      in[rank].selection.resize(25);
    }
    const std::vector<Outcome> out = RunAll(world, collective(), in, segment_bytes, 5);
    for (const int rank : {0, 2, 3}) {
      ASSERT_FALSE(out[rank].status.ok()) << "rank " << rank;
      EXPECT_THAT(Message(out[rank].status), HasSubstr("rank 1"));
      EXPECT_THAT(Message(out[rank].status), HasSubstr("3999"));
    }
  }
}

TEST_P(RegionsFaultTest, ARegionBeyondTheBoundIsRefused) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld);  // regions of 1000 bytes
  for (Contribution& c : in) c.payload_bytes_max = 999;
  in[1].payload_bytes_max = 1000;
  for (const int rank : {0, 2, 3}) in[rank].dense.resize(100);
  const std::vector<Outcome> out = RunAll(world, collective(), in, 1 << 20, 5);
  for (const int rank : {0, 2, 3}) {
    EXPECT_FALSE(out[rank].status.ok()) << "rank " << rank;
    EXPECT_NE(out[rank].status.code(), StatusCode::kDeadlineExceeded) << out[rank].status;
  }
}

TEST_P(LanesFaultTest, PartialLanesAreRefusedOnEveryRank) {
  World world = MakeWorldOf(2);
  std::vector<Contribution> in = Contributions(2);
  in[0].lane_bytes = 24;  // 4000 bytes are no whole number of such lanes
  const std::vector<Outcome> out = RunAll(world, collective(), in, kSegmentBytes, 5);
  EXPECT_EQ(out[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(out[1].status), HasSubstr("whole lanes of 24 bytes"));
}

INSTANTIATE_TEST_SUITE_P(Registry, FaultTest, ::testing::ValuesIn(AllSubjects()), SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, LostMessageTest,
                         ::testing::ValuesIn(Over("inproc", AllSubjects())), SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, SummingFaultTest,
                         ::testing::ValuesIn(Subjects({"lanes", "float_lanes", "table_lanes",
                                                       "shared_index", "own_selections",
                                                       "union_index", "regions", "node_sums",
                                                       "node_shards"})),
                         SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, CallbackFaultTest,
                         ::testing::ValuesIn(Subjects({"shared_index", "union_index", "regions"})),
                         SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, PayloadFaultTest,
                         ::testing::ValuesIn(Subjects({"opaque", "shared_index", "union_index"})),
                         SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, RegionsFaultTest, ::testing::ValuesIn(Subjects({"regions"})),
                         SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, LanesFaultTest, ::testing::ValuesIn(Subjects({"lanes"})),
                         SubjectName);

}  // namespace
}  // namespace weir::testing
