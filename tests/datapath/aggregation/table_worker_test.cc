// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/table_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <vector>

#include "datapath/base/random.h"
#include "tests/datapath/aggregation/lossy_world.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;

/// The published table for four bits, granularity 30 and a tail of 1/32.
const std::vector<uint8_t> kPublishedLevels = {0,  3,  5,  7,  9,  11, 13, 14,
                                               16, 17, 19, 21, 23, 25, 27, 30};

Lease TableLease(int workers, int sum_bits, uint16_t lanes) {
  return {.id = 2,
          .epoch = 1,
          .mode = PacketMode::kTable,
          .workers = workers,
          .slots = 3,
          .lanes = lanes,
          .sum_bits = sum_bits,
          .levels = kPublishedLevels};
}

struct TableFleet {
  TableFleet(const Lease& lease, size_t size, uint64_t seed) {
    Random random(seed);
    const auto count = static_cast<size_t>(lease.workers);
    indices.assign(count, std::vector<uint8_t>(size));
    means.assign(count, std::vector<float>(size, 99.0f));
    for (auto& row : indices) {
      for (uint8_t& index : row) index = static_cast<uint8_t>(random.Below(16));
    }
    for (int w = 0; w < lease.workers; ++w) {
      workers.push_back(std::make_unique<TableWorker>(lease, kFastTimeouts, w));
      all.push_back(workers.back().get());
    }
  }

  void Begin(uint32_t operation, TimePoint now) {
    for (size_t w = 0; w < workers.size(); ++w) {
      const Status begun =
          workers[w]->Begin(indices[w], means[w], operation, now + std::chrono::seconds(50));
      ASSERT_TRUE(begun.ok()) << begun;
    }
  }

  /// The mean over a set of workers, by the definition.
  float Mean(uint64_t contributors, size_t element) const {
    int sum = 0;
    for (size_t w = 0; w < workers.size(); ++w) {
      if ((contributors >> w & 1) != 0) sum += kPublishedLevels[indices[w][element]];
    }
    return static_cast<float>(sum) / static_cast<float>(std::popcount(contributors)) - 15.0f;
  }

  std::vector<std::vector<uint8_t>> indices;
  std::vector<std::vector<float>> means;
  std::vector<std::unique_ptr<TableWorker>> workers;
  std::vector<Worker*> all;
};

TEST(TableWorkerTest, MeansAreExactInEightAndSixteenBits) {
  const struct {
    int workers, bits;
    uint16_t lanes;
  } cases[] = {{1, 8, 16}, {3, 8, 8}, {8, 8, 1024}, {9, 16, 8}, {64, 16, 512}};
  for (const auto& [workers, bits, lanes] : cases) {
    SCOPED_TRACE(::testing::Message() << workers << " workers");
    const Lease lease = TableLease(workers, bits, lanes);
    LossyWorld world(lease, BadNetwork(static_cast<uint64_t>(workers)));
    TableFleet fleet(lease, 101, 4);
    fleet.Begin(0, world.now());
    world.Run(fleet.all);
    const uint64_t everybody = ~uint64_t{0} >> (64 - workers);
    for (size_t w = 0; w < fleet.workers.size(); ++w) {
      ASSERT_TRUE(fleet.workers[w]->status().ok()) << fleet.workers[w]->status();
      for (size_t i = 0; i < 101; ++i) {
        ASSERT_EQ(fleet.means[w][i], fleet.Mean(everybody, i)) << i;
        ASSERT_TRUE(fleet.workers[w]->Contributed(i));
      }
    }
  }
}

TEST(TableWorkerTest, TheNinthWorkerDoesNotFitEightBitsOfTheTable) {
  EXPECT_TRUE(Validate(TableLease(8, 8, 8)).ok());
  EXPECT_THAT(Message(Validate(TableLease(9, 8, 8))), HasSubstr("at most 255, found 270"));
  EXPECT_TRUE(Validate(TableLease(64, 16, 8)).ok());
}

TEST(TableWorkerTest, ACrashedWorkerIsLeftOutAfterTheCutOff) {
  Lease lease = TableLease(4, 8, 8);
  lease.quorum = 2;
  lease.cutoff = std::chrono::milliseconds(5);
  LossyWorld world(lease, BadNetwork(3));
  TableFleet fleet(lease, 100, 5);
  fleet.Begin(0, world.now());
  fleet.all[2] = nullptr;
  world.Run(fleet.all);
  EXPECT_GT(world.aggregator().counters().cut_off, 0u);
  for (size_t w : {0u, 1u, 3u}) {
    ASSERT_TRUE(fleet.workers[w]->status().ok()) << fleet.workers[w]->status();
    for (size_t i = 0; i < 100; ++i) {
      const uint64_t contributors = fleet.workers[w]->contributors(i / 8);
      EXPECT_EQ(contributors >> 2 & 1, 0u);
      if (contributors == 0) {
        EXPECT_EQ(fleet.means[w][i], 0.0f);
      } else {
        EXPECT_EQ(fleet.means[w][i], fleet.Mean(contributors, i));
      }
      EXPECT_EQ(fleet.workers[w]->Contributed(i), (contributors >> w & 1) != 0);
    }
  }
}

TEST(TableWorkerTest, AStragglerFinishesWithoutBlockingAnybodyAndKnowsWhatItMissed) {
  Lease lease = TableLease(3, 8, 8);
  lease.quorum = 2;
  lease.cutoff = std::chrono::milliseconds(2);
  LossyWorld world(lease, {});
  TableFleet fleet(lease, 8 * 30, 6);
  fleet.Begin(0, world.now());
  // The other two go through the whole operation alone.
  std::vector<Worker*> two = {fleet.all[0], fleet.all[1], nullptr};
  world.Run(two);
  ASSERT_TRUE(fleet.workers[0]->done() && fleet.workers[1]->done());
  std::vector<Worker*> three = fleet.all;
  world.Run(three);
  TableWorker& late = *fleet.workers[2];
  ASSERT_TRUE(late.done() && late.status().ok()) << late.status();
  EXPECT_GT(late.counters().expired, 0u);
  for (size_t i = 0; i < 8 * 30; ++i) {
    EXPECT_FALSE(late.Contributed(i));
    const uint64_t contributors = late.contributors(i / 8);
    EXPECT_TRUE(contributors == 0 || contributors == 3);
    EXPECT_EQ(fleet.means[2][i], contributors == 0 ? 0.0f : fleet.Mean(3, i));
  }
  // The worker takes part in the next operation again.
  fleet.Begin(1, world.now());
  world.Run(fleet.all);
  for (size_t w = 0; w < 3; ++w) {
    ASSERT_TRUE(fleet.workers[w]->status().ok());
    EXPECT_EQ(fleet.workers[w]->contributors(29), 7u);
  }
}

TEST(TableWorkerTest, RefusesIndicesThatAreNone) {
  TableWorker worker(TableLease(1, 8, 8), kFastTimeouts, 0);
  const std::vector<uint8_t> indices = {1, 16};
  std::vector<float> means(2);
  EXPECT_THAT(Message(worker.Begin(indices, means, 0, {})), HasSubstr("found 16"));
  EXPECT_EQ(worker.Begin(indices, std::span(means).first(1), 0, {}).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir::aggregation
