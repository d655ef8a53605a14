// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/sparse_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "datapath/aggregation/max_worker.h"
#include "datapath/aggregation/quantise.h"
#include "datapath/base/random.h"
#include "tests/datapath/aggregation/lossy_world.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;
using SparseTensors = std::vector<std::vector<float>>;

Lease SparseLease(int workers, uint16_t slots, uint8_t columns, uint16_t lanes) {
  return {.id = 9,
          .epoch = 4,
          .cookie = 1,
          .mode = PacketMode::kSparse,
          .workers = workers,
          .slots = slots,
          .lanes = lanes,
          .columns = columns};
}

/// Blocks of `lanes` elements that are not zero with probability `density`, of each worker alone.
SparseTensors RandomBlocks(const Lease& lease, size_t size, double density, uint64_t seed) {
  Random random(seed);
  SparseTensors all(static_cast<size_t>(lease.workers), std::vector<float>(size));
  for (auto& tensor : all) {
    for (size_t at = 0; at < size; at += lease.lanes) {
      if (random.Uniform() >= density) continue;
      for (size_t i = at; i < std::min<size_t>(size, at + lease.lanes); ++i) {
        tensor[i] = static_cast<float>(random.Normal());
      }
    }
  }
  return all;
}

uint16_t SharedCode(const SparseTensors& tensors) {
  uint16_t code = 0;
  for (const auto& tensor : tensors) code = std::max(code, ExponentCode(tensor));
  return code;
}

std::vector<float> ExpectedSparseSum(const SparseTensors& tensors) {
  double greatest = 0;
  for (const auto& tensor : tensors) {
    for (const float x : tensor) greatest = std::max<double>(greatest, std::abs(x));
  }
  int k = 0, e = -1000;
  while (static_cast<double>(tensors.size()) * std::ldexp(1.0, k + 1) < 2147483648.0) ++k;
  while (std::ldexp(1.0, e) <= greatest) ++e;
  std::vector<float> sum(tensors[0].size());
  for (size_t i = 0; i < sum.size(); ++i) {
    double total = 0;
    for (const auto& tensor : tensors) {
      total += std::nearbyint(std::ldexp(static_cast<double>(tensor[i]), k - e));
    }
    sum[i] = static_cast<float>(std::ldexp(total, e - k));
  }
  return sum;
}

/// Blocks that some worker has.
size_t UnionBlocks(const SparseTensors& tensors, size_t lanes) {
  std::set<size_t> blocks;
  for (const auto& tensor : tensors) {
    for (size_t i = 0; i < tensor.size(); ++i) {
      if (tensor[i] != 0) blocks.insert(i / lanes);
    }
  }
  return blocks.size();
}

size_t OwnBlocks(const std::vector<float>& tensor, size_t lanes) {
  return UnionBlocks({tensor}, lanes);
}

struct SparseCase {
  Lease lease;
  std::vector<size_t> sizes;
  double density = 0.2;
  LinkFaults faults;
};

void RunRecovering(const SparseCase& c) {
  SCOPED_TRACE(::testing::Message()
               << c.lease.workers << " workers, " << int{c.lease.columns} << " columns, density "
               << c.density << ", seed " << c.faults.seed);
  SparseTensors tensors;
  std::vector<std::unique_ptr<SparseWorker>> workers;
  std::vector<Worker*> all;
  for (int w = 0; w < c.lease.workers; ++w) {
    workers.push_back(std::make_unique<SparseWorker>(c.lease, kFastTimeouts, w));
    all.push_back(workers.back().get());
  }
  LossyWorld world(c.lease, c.faults);
  uint32_t operation = 0;
  for (const size_t size : c.sizes) {
    SCOPED_TRACE(::testing::Message() << size << " elements");
    tensors = RandomBlocks(c.lease, size, c.density, size + c.faults.seed);
    const std::vector<float> expected = ExpectedSparseSum(tensors);
    const uint16_t code = SharedCode(tensors);
    for (size_t w = 0; w < workers.size(); ++w) {
      ASSERT_TRUE(workers[w]
                      ->Begin(tensors[w], code, operation, world.now() + std::chrono::seconds(50))
                      .ok());
    }
    ++operation;
    world.Run(all);
    for (size_t w = 0; w < workers.size(); ++w) {
      ASSERT_TRUE(workers[w]->done() && workers[w]->status().ok()) << workers[w]->status();
      ASSERT_EQ(tensors[w], expected);
    }
  }
}

