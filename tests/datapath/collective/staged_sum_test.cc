// SPDX-License-Identifier: Apache-2.0
// Sums through the staging buffers of one host: exact for all sizes and any sequence of operations,
// with the same bits on all ranks. No rank gets a wrong sum when ranks disagree, die or lose
// messages.

#include "datapath/collective/staged_sum.h"

#include <numeric>
#include <thread>

#include "datapath/transport/fault.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr OperationId kStagedId{.plan_version = 1, .op_sequence = 1, .bucket = 1};

Lanes Bytewise(std::span<std::byte> bytes, size_t lane_bytes) {
  return {bytes, lane_bytes, [lane_bytes](auto sum, auto addend) {
            EXPECT_EQ(sum.size(), addend.size());
            EXPECT_EQ(sum.size() % lane_bytes, 0u);
            for (size_t i = 0; i < sum.size(); ++i) {
              sum[i] = static_cast<std::byte>(static_cast<unsigned>(sum[i]) +
                                              static_cast<unsigned>(addend[i]));
            }
          }};
}

/// How many bytes ranks sum before their next messages, apart from rounding.
size_t BlockBytes(const World& world) {
  return std::min(world[0]->staging()->own.size() / 2, world.size() * kStagedSlotBytesMax);
}

TEST(StagedSumTest, BytesAreExactForEveryWorldSizeAndLane) {
  for (const int size : {2, 3, 5, 8}) {
    World world = MakeWorld("shm", size);
    ASSERT_NE(world[0]->staging(), nullptr);
    const size_t block = BlockBytes(world);
    // All sizes run one after another in one world, so that each operation finds the data that
    // earlier ones left in the buffers.
    for (const size_t lane_bytes : {1, 4, 12}) {
      for (const size_t about : {size_t{0}, size_t{1}, size_t{100}, block - 64, block, block + 64,
                                 2 * block, 3 * block + 4 * lane_bytes}) {
        const size_t bytes = (about + lane_bytes - 1) / lane_bytes * lane_bytes;
        std::vector<std::vector<std::byte>> data;
        std::vector<std::byte> expected(bytes);
        for (int rank = 0; rank < size; ++rank) {
          data.push_back(Pattern(bytes, static_cast<uint64_t>(rank) + bytes));
          for (size_t i = 0; i < bytes; ++i) {
            expected[i] = static_cast<std::byte>(static_cast<unsigned>(expected[i]) +
                                                 static_cast<unsigned>(data.back()[i]));
          }
        }
        RunRanks(size, [&](int rank) {
          Group group(*world[rank]);
          group.Begin(kStagedId, {}, 0, Within(kPatience));
          const Lanes lanes = Bytewise(data[rank], lane_bytes);
          const Status status = StagedAllReduce(group, lanes);
          EXPECT_TRUE(status.ok()) << status;
          if (bytes % (lane_bytes * size) != 0) return;
          // The bytes that a direct exchange would send: the other chunks, the total to all ranks,
          // and frames.
          EXPECT_GE(group.bytes_sent(), 2 * bytes * (size - 1) / size);
        });
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_TRUE(data[rank] == expected) << "rank " << rank << " of " << size << ", " << bytes
                                              << " bytes in lanes of " << lane_bytes;
        }
      }
    }
  }
}

// proto/WIRE.md section 1: with 2 ranks slot 1 of the first half begins at 524288 and has rank 0's
// contribution to chunk 1.
TEST(StagedSumTest, ContributionsStandWhereTheFormatSays) {
  World world = MakeWorld("shm", 2);
  std::vector<std::vector<std::byte>> data = {Pattern(1 << 20, 1), Pattern(1 << 20, 2)};
  const std::vector<std::byte> shown(data[0].begin() + (1 << 19),
                                     data[0].begin() + (1 << 19) + 4096);
  RunRanks(2, [&](int rank) {
    Group group(*world[rank]);
    group.Begin(kStagedId, {}, 0, Within(kPatience));
    EXPECT_TRUE(StagedAllReduce(group, Bytewise(data[rank], 1)).ok());
  });
  const auto staging = world[1]->staging()->of[0];
  ASSERT_EQ(staging.size(), size_t{8388608});
  EXPECT_TRUE(std::equal(shown.begin(), shown.end(), staging.begin() + 524288));
}

