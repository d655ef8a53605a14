// SPDX-License-Identifier: Apache-2.0
// The codec and the protocol together: the lanes of the codec thc travel as four-bit indices and
// come back as the sum that the codec would have made of its own payloads.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "datapath/aggregation/max_worker.h"
#include "datapath/aggregation/table_worker.h"
#include "datapath/base/random.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/thc_table.h"
#include "tests/datapath/aggregation/lossy_world.h"

namespace weir::aggregation {
namespace {

constexpr int kWorkers = 4;
constexpr int kGranularity = 58;   // the codec's for up to four ranks: 4 * 58 fits 8 bits
constexpr uint16_t kLanes = 1024;  // one rotation a packet

const Codec& ThcCodec() {
  const StatusOr<const Codec*> codec = Codecs().Find("thc");
  WEIR_CHECK(codec.ok());
  return **codec;
}

Lease ThcLease(const std::vector<int>& table) {
  Lease lease = {.id = 1,
                 .epoch = 1,
                 .mode = PacketMode::kTable,
                 .workers = kWorkers,
                 .slots = 2,
                 .lanes = kLanes,
                 .sum_bits = 8};
  for (const int level : table) lease.levels.push_back(static_cast<uint8_t>(level));
  return lease;
}

/// The greatest norms of every rotation, by the protocol.
SharedMax ExchangeNorms(const std::vector<SharedMax>& norms) {
  const Lease lease = {
      .id = 2, .epoch = 1, .mode = PacketMode::kMax, .workers = kWorkers, .slots = 1, .lanes = 2};
  LossyWorld world(lease, BadNetwork(8));
  std::vector<std::vector<uint32_t>> bits;
  for (const SharedMax& own : norms) {
    bits.emplace_back();
    for (const float norm : own.values()) bits.back().push_back(std::bit_cast<uint32_t>(norm));
  }
  std::vector<std::unique_ptr<MaxWorker>> workers;
  std::vector<Worker*> all;
  for (size_t w = 0; w < norms.size(); ++w) {
    workers.push_back(std::make_unique<MaxWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers[w].get());
    EXPECT_TRUE(workers[w]->Begin(bits[w], 0, world.now() + std::chrono::seconds(9)).ok());
  }
  world.Run(all);
  std::vector<float> greatest;
  for (const auto& found : bits) EXPECT_EQ(found, bits[0]);
  for (const uint32_t norm : bits[0]) greatest.push_back(std::bit_cast<float>(norm));
  return SharedMax(std::move(greatest));
}

TEST(ThcTest, TheSumOfIndicesIsTheCodecsSumOfLanes) {
  const Codec& codec = ThcCodec();
  const std::vector<int> table =
      OptimalThcTable({.bits = 4, .granularity = kGranularity, .range = 2.4177f});
  ASSERT_EQ(table.size(), kTableLevels);
  constexpr size_t kElements = 5000;
  Random random(11);
  std::vector<std::vector<float>> gradients(kWorkers, std::vector<float>(kElements));
  std::vector<SharedMax> norms;
  SharedMax expected;
  EncodeContext context;
  context.params.bits = 8;
  context.world = kWorkers;
  context.seed = 99;
  for (auto& gradient : gradients) {
    for (float& x : gradient) x = static_cast<float>(random.Normal());
    norms.push_back(codec.LocalMax(gradient, {}, context));
    expected.Merge(norms.back());
  }
  context.shared_max = ExchangeNorms(norms);
  ASSERT_EQ(context.shared_max.values().size(), 5);  // 5000 elements
  EXPECT_TRUE(std::ranges::equal(context.shared_max.values(), expected.values()));

  const size_t lanes = codec.MaxEncodedBytes(kElements, context);
  std::vector<std::vector<uint8_t>> indices(kWorkers, std::vector<uint8_t>(lanes));
  std::vector<std::byte> own_sum;
  for (int w = 0; w < kWorkers; ++w) {
    context.rank = w;
    std::vector<std::byte> payload(lanes);
    ASSERT_TRUE(codec.Encode(gradients[static_cast<size_t>(w)], context, payload).ok());
    for (size_t i = 0; i < lanes; ++i) {
      const int level = static_cast<int8_t>(payload[i]) + kGranularity / 2;
      const auto at = std::find(table.begin(), table.end(), level);
      ASSERT_NE(at, table.end());
      indices[static_cast<size_t>(w)][i] = static_cast<uint8_t>(at - table.begin());
    }
    if (w == 0) {
      own_sum = payload;
    } else {
      codec.Accumulate(context, own_sum, payload);
    }
  }

  const Lease lease = ThcLease(table);
  LossyWorld world(lease, BadNetwork(9));
  std::vector<std::vector<float>> means(kWorkers, std::vector<float>(lanes));
  std::vector<std::unique_ptr<TableWorker>> workers;
  std::vector<Worker*> all;
  for (size_t w = 0; w < kWorkers; ++w) {
    workers.push_back(std::make_unique<TableWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers[w].get());
    ASSERT_TRUE(
        workers[w]->Begin(indices[w], means[w], 0, world.now() + std::chrono::seconds(9)).ok());
  }
  world.Run(all);
  for (size_t w = 0; w < kWorkers; ++w) {
    ASSERT_TRUE(workers[w]->status().ok()) << workers[w]->status();
    for (size_t i = 0; i < lanes; ++i) {
      ASSERT_EQ(std::lround(means[w][i] * kWorkers), static_cast<int8_t>(own_sum[i])) << i;
    }
  }
}

/// One job's operation with losses in both directions: the gradients and the workers' results.
struct LossyRun {
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> means;  // by worker, of lanes
  EncodeContext context;                  // of the last worker
  std::vector<std::byte> own_sum;         // of the codec's payloads, added by the codec
  uint64_t repeated = 0;
};

LossyRun RunThc(double loss, uint64_t seed) {
  const Codec& codec = ThcCodec();
  const std::vector<int> table =
      OptimalThcTable({.bits = 4, .granularity = kGranularity, .range = 2.4177f});
  constexpr size_t kElements = 200 * kLanes;
  Random random(seed);
  LossyRun run;
  run.gradients.assign(kWorkers, std::vector<float>(kElements));
  run.context.params.bits = 8;
  run.context.world = kWorkers;
  run.context.seed = seed;
  for (auto& gradient : run.gradients) {
    for (float& x : gradient) x = static_cast<float>(random.Normal());
    run.context.shared_max.Merge(codec.LocalMax(gradient, {}, run.context));
  }
  const size_t lanes = codec.MaxEncodedBytes(kElements, run.context);
  std::vector<std::vector<uint8_t>> indices(kWorkers, std::vector<uint8_t>(lanes));
  for (int w = 0; w < kWorkers; ++w) {
    run.context.rank = w;
    std::vector<std::byte> payload(lanes);
    EXPECT_TRUE(codec.Encode(run.gradients[static_cast<size_t>(w)], run.context, payload).ok());
    for (size_t i = 0; i < lanes; ++i) {
      const int level = static_cast<int8_t>(payload[i]) + kGranularity / 2;
      indices[static_cast<size_t>(w)][i] =
          static_cast<uint8_t>(std::find(table.begin(), table.end(), level) - table.begin());
    }
    if (w == 0) {
      run.own_sum = payload;
    } else {
      codec.Accumulate(run.context, run.own_sum, payload);
    }
  }
  const Lease lease = ThcLease(table);
  LossyWorld world(lease, {.loss = loss, .seed = seed});
  run.means.assign(kWorkers, std::vector<float>(lanes));
  std::vector<std::unique_ptr<TableWorker>> workers;
  std::vector<Worker*> all;
  for (size_t w = 0; w < kWorkers; ++w) {
    workers.push_back(std::make_unique<TableWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers[w].get());
    EXPECT_TRUE(workers[w]
                    ->Begin(indices[w], run.means[w], 0, world.now() + std::chrono::seconds(50))
                    .ok());
  }
  world.Run(all);
  for (const auto& worker : workers) EXPECT_TRUE(worker->status().ok()) << worker->status();
  const AggregatorCounters& counters = world.aggregator().counters();
  run.repeated = counters.duplicate + counters.served;
  return run;
}

TEST(ThcTest, LossCostsTimeAndNoAccuracy) {
  const Codec& codec = ThcCodec();
  for (const double loss : {0.0, 0.001, 0.01, 0.05}) {
    SCOPED_TRACE(::testing::Message() << "loss " << loss);
    const LossyRun run = RunThc(loss, 21);
    EXPECT_EQ(run.repeated > 0, loss > 0) << "packets that were lost are sent again";
    std::vector<std::byte> sum(run.own_sum.size());
    for (const auto& means : run.means) {
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] = static_cast<std::byte>(std::lround(means[i] * kWorkers));
      }
      ASSERT_EQ(sum, run.own_sum) << "the very sum that the codec would have made";
    }
    // The stated bound: each worker's relative error is that of the codec and independent of the
    // others', so the mean's error is at most the same share of the mean's energy.
    std::vector<float> mean(run.gradients[0].size());
    ASSERT_TRUE(codec.DecodeAdd(sum, run.context, 1.0f / kWorkers, mean).ok());
    codec.Finish(run.context, 1.0f / kWorkers, mean);
    double lost = 0, energy = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      double exact = 0;
      for (const auto& gradient : run.gradients) exact += gradient[i] / double{kWorkers};
      lost += (mean[i] - exact) * (mean[i] - exact);
      energy += exact * exact;
    }
    const double stated = codec.Traits().settings[0].relative_error_squared;
    EXPECT_LT(lost / energy, 1.1 * stated);
    EXPECT_GT(lost / energy, 0.5 * stated);
    std::printf("loss %g: error %.5f of the energy, stated %.5f, %llu packets repeated\n", loss,
                lost / energy, stated, static_cast<unsigned long long>(run.repeated));
  }
}

}  // namespace
}  // namespace weir::aggregation