TEST(SparseWorkerTest, SumsExactlyOverAQuietNetwork) {
  for (const uint8_t columns : {1, 3, 4}) {
    for (const double density : {0.0, 0.05, 0.5, 1.0}) {
      RunRecovering({SparseLease(3, 2, columns, 4), {0, 1, 4, 5, 31, 32, 33, 200}, density, {}});
    }
  }
}

TEST(SparseWorkerTest, SumsExactlyWhenPacketsAreLostRepeatedAndReordered) {
  for (const int workers : {1, 2, 3, 8}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      RunRecovering({SparseLease(workers, 3, static_cast<uint8_t>(seed), 4),
                     {300, 0, 17, 100},
                     0.1 * static_cast<double>(seed),
                     BadNetwork(seed)});
    }
  }
}

TEST(SparseWorkerTest, WorldsOfEverySizeUpTo64) {
  for (int workers = 1; workers <= 64; ++workers) {
    RunRecovering(
        {SparseLease(workers, 2, 2, 2), {25}, 0.1, BadNetwork(static_cast<uint64_t>(workers))});
  }
}

TEST(SparseWorkerTest, OnlyBlocksThatExistTravel) {
  const Lease lease = SparseLease(3, 2, 2, 8);
  SparseTensors tensors = RandomBlocks(lease, 8 * 400, 0.05, 3);
  std::vector<size_t> own;
  for (const auto& tensor : tensors) own.push_back(OwnBlocks(tensor, lease.lanes));
  const uint16_t code = SharedCode(tensors);
  std::vector<std::unique_ptr<SparseWorker>> workers;
  std::vector<Worker*> all;
  LossyWorld world(lease, {});
  for (int w = 0; w < 3; ++w) {
    workers.push_back(std::make_unique<SparseWorker>(lease, kFastTimeouts, w));
    all.push_back(workers.back().get());
    ASSERT_TRUE(
        workers.back()
            ->Begin(tensors[static_cast<size_t>(w)], code, 0, world.now() + std::chrono::seconds(9))
            .ok());
  }
  world.Run(all);
  for (size_t w = 0; w < 3; ++w) {
    EXPECT_EQ(workers[w]->counters().resent, 0u);
    EXPECT_EQ(workers[w]->blocks_sent(), own[w]);
  }
}

// For callers who may still need their input.
TEST(SparseWorkerTest, CollectsSumsOfBlocksAndLeavesItsInput) {
  const Lease lease = SparseLease(3, 2, 2, 8);
  SparseTensors tensors = RandomBlocks(lease, 8 * 100 + 3, 0.1, 5);
  const SparseTensors before = tensors;
  const std::vector<float> expected = ExpectedSparseSum(tensors);
  std::vector<BlockSurvey> surveys;
  for (const auto& tensor : tensors) surveys.push_back(SurveyBlocks(tensor, lease.lanes));
  uint16_t code = 0;
  for (const BlockSurvey& survey : surveys) code = std::max(code, survey.code);
  EXPECT_EQ(code, SharedCode(tensors));
  std::vector<std::unique_ptr<SparseWorker>> workers;
  std::vector<Worker*> all;
  std::vector<BlockSums> sums(3);
  LossyWorld world(lease, BadNetwork(4));
  for (size_t w = 0; w < 3; ++w) {
    workers.push_back(std::make_unique<SparseWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers.back().get());
    const std::span<const float> data = tensors[w];
    ASSERT_TRUE(
        workers[w]
            ->Begin(data, surveys[w], code, &sums[w], 0, world.now() + std::chrono::seconds(50))
            .ok());
  }
  world.Run(all);
  EXPECT_EQ(tensors, before);
  for (size_t w = 0; w < 3; ++w) {
    ASSERT_TRUE(workers[w]->status().ok()) << workers[w]->status();
    // The first block of each column is always sent, without lanes if no worker has it.
    EXPECT_EQ(sums[w].blocks.size(), UnionBlocks(before, lease.lanes));
    sums[w].Store(lease.lanes, tensors[w]);
    EXPECT_EQ(tensors[w], expected);
  }
}