// Ranks are late by random times and start the next operation while others are still in the
// previous one. Lanes of different sizes divide the staging buffers differently.
TEST(StagedSumTest, OperationsFollowOneAnotherHoweverLateSomeRanksAre) {
  constexpr int kWorld = 4, kOperations = 60;
  World world = MakeWorld("shm", kWorld);
  const size_t block = BlockBytes(world);
  RunRanks(kWorld, [&](int rank) {
    Group group(*world[rank]);
    uint64_t drawn = 88172645463325252ull + static_cast<uint64_t>(rank);
    for (int k = 0; k < kOperations; ++k) {
      const size_t lane_bytes = k % 3 == 0 ? 4 : k % 3 == 1 ? 20 : 1;
      const size_t bytes = (block / 4 * (1 + static_cast<size_t>(k * 7 % 11))) / 20 * 20;
      std::vector<std::byte> data(bytes, static_cast<std::byte>(rank * 16 + k));
      drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
      if (drawn % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn % 3000));
      group.Begin({.plan_version = 1, .op_sequence = static_cast<uint64_t>(k), .bucket = 1}, {}, 0,
                  Within(kPatience));
      const Status status = StagedAllReduce(group, Bytewise(data, lane_bytes));
      ASSERT_TRUE(status.ok()) << status;
      const auto expected = static_cast<std::byte>(16 * (0 + 1 + 2 + 3) + kWorld * k);
      ASSERT_EQ(std::count(data.begin(), data.end(), expected), static_cast<ptrdiff_t>(bytes))
          << "operation " << k;
    }
  });
}

TEST(StagedSumTest, FloatsAreTheSameBitsOnAllRanksAndThoseOfMessages) {
  constexpr int kWorld = 5;
  constexpr size_t kElements = 300'007;
  const Collective& mesh = **Collectives().Find("mesh");
  std::vector<Contribution> in(kWorld);
  for (int rank = 0; rank < kWorld; ++rank) {
    std::vector<float> values(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      values[i] = std::sin(static_cast<float>(i * kWorld + static_cast<size_t>(rank)));
    }
    in[rank].lanes = Bytes(values);
  }
  World staged = MakeWorld("shm", kWorld), sent = MakeWorld("tcp", kWorld);
  ASSERT_NE(staged[0]->staging(), nullptr);
  ASSERT_EQ(sent[0]->staging(), nullptr);
  const std::vector<Outcome> by_staging = RunAll(staged, mesh, in), by_tcp = RunAll(sent, mesh, in);
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(by_staging[rank].status.ok()) << by_staging[rank].status;
    ASSERT_TRUE(by_staging[rank].lanes == by_tcp[0].lanes) << "rank " << rank;
    // Messages were not used: the transport moved almost nothing, and the report counts the lanes.
    EXPECT_LT(staged[rank]->bytes_sent(), 100'000u);
    EXPECT_GT(by_staging[rank].report.bytes_sent, 1'900'000u);
  }
}

TEST(StagedSumTest, WordsAndFlagsTravelAlong) {
  World world = MakeWorld("shm", 3);
  std::vector<Contribution> in(3);
  for (Contribution& c : in) c.lanes.resize(1 << 20);
  in[1].flags = 0x10;
  in[2].control.version = 9;
  for (const Outcome& out : RunAll(world, **Collectives().Find("mesh"), in)) {
    EXPECT_TRUE(out.status.ok()) << out.status;
    EXPECT_EQ(out.flags & 0x10, 0x10);
    EXPECT_EQ(out.control.version, 9u);
  }
}

