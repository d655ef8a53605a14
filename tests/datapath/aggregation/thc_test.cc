// The codec and the protocol together: what the codec thc puts into lanes travels as four-bit
// indices and comes back as the sum that the codec would have made of its own payloads.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
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

/// The greatest norm, by the protocol.
float ExchangeNorms(const std::vector<float>& norms) {
  const Lease lease = {
      .id = 2, .epoch = 1, .mode = PacketMode::kMax, .workers = kWorkers, .slots = 1, .lanes = 2};
  LossyWorld world(lease, BadNetwork(8));
  std::vector<uint32_t> bits;
  for (const float norm : norms) bits.push_back(std::bit_cast<uint32_t>(norm));
  std::vector<std::unique_ptr<MaxWorker>> workers;
  std::vector<Worker*> all;
  for (size_t w = 0; w < norms.size(); ++w) {
    workers.push_back(std::make_unique<MaxWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers[w].get());
    EXPECT_TRUE(workers[w]->Begin({&bits[w], 1}, 0, world.now() + std::chrono::seconds(9)).ok());
  }
  world.Run(all);
  for (const uint32_t found : bits) EXPECT_EQ(found, bits[0]);
  return std::bit_cast<float>(bits[0]);
}

TEST(ThcTest, TheSumOfIndicesIsTheCodecsSumOfLanes) {
  const Codec& codec = ThcCodec();
  const std::vector<int> table =
      OptimalThcTable({.bits = 4, .granularity = kGranularity, .range = 2.4177f});
  ASSERT_EQ(table.size(), kTableLevels);
  constexpr size_t kElements = 5000;
  Random random(11);
  std::vector<std::vector<float>> gradients(kWorkers, std::vector<float>(kElements));
  std::vector<float> norms;
  EncodeContext context;
  context.params.bits = 8;
  context.world = kWorkers;
  context.seed = 99;
  for (auto& gradient : gradients) {
    for (float& x : gradient) x = static_cast<float>(random.Normal());
    norms.push_back(codec.LocalMax(gradient, {}, context));
  }
  context.shared_max = ExchangeNorms(norms);
  EXPECT_EQ(context.shared_max, *std::max_element(norms.begin(), norms.end()));

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

}  // namespace
}  // namespace weir::aggregation
