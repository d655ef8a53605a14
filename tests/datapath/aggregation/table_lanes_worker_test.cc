// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/table_lanes_worker.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "datapath/base/random.h"
#include "tests/datapath/aggregation/lossy_world.h"

namespace weir::aggregation {
namespace {

Lease TableLanesLease(int workers, int sum_bits, uint16_t lanes) {
  return {.id = 4,
          .epoch = 1,
          .mode = PacketMode::kTable,
          .workers = workers,
          .slots = 4,
          .lanes = lanes,
          .sum_bits = sum_bits,
          .levels = {0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30}};
}

template <typename Lane>
void ExpectSumsOfLanes(const Lease& lease, size_t count) {
  SCOPED_TRACE(::testing::Message() << lease.workers << " workers, " << count << " lanes of "
                                    << lease.sum_bits << " bits");
  Random random(count + 1);
  std::vector<std::vector<Lane>> lanes(static_cast<size_t>(lease.workers),
                                       std::vector<Lane>(count));
  std::vector<Lane> expected(count);
  for (auto& own : lanes) {
    for (size_t i = 0; i < count; ++i) {
      own[i] = static_cast<Lane>(lease.levels[random.Next() % kTableLevels] - 15);
      expected[i] = static_cast<Lane>(expected[i] + own[i]);
    }
  }
  LossyWorld world(lease, BadNetwork(count + 3));
  std::vector<std::unique_ptr<TableLanesWorker>> workers;
  std::vector<Worker*> all;
  std::vector<std::vector<Lane>> sums(lanes.size(), std::vector<Lane>(count));
  for (size_t w = 0; w < lanes.size(); ++w) {
    workers.push_back(
        std::make_unique<TableLanesWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers[w].get());
    const auto in = std::as_bytes(std::span(lanes[w]));
    ASSERT_TRUE(workers[w]->Carries(in));
    ASSERT_TRUE(workers[w]
                    ->Begin(in, std::as_writable_bytes(std::span(sums[w])), 0,
                            world.now() + std::chrono::seconds(50))
                    .ok());
  }
  world.Run(all);
  for (size_t w = 0; w < lanes.size(); ++w) {
    ASSERT_TRUE(workers[w]->status().ok()) << workers[w]->status();
    EXPECT_EQ(sums[w], expected) << "worker " << w;
  }
}

TEST(TableLanesWorkerTest, SumsAreThoseOfTheLanes) {
  for (const size_t count : {0, 1, 2, 63, 64, 65, 1000}) {
    ExpectSumsOfLanes<int8_t>(TableLanesLease(4, 8, 64), count);
    ExpectSumsOfLanes<int16_t>(TableLanesLease(9, 16, 64), count);
  }
  Lease little = TableLanesLease(3, 16, 512);
  little.little_endian = true;
  ExpectSumsOfLanes<int16_t>(little, 3000);
}

// A worker's sum is that of the contributors it names, and is the same on all workers that have it.
TEST(TableLanesWorkerTest, SumsAfterACutOffAreOfTheWorkersThatTheySayTheyAreOf) {
  constexpr size_t kLanes = 64 * 20 + 17;
  Lease lease = TableLanesLease(4, 8, 64);
  lease.quorum = 2;
  lease.cutoff = std::chrono::milliseconds(2);
  uint64_t partial = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    LossyWorld world(lease, BadNetwork(seed));
    std::vector<std::vector<int8_t>> lanes(4, std::vector<int8_t>(kLanes)), sums = lanes;
    std::vector<std::unique_ptr<TableLanesWorker>> workers;
    std::vector<Worker*> all;
    Random random(seed);
    for (size_t w = 0; w < 4; ++w) {
      for (int8_t& lane : lanes[w]) {
        lane = static_cast<int8_t>(lease.levels[random.Next() % kTableLevels] - 15);
      }
      workers.push_back(
          std::make_unique<TableLanesWorker>(lease, kFastTimeouts, static_cast<int>(w)));
      all.push_back(workers[w].get());
      ASSERT_TRUE(workers[w]
                      ->Begin(std::as_bytes(std::span(lanes[w])),
                              std::as_writable_bytes(std::span(sums[w])), 0,
                              world.now() + std::chrono::seconds(50))
                      .ok());
    }
    world.Run(all);
    for (size_t packet = 0; packet < 21; ++packet) {
      uint64_t agreed = 0;
      for (size_t w = 0; w < 4; ++w) {
        ASSERT_TRUE(workers[w]->status().ok()) << workers[w]->status();
        const uint64_t set = workers[w]->contributors()[packet];
        if (agreed == 0) agreed = set;
        EXPECT_TRUE(set == 0 || set == agreed);
        for (size_t i = packet * 64; i < std::min<size_t>(kLanes, (packet + 1) * 64); ++i) {
          int expected = 0;
          for (size_t other = 0; other < 4; ++other) {
            if ((set >> other & 1) != 0) expected += lanes[other][i];
          }
          ASSERT_EQ(sums[w][i], expected) << "seed " << seed << " worker " << w << " lane " << i;
        }
      }
      partial += agreed != 15 ? 1 : 0;
    }
  }
  EXPECT_GT(partial, 0u) << "nobody was left out";
}

TEST(TableLanesWorkerTest, CarriesWholeLanesOfItsLevelsAlone) {
  const TableLanesWorker narrow(TableLanesLease(2, 8, 64), kFastTimeouts, 0);
  const TableLanesWorker wide(TableLanesLease(2, 16, 64), kFastTimeouts, 0);
  for (int value = -128; value < 128; ++value) {
    const std::vector<uint8_t> levels = TableLanesLease(2, 8, 64).levels;
    const bool level = std::count(levels.begin(), levels.end(), value + 15) > 0;
    const std::vector<int8_t> bytes = {-15, 15, static_cast<int8_t>(value)};
    const std::vector<int16_t> words = {-15, 15, static_cast<int16_t>(value)};
    EXPECT_EQ(narrow.Carries(std::as_bytes(std::span(bytes))), level) << value;
    EXPECT_EQ(wide.Carries(std::as_bytes(std::span(words))), level) << value;
  }
  const std::vector<int16_t> far = {-32768, 32767, 241 + 15};
  for (const int16_t& lane : far) {
    EXPECT_FALSE(wide.Carries(std::as_bytes(std::span(&lane, 1)))) << lane;
  }
  const std::vector<int8_t> half = {0, 0, 0};
  EXPECT_FALSE(wide.Carries(std::as_bytes(std::span(half)))) << "a lane and a half";
}

TEST(TableLanesWorkerTest, RoomOfAnotherSizeIsRefused) {
  TableLanesWorker worker(TableLanesLease(2, 8, 64), kFastTimeouts, 0);
  const std::vector<int8_t> lanes(4);
  std::vector<int8_t> sums(3);
  EXPECT_EQ(worker
                .Begin(std::as_bytes(std::span(lanes)), std::as_writable_bytes(std::span(sums)), 0,
                       TimePoint())
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir::aggregation