TEST(StagedSumTest, ShortSumsPartsAndTransportsWithoutStagingUseMessages) {
  std::vector<std::byte> data(1 << 20);
  World world = MakeWorld("shm", 2), sent = MakeWorld("tcp", 2);
  Group group(*world[0]), other(*sent[0]);
  EXPECT_TRUE(CanStage(group, Bytewise(data, 4)));
  EXPECT_FALSE(CanStage(group, Bytewise(std::span(data).first(4096), 4)));
  EXPECT_FALSE(CanStage(group, Bytewise(data, data.size())));  // no slot holds a lane
  EXPECT_FALSE(CanStage(other, Bytewise(data, 4)));
  const GroupPart part(group, {0, 1}, 0);
  EXPECT_FALSE(CanStage(group, Bytewise(data, 4)));
}

TEST(StagedSumTest, AnotherSizeIsAnErrorOnEveryRankAndNamesBoth) {
  const Collective& mesh = **Collectives().Find("mesh");
  for (const size_t other : {size_t{1} << 21, size_t{4096}}) {  // the second uses messages
    World world = MakeWorld("shm", 4);
    std::vector<Contribution> in(4);
    for (Contribution& c : in) c.lanes.resize(1 << 20);
    in[2].lanes.resize(other);
    bool both = false;
    for (const Outcome& out : RunAll(world, mesh, in)) {
      EXPECT_FALSE(out.status.ok());
      EXPECT_NE(out.status.code(), StatusCode::kDeadlineExceeded) << out.status;
      EXPECT_THAT(Message(out.status), HasSubstr("rank 2")) << out.status;
      const std::string message = Message(out.status);
      both |= message.find(StrCat(" ", other)) != std::string::npos &&
              message.find(" 1048576") != std::string::npos &&
              message.find("disagree on the operation's size") != std::string::npos;
    }
    EXPECT_EQ(both, other > 65536);
  }
}

std::vector<Contribution> Ones(int world, size_t elements) {
  std::vector<Contribution> in(world);
  for (Contribution& c : in) c.lanes = Bytes(std::vector<float>(elements, 1));
  return in;
}

TEST(StagedSumTest, DeathAtAnyMessageIsNamedOnEverySurvivor) {
  constexpr int kWorld = 4, kDying = 2;
  const std::vector<Contribution> in = Ones(kWorld, 4'000'000);
  for (const uint64_t frames : {1, 3, 5, 8, 13, 20, 30}) {
    FaultOptions faults;
    faults.rank = kDying;
    faults.disconnect_after_frames = frames;
    const auto factory = MakeFaultFactory(FactoryNamed("shm"), faults);
    StatusOr<World> world = ConnectWorld(*factory, kWorld);
    ASSERT_TRUE(world.ok()) << world.status();
    ASSERT_NE((*world)[0]->staging(), nullptr);
    for (const Outcome& out : RunAll(*world, **Collectives().Find("mesh"), in)) {
      EXPECT_EQ(out.status.code(), StatusCode::kUnavailable) << out.status << ", " << frames;
      EXPECT_THAT(Message(out.status), HasSubstr("rank 2"));
    }
  }
}

TEST(StagedSumTest, WhicheverMessageIsLostNobodyEndsWithAWrongSum) {
  constexpr int kWorld = 3;
  constexpr size_t kElements = 1'100'000;  // several blocks
  const std::vector<Contribution> in = Ones(kWorld, kElements);
  const std::vector<std::byte> expected = Bytes(std::vector<float>(kElements, kWorld));
  int failed = 0;
  for (uint64_t frame = 1;; ++frame) {
    FaultOptions faults;
    faults.rank = 1;
    faults.drop_frame = frame;
    const auto factory = MakeFaultFactory(FactoryNamed("shm"), faults);
    StatusOr<World> world = ConnectWorld(*factory, kWorld);
    ASSERT_TRUE(world.ok()) << world.status();
    int late = 0;
    for (const Outcome& out : RunAll(*world, **Collectives().Find("mesh"), in, 1 << 20, 0.3)) {
      late += !out.status.ok();
      EXPECT_TRUE(!out.status.ok() || out.lanes == expected) << "frame " << frame;
    }
    failed += late > 0;
    if (late == 0) break;  // it sends no frame of that number
    ASSERT_LT(frame, 1000u);
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace weir::testing