TEST(SurveyBlocksTest, ABlockIsThereForAnyBitAndTheLastMayBeShort) {
  std::vector<float> data(13);
  data[5] = -0.0f;
  data[12] = 3;
  const BlockSurvey survey = SurveyBlocks(data, 4);
  EXPECT_EQ(survey.non_zero, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(survey.code, ExponentCode(data));
  EXPECT_TRUE(SurveyBlocks({}, 4).non_zero.empty());
  data[0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SurveyBlocks(data, 4).code, kExponentNonFinite);
}

TEST(SparseWorkerTest, RefusesNextsThatWouldRunForEverOrSkipABlock) {
  const Lease lease = SparseLease(1, 1, 1, 2);
  for (const uint32_t next : {0u, 1u, 3u, 100u, kNoBlock}) {
    std::vector<float> data = {1, 1, 0, 0, 2, 2, 0, 0};
    SparseWorker worker(lease, kFastTimeouts, 0);
    const TimePoint now = TimePoint(std::chrono::seconds(1));
    ASSERT_TRUE(worker.Begin(data, ExponentCode(data), 0, now + std::chrono::seconds(1)).ok());
    const auto packet = worker.NextPacket(now);
    std::vector<std::byte> reply(packet.begin(), packet.end());
    PacketHeader header = DecodePacket(packet)->header;
    header.flags |= kPacketReply;
    header.contributions = 1;
    EncodePacketHeader(header, std::span(reply).first<kPacketHeaderBytes>());
    StoreLanes({&next, 1}, false, std::span(reply).subspan(kPacketHeaderBytes));
    SealPacket(reply);
    worker.OnPacket(reply, now);
    // Column of one: blocks 0 .. 3 follow each other; 1 is before our next block, 2, hence allowed.
    EXPECT_EQ(worker.status().ok(), next == 1) << next << ": " << worker.status();
  }
}

TEST(SparseWorkerTest, RefusesAnExponentThatIsNoneOrTooLow) {
  const Lease lease = SparseLease(1, 1, 1, 2);
  std::vector<float> data = {1, 1};
  SparseWorker worker(lease, kFastTimeouts, 0);
  EXPECT_EQ(worker.Begin(data, kExponentNonFinite, 0, {}).code(), StatusCode::kInvalidArgument);
  const auto low = static_cast<uint16_t>(ExponentCode(data) - 1);
  EXPECT_EQ(worker.Begin(data, low, 0, {}).code(), StatusCode::kInvalidArgument);
}

/// Streams that keep their order; the seed chooses which of them advances.
struct StreamWorld {
  StreamWorld(const Lease& lease, uint64_t seed) : pool(lease), random(seed) {
    for (int w = 0; w < lease.workers; ++w) {
      workers.push_back(std::make_unique<SparseStreamWorker>(lease, w));
    }
    up.resize(workers.size());
    down.resize(workers.size());
  }

  void Run() {
    for (bool moved = true; moved;) {
      for (size_t w = 0; w < workers.size(); ++w) {
        for (auto p = workers[w]->NextPacket(); !p.empty(); p = workers[w]->NextPacket()) {
          up[w].emplace_back(p.begin(), p.end());
        }
      }
      moved = false;
      for (size_t i = 0, from = random.Below(workers.size()); i < workers.size() && !moved; ++i) {
        moved = Move((from + i) % workers.size());
      }
    }
  }

  bool Move(size_t w) {
    if (!down[w].empty() && (up[w].empty() || random.Below(2) == 0)) {
      workers[w]->OnPacket(down[w].front());
      down[w].pop_front();
      return true;
    }
    if (up[w].empty()) return false;
    const StatusOr<Packet> packet = DecodePacket(up[w].front());
    EXPECT_TRUE(packet.ok());
    const StatusOr<Outcome> outcome = pool.OnPacket(static_cast<int>(w), *packet);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    if (outcome.ok() && outcome->verdict == Verdict::kCompleted) {
      for (auto& line : down) line.emplace_back(outcome->reply.begin(), outcome->reply.end());
    }
    up[w].pop_front();
    return true;
  }

  std::vector<std::unique_ptr<SparseStreamWorker>> workers;
  SparseStreamPool pool;
  Random random;
  std::vector<std::deque<std::vector<std::byte>>> up, down;
};

TEST(SparseStreamTest, SumsExactlyHoweverTheStreamsInterleave) {
  for (const int workers : {1, 2, 3, 8, 64}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      for (const uint8_t columns : {1, 3}) {
        SCOPED_TRACE(::testing::Message() << workers << " workers, seed " << seed);
        const Lease lease = SparseLease(workers, 2, columns, 4);
        StreamWorld world(lease, seed);
        SparseTensors tensors;
        uint32_t operation = 0;
        for (const size_t size : {100, 0, 1, 33, 64}) {
          tensors =
              RandomBlocks(lease, static_cast<size_t>(size), 0.1 * static_cast<double>(seed), seed);
          const std::vector<float> expected = ExpectedSparseSum(tensors);
          const uint16_t code = SharedCode(tensors);
          for (size_t w = 0; w < tensors.size(); ++w) {
            ASSERT_TRUE(world.workers[w]->Begin(tensors[w], code, operation).ok());
          }
          ++operation;
          world.Run();
          for (size_t w = 0; w < tensors.size(); ++w) {
            ASSERT_TRUE(world.workers[w]->done() && world.workers[w]->status().ok())
                << world.workers[w]->status();
            ASSERT_EQ(tensors[w], expected);
          }
        }
      }
    }
  }
}

