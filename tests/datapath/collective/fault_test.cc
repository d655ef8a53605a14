// What happens when the ranks do not agree or one of them fails: every rank ends with an error that
// names the guilty one, and nobody gets a sum.

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
  PayloadForm form() const { return collective().Traits().form; }
  World MakeWorldOf(int size) const { return MakeWorld(GetParam().transport, size); }
};

class SummingFaultTest : public FaultTest {};
class SharedIndexFaultTest : public FaultTest {};
class PayloadFaultTest : public FaultTest {};
class LanesFaultTest : public FaultTest {};

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

// Every rank of a world in which rank 1 differs fails; each message contains both texts.
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
    ExpectAllNameBoth(out, "plan 2 op 17", "plan 3 op 17");
    if (world_size > 2) continue;
    for (const Outcome& outcome : out) EXPECT_EQ(outcome.summed_bytes, 0u);
  }
}

TEST_P(FaultTest, AnotherOperationIsAnErrorOnEveryRank) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld);
  in[1].id.op_sequence = 18;
  ExpectAllNameBoth(RunAll(world, collective(), in, kSegmentBytes), "op 17", "op 18");
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
  ExpectAllNameBoth(RunAll(world, collective(), in), "plan 2 op 17", "plan 3 op 17");
}

TEST_P(SummingFaultTest, AnotherElementCountIsAnErrorOnEveryRank) {
  World world = MakeWorldOf(kWorld);
  std::vector<Contribution> in = Contributions(kWorld);
  in[1] = Contributions(kWorld, 1400)[1];
  in[1].norm_squared = 0;
  if (form() == PayloadForm::kSharedIndex) {
    in[1].dense.resize(500);  // indices of the others lie outside
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

TEST_P(FaultTest, ASilentRankEndsTheOthersAtTheDeadline) {
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
  // A rank that waits for a rank that waits names the latter; whoever waited for rank 1 names it.
  EXPECT_GE(named, 1) << out[0].status << "\n" << out[2].status;
}

TEST_P(SharedIndexFaultTest, AFailedCallbackIsReportedToEveryRank) {
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
    for (const int rank : {0, 2, 3}) in[rank].payload.resize(100);
    const std::vector<Outcome> out = RunAll(world, collective(), in, segment_bytes, 5);
    for (const int rank : {0, 2, 3}) {
      ASSERT_FALSE(out[rank].status.ok()) << "rank " << rank;
      EXPECT_THAT(Message(out[rank].status), HasSubstr("rank 1"));
      EXPECT_THAT(Message(out[rank].status), HasSubstr("3999"));
    }
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
INSTANTIATE_TEST_SUITE_P(
    Registry, SummingFaultTest,
    ::testing::ValuesIn(Subjects({PayloadForm::kLanes, PayloadForm::kSharedIndex})), SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, SharedIndexFaultTest,
                         ::testing::ValuesIn(Subjects({PayloadForm::kSharedIndex})), SubjectName);
INSTANTIATE_TEST_SUITE_P(
    Registry, PayloadFaultTest,
    ::testing::ValuesIn(Subjects({PayloadForm::kOpaque, PayloadForm::kSharedIndex})), SubjectName);
INSTANTIATE_TEST_SUITE_P(Registry, LanesFaultTest,
                         ::testing::ValuesIn(Subjects({PayloadForm::kLanes})), SubjectName);

}  // namespace
}  // namespace weir::testing