TEST(SparseStreamTest, AWorkerWithoutBlocksSaysNothingAfterItsFirstPackets) {
  const Lease lease = SparseLease(2, 2, 1, 4);
  StreamWorld world(lease, 1);
  SparseTensors tensors(2, std::vector<float>(4 * 100));
  std::fill(tensors[0].begin(), tensors[0].end(), 1.0f);
  const uint16_t code = SharedCode(tensors);
  for (size_t w = 0; w < 2; ++w) ASSERT_TRUE(world.workers[w]->Begin(tensors[w], code, 0).ok());
  world.Run();
  EXPECT_EQ(world.workers[0]->packets_sent(), 100u);
  EXPECT_EQ(world.workers[1]->packets_sent(), 2u);
  EXPECT_EQ(tensors[1], std::vector<float>(400, 1.0f));
}

TEST(SparseStreamTest, ADisorderlyStreamIsAnError) {
  const Lease lease = SparseLease(2, 1, 1, 2);
  SparseStreamPool pool(lease);
  SparseStreamWorker worker(lease, 0);
  std::vector<float> data = {1, 1};
  ASSERT_TRUE(worker.Begin(data, ExponentCode(data), 0).ok());
  const auto message = worker.NextPacket();
  Packet packet = *DecodePacket(message);
  EXPECT_TRUE(pool.OnPacket(0, packet).ok());
  EXPECT_EQ(pool.OnPacket(0, packet).status().code(), StatusCode::kDataLoss);  // twice
  packet.header.round = 1;
  EXPECT_THAT(Message(pool.OnPacket(1, packet).status()), HasSubstr("expected round 0"));
  worker.OnPacket(message);  // no reply
  EXPECT_EQ(worker.status().code(), StatusCode::kDataLoss);
}

TEST(MaxWorkerTest, FindsTheGreatestOfEachNumber) {
  const Lease lease = {
      .id = 1, .epoch = 1, .mode = PacketMode::kMax, .workers = 5, .slots = 3, .lanes = 4};
  LossyWorld world(lease, BadNetwork(2));
  std::vector<std::vector<uint32_t>> values(5, std::vector<uint32_t>(41));
  std::vector<uint32_t> expected(41);
  Random random(1);
  for (size_t i = 0; i < 41; ++i) {
    for (auto& row : values) {
      row[i] = std::bit_cast<uint32_t>(static_cast<float>(random.Uniform()));
      expected[i] = std::max(expected[i], row[i]);
    }
  }
  std::vector<std::unique_ptr<MaxWorker>> workers;
  std::vector<Worker*> all;
  for (size_t w = 0; w < 5; ++w) {
    workers.push_back(std::make_unique<MaxWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers.back().get());
    ASSERT_TRUE(workers[w]->Begin(values[w], 0, world.now() + std::chrono::seconds(9)).ok());
  }
  world.Run(all);
  for (size_t w = 0; w < 5; ++w) {
    ASSERT_TRUE(workers[w]->status().ok()) << workers[w]->status();
    EXPECT_EQ(values[w], expected);
  }
}

}  // namespace
}  // namespace weir::aggregation
