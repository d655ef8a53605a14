// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/sum_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "datapath/aggregation/quantise.h"
#include "datapath/base/random.h"
#include "tests/datapath/aggregation/lossy_world.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<std::vector<float>>;

Lease SumLease(int workers, uint16_t slots, uint16_t lanes) {
  return {.id = 3,
          .epoch = 1,
          .cookie = 77,
          .mode = PacketMode::kSum,
          .workers = workers,
          .slots = slots,
          .lanes = lanes};
}

Tensors RandomTensors(int workers, size_t size, uint64_t seed) {
  Random random(seed);
  Tensors all(static_cast<size_t>(workers), std::vector<float>(size));
  for (size_t i = 0; i < size; ++i) {
    const double magnitude = std::ldexp(1.0, static_cast<int>(random.Below(40)) - 20);
    for (auto& tensor : all) tensor[i] = static_cast<float>(random.Normal() * magnitude);
  }
  return all;
}

/// The chunk's sum by the definition: least e with 2^e above all magnitudes, elements to the
/// nearest multiple of 2^(e - k), k the greatest with N 2^k below 2^31.
std::vector<float> ExpectedSum(const Tensors& tensors, size_t lanes) {
  const auto workers = static_cast<double>(tensors.size());
  int k = 0;
  while (workers * std::ldexp(1.0, k + 1) < 2147483648.0) ++k;
  std::vector<float> sum(tensors[0].size());
  for (size_t at = 0; at < sum.size(); at += lanes) {
    const size_t end = std::min(sum.size(), at + lanes);
    double greatest = 0;
    for (const auto& tensor : tensors) {
      for (size_t i = at; i < end; ++i) {
        greatest = std::max<double>(greatest, std::abs(tensor[i]));
      }
    }
    int e = -1000;
    while (std::ldexp(1.0, e) <= greatest && e < 1000) ++e;
    for (size_t i = at; i < end; ++i) {
      double total = 0;
      for (const auto& tensor : tensors) {
        total += std::nearbyint(std::ldexp(static_cast<double>(tensor[i]), k - e));
      }
      sum[i] = greatest == 0 ? 0.0f : static_cast<float>(std::ldexp(total, e - k));
    }
  }
  return sum;
}

struct Fleet {
  std::vector<std::unique_ptr<SumWorker>> owned;
  std::vector<Worker*> all;

  explicit Fleet(const Lease& lease, const TimeoutLimits& limits = kFastTimeouts) {
    for (int w = 0; w < lease.workers; ++w) {
      owned.push_back(std::make_unique<SumWorker>(lease, limits, w));
      all.push_back(owned.back().get());
    }
  }

  void Begin(Tensors* tensors, uint32_t operation, TimePoint now) {
    for (size_t w = 0; w < owned.size(); ++w) {
      const Status begun =
          owned[w]->Begin((*tensors)[w], operation, now + std::chrono::seconds(50));
      ASSERT_TRUE(begun.ok()) << begun;
    }
  }
};

void ExpectSame(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(float)), 0)
        << "element " << i << ": " << found[i] << " instead of " << expected[i];
  }
}

/// One operation after the other on the same lease; every worker must end with the same exact sum.
void RunSizes(int workers, const Lease& lease, const std::vector<size_t>& sizes,
              const LinkFaults& faults) {
  SCOPED_TRACE(::testing::Message() << workers << " workers, seed " << faults.seed);
  Tensors tensors;
  Fleet fleet(lease);
  LossyWorld world(lease, faults);
  uint32_t operation = 0;
  for (const size_t size : sizes) {
    SCOPED_TRACE(::testing::Message() << size << " elements");
    tensors = RandomTensors(workers, size, size + faults.seed);
    const std::vector<float> expected = ExpectedSum(tensors, lease.lanes);
    fleet.Begin(&tensors, operation++, world.now());
    world.Run(fleet.all);
    for (size_t w = 0; w < tensors.size(); ++w) {
      ASSERT_TRUE(fleet.owned[w]->done());
      ASSERT_TRUE(fleet.owned[w]->status().ok()) << fleet.owned[w]->status();
      ExpectSame(tensors[w], expected);
    }
  }
}

TEST(SumWorkerTest, SumsExactlyOverAQuietNetwork) {
  for (const int workers : {1, 2, 3, 8}) {
    RunSizes(workers, SumLease(workers, 4, 8), {0, 1, 7, 8, 9, 24, 31, 32, 33, 64, 257}, {});
  }
}

TEST(SumWorkerTest, SumsExactlyWhenPacketsAreLostRepeatedAndReordered) {
  for (const int workers : {1, 2, 3, 5, 16}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      RunSizes(workers, SumLease(workers, 4, 8), {1, 40, 0, 100, 9, 31}, BadNetwork(seed));
    }
  }
}

TEST(SumWorkerTest, WorldsOfEverySizeUpTo64) {
  for (int workers = 1; workers <= 64; ++workers) {
    RunSizes(workers, SumLease(workers, 3, 4), {17, 2}, BadNetwork(static_cast<uint64_t>(workers)));
  }
}

TEST(SumWorkerTest, OneSlotAndOneLaneAndFullPackets) {
  RunSizes(2, SumLease(2, 1, 1), {0, 1, 2, 5}, BadNetwork(1));
  RunSizes(3, SumLease(3, 16, 256), {256 * 20 + 1, 255}, BadNetwork(2));
  Lease little = SumLease(3, 5, 16);
  little.little_endian = true;
  little.checked = false;
  RunSizes(3, little, {100}, BadNetwork(3));
}

TEST(SumWorkerTest, SurvivesTheLossOfEverySingleDatagramInTurn) {
  const Lease lease = SumLease(2, 2, 2);
  uint64_t datagrams = 1000;
  for (uint64_t lost = 0; lost < datagrams; ++lost) {
    Tensors tensors = RandomTensors(2, 9, 5);
    const std::vector<float> expected = ExpectedSum(tensors, 2);
    Fleet fleet(lease);
    LinkFaults faults;
    faults.lose = [lost](uint64_t n, bool) { return n == lost; };
    LossyWorld world(lease, faults);
    fleet.Begin(&tensors, 0, world.now());
    world.Run(fleet.all);
    for (size_t w = 0; w < 2; ++w) {
      ASSERT_TRUE(fleet.owned[w]->status().ok());
      ExpectSame(tensors[w], expected);
    }
    datagrams = std::min(datagrams, world.datagrams() + 1);
  }
  EXPECT_GT(datagrams, 20u);
}

TEST(SumWorkerTest, NonFiniteAndZeroAndExtremeChunks) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float top = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  const Lease lease = SumLease(2, 2, 2);
  Tensors tensors = {{1, 2, 0, 0, inf, 1, top, 0, least, 0, -top, 1},
                     {1, nan, 0, -0.0f, 1, 1, -top, 0, least, least, -top, 1}};
  Fleet fleet(lease);
  LossyWorld world(lease, BadNetwork(4));
  fleet.Begin(&tensors, 0, world.now());
  world.Run(fleet.all);
  for (size_t w = 0; w < 2; ++w) {
    ASSERT_TRUE(fleet.owned[w]->status().ok());
    const std::vector<float>& sum = tensors[w];
    EXPECT_TRUE(std::isnan(sum[0]) && std::isnan(sum[1]) && std::isnan(sum[4]));
    EXPECT_EQ(sum[2], 0.0f);
    EXPECT_EQ(sum[6], 0.0f);
    EXPECT_EQ(sum[8], 2 * least);
    EXPECT_EQ(sum[9], least);
    EXPECT_EQ(sum[10], -inf);  // the sum has no float
    EXPECT_EQ(fleet.owned[w]->non_finite_chunks(), 2u);
  }
}

TEST(SumWorkerTest, TheGreatestElementsOfEveryWorldFitTheirLanes) {
  for (int workers = 1; workers <= 64; ++workers) {
    const int bits = LaneBits(workers);
    EXPECT_GE(bits, 24);
    EXPECT_LE(static_cast<int64_t>(workers) << bits, std::numeric_limits<int32_t>::max());
    EXPECT_GT(static_cast<int64_t>(workers) << (bits + 1), std::numeric_limits<int32_t>::max());
    for (const float x : {std::nextafter(1.0f, 0.0f), 1.0f, std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::denorm_min()}) {
      const float chunk[] = {x, -x};
      uint32_t lanes[2];
      Quantise(chunk, ExponentCode(chunk), bits, lanes);
      EXPECT_LE(static_cast<int32_t>(lanes[0]), 1 << bits) << x;
      EXPECT_GE(static_cast<int32_t>(lanes[1]), -(1 << bits)) << x;
      float back[2];
      Dequantise(lanes, ExponentCode(chunk), bits, back);
      EXPECT_EQ(back[0], x);  // the largest element keeps all its bits
    }
  }
}

TEST(SumWorkerTest, ACrashedWorkerIsNamedByTheAggregatorAndEndsTheOthersInTime) {
  const Lease lease = SumLease(3, 2, 2);
  Tensors tensors = RandomTensors(3, 8, 1);
  Fleet fleet(lease);
  LossyWorld world(lease, {});
  fleet.Begin(&tensors, 0, world.now());
  fleet.all[1] = nullptr;
  const Duration took = world.Run(fleet.all);
  EXPECT_LT(took, std::chrono::seconds(51));
  EXPECT_EQ(fleet.owned[0]->status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(fleet.owned[2]->status()), HasSubstr("slot 0 round 0"));
  const auto open = world.aggregator().OldestOpenRound(lease.id);
  ASSERT_TRUE(open.has_value());
  EXPECT_EQ(open->missing, 2u);
  // The back-off keeps the number of packets low while waiting: less than one packet a millisecond.
  EXPECT_LT(fleet.owned[0]->counters().resent, 3000u);
  EXPECT_EQ(fleet.owned[0]->Begin(tensors[0], 1, world.now()).code(),
            StatusCode::kFailedPrecondition);
}

TEST(SumWorkerTest, SumsElsewhereLeaveTheDataAsItIs) {
  const Lease lease = SumLease(3, 4, 8);
  const Tensors tensors = RandomTensors(3, 100, 7), before = tensors;
  Tensors sums(3, std::vector<float>(100));
  Fleet fleet(lease);
  LossyWorld world(lease, {.loss = 0.1, .seed = 3});
  const TimePoint deadline = world.now() + std::chrono::seconds(50);
  for (size_t w = 0; w < sums.size(); ++w) {
    EXPECT_EQ(fleet.owned[w]->Begin(tensors[w], std::span(sums[w]).first(99), 0, deadline).code(),
              StatusCode::kInvalidArgument);
    ASSERT_TRUE(fleet.owned[w]->Begin(tensors[w], sums[w], 0, deadline).ok());
  }
  world.Run(fleet.all);
  for (const auto& sum : sums) ExpectSame(sum, ExpectedSum(before, lease.lanes));
  EXPECT_EQ(tensors, before);
}

TEST(SumWorkerTest, APathLongerThanTheTimeOutsIsNotSentEverythingTwice) {
  const auto ms = [](int64_t n) { return Duration(std::chrono::milliseconds(n)); };
  const Lease lease = SumLease(2, 4, 8);
  Tensors tensors = RandomTensors(2, 8 * 100, 1);
  Fleet fleet(lease, {.first = ms(50), .min = ms(1), .max = ms(60)});
  LossyWorld world(lease, {.delay_min = ms(40), .delay_max = ms(40)});
  fleet.Begin(&tensors, 0, world.now());
  const Duration took = world.Run(fleet.all);
  for (const auto& worker : fleet.owned) {
    ASSERT_TRUE(worker->done() && worker->status().ok()) << worker->status();
    EXPECT_LE(worker->counters().resent, 4u) << "of 100 packets only the first four, at first";
  }
  EXPECT_LE(took, ms(80) * (100 / 4 + 2));
}

TEST(SumWorkerTest, WorkersOnDifferentOperationsFailInsteadOfSumming) {
  const Lease lease = SumLease(2, 2, 2);
  Tensors tensors = RandomTensors(2, 8, 1);
  Fleet fleet(lease);
  LossyWorld world(lease, {});
  ASSERT_TRUE(fleet.owned[0]->Begin(tensors[0], 4, world.now() + std::chrono::seconds(1)).ok());
  ASSERT_TRUE(fleet.owned[1]->Begin(tensors[1], 5, world.now() + std::chrono::seconds(1)).ok());
  world.Run(fleet.all);
  EXPECT_EQ(fleet.owned[1]->status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(fleet.owned[1]->status()), HasSubstr("operation 5"));
  EXPECT_FALSE(fleet.owned[0]->status().ok());
}

TEST(SumWorkerTest, GarbageAndForeignRepliesChangeNothing) {
  const Lease lease = SumLease(1, 1, 2);
  std::vector<float> data = {1, 2};
  SumWorker worker(lease, kFastTimeouts, 0);
  const TimePoint now{};
  ASSERT_TRUE(worker.Begin(data, 0, now + std::chrono::seconds(1)).ok());
  std::vector<std::byte> lead;
  for (const std::byte octet : worker.NextPacket(now)) lead.push_back(octet);
  worker.OnPacket(lead, now);  // a request
  worker.OnPacket(std::span(lead).first(20), now);
  PacketHeader reply = DecodePacket(lead)->header;
  reply.flags |= kPacketReply;
  reply.contributions = 1;
  const auto deliver = [&](PacketHeader header) {
    std::vector<std::byte> bytes(kPacketHeaderBytes);
    EncodePacketHeader(header, std::span(bytes).first<kPacketHeaderBytes>());
    SealPacket(bytes);
    worker.OnPacket(bytes, now);
  };
  PacketHeader foreign = reply;
  foreign.cookie ^= 1;
  deliver(foreign);
  foreign = reply;
  foreign.epoch = 2;
  deliver(foreign);
  EXPECT_EQ(worker.counters().malformed, 4u);
  foreign = reply;
  foreign.round = 1;
  deliver(foreign);
  foreign = reply;
  foreign.offset = 1;
  deliver(foreign);
  EXPECT_EQ(worker.counters().unexpected, 2u);
  EXPECT_TRUE(worker.NextPacket(now).empty());
  deliver(reply);
  EXPECT_FALSE(worker.NextPacket(now).empty());
  ASSERT_TRUE(worker.status().ok());
}

TEST(SumWorkerTest, RepliesToLaterPacketsSayThatOneIsLostLongBeforeItsTimeOut) {
  const auto ms = [](int64_t n) { return Duration(std::chrono::milliseconds(n)); };
  const TimeoutLimits limits = {.first = ms(100), .min = ms(1), .max = ms(1000)};
  std::vector<float> data(8, 1.0f);
  SumWorker worker(SumLease(1, 4, 2), limits, 0);
  TimePoint now{};
  ASSERT_TRUE(worker.Begin(data, 0, now + std::chrono::seconds(10)).ok());
  std::vector<PacketHeader> sent;
  for (int i = 0; i < 4; ++i) {
    now = TimePoint() + ms(i);
    sent.push_back(DecodePacket(worker.NextPacket(now))->header);
  }
  const auto answer = [&](size_t i, TimePoint at) {
    PacketHeader reply = sent[i];
    reply.flags |= kPacketReply;
    reply.contributions = 1;
    std::vector<std::byte> bytes(kPacketHeaderBytes);
    EncodePacketHeader(reply, std::span(bytes).first<kPacketHeaderBytes>());
    SealPacket(bytes);
    worker.OnPacket(bytes, at);
  };
  answer(1, TimePoint() + ms(9));  // a round trip of 8 ms: the first packet is late from 10 ms on
  const TimePoint late = TimePoint() + ms(10);
  worker.OnTimer(late - ms(1));
  for (auto packet = worker.NextPacket(late); !packet.empty(); packet = worker.NextPacket(late)) {
    EXPECT_NE(DecodePacket(packet)->header.slot, sent[0].slot);
  }
  EXPECT_EQ(worker.NextTimer(), late);
  worker.OnTimer(late);
  const auto again = worker.NextPacket(late);
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(DecodePacket(again)->header.slot, sent[0].slot);
  EXPECT_TRUE(worker.NextPacket(late).empty()) << "what nothing has overtaken is waited for";
  EXPECT_EQ(worker.counters().resent, 1u);
  EXPECT_EQ(worker.round_trip().timeout(), ms(24)) << "no sign of a longer round trip";
  // A packet that was sent again does not count as overtaken by packets that left before it.
  answer(2, late + ms(1));
  EXPECT_GT(worker.NextTimer(), late + ms(10));
}

// A window of all workers takes the aggregator longer than any time-out at first. Without an end to
// sending everything again, it would be busy with repetitions for ever.
TEST(SumWorkerTest, SlowAggregatorsAreNotFloodedWithRepetitions) {
  constexpr int kWorkers = 8;
  const Lease lease = SumLease(kWorkers, 64, 16);
  for (const int service_us : {30, 3000, 20000}) {
    for (const int longest_ms : {1000, 60}) {
      SCOPED_TRACE(::testing::Message()
                   << service_us << " us a packet, time-outs of at most " << longest_ms << " ms");
      Fleet fleet(lease, {.first = std::chrono::milliseconds(50),
                          .min = std::chrono::milliseconds(1),
                          .max = std::chrono::milliseconds(longest_ms)});
      const Duration service = std::chrono::microseconds(service_us);
      LossyWorld world(lease, {.service = service});
      const double least = ToSeconds(service) * kWorkers * 64 * 5;
      for (const double times :
           {4.0, 1.6}) {  // the second operation begins with the window of the first
        Tensors tensors = RandomTensors(kWorkers, 64 * 16 * 5, 1);
        const std::vector<float> expected = ExpectedSum(tensors, lease.lanes);
        const uint32_t operation = times == 4.0 ? 0 : 1;
        for (int w = 0; w < kWorkers; ++w) {
          ASSERT_TRUE(fleet.owned[w]
                          ->Begin(tensors[w], operation, world.now() + std::chrono::seconds(400))
                          .ok());
        }
        const Duration took = world.Run(fleet.all, std::chrono::seconds(400));
        for (size_t w = 0; w < kWorkers; ++w) {
          ASSERT_TRUE(fleet.owned[w]->done() && fleet.owned[w]->status().ok())
              << fleet.owned[w]->status();
          ExpectSame(tensors[w], expected);
        }
        EXPECT_LT(ToSeconds(took), times * least + 0.1)
            << fleet.owned[0]->counters().resent << " of " << fleet.owned[0]->counters().sent;
      }
    }
  }
}

TEST(SumWorkerTest, AReplyThatLowersOurExponentIsAnError) {
  const Lease lease = SumLease(1, 1, 2);
  std::vector<float> data = {1, 2};
  SumWorker worker(lease, kFastTimeouts, 0);
  const TimePoint now{};
  ASSERT_TRUE(worker.Begin(data, 0, now + std::chrono::seconds(1)).ok());
  const auto packet = worker.NextPacket(now);
  PacketHeader reply = DecodePacket(packet)->header;
  reply.flags |= kPacketReply;
  reply.contributions = 1;
  --reply.exponent;
  std::vector<std::byte> bytes(kPacketHeaderBytes);
  EncodePacketHeader(reply, std::span(bytes).first<kPacketHeaderBytes>());
  SealPacket(bytes);
  worker.OnPacket(bytes, now);
  EXPECT_EQ(worker.status().code(), StatusCode::kDataLoss);
}

TEST(SumWorkerTest, SilenceEndsAnOperationForWhoAskedLongBeforeTheDeadline) {
  const auto ms = [](int64_t n) { return Duration(std::chrono::milliseconds(n)); };
  const Lease lease = SumLease(1, 1, 2);
  const TimeoutLimits limits = {.first = ms(10), .min = ms(1), .max = ms(1000)};
  std::vector<float> data = {1, 2};
  for (const bool heard : {false, true}) {
    SumWorker worker(lease, limits, 0);
    worker.EndWhenSilent(ms(50));
    TimePoint now{};
    ASSERT_TRUE(worker.Begin(data, 0, now + std::chrono::seconds(10)).ok());
    worker.OnTimer(now);
    const auto packet = worker.NextPacket(now);
    // Without a measurement the limit is eight first time-outs. After a round trip of 1 ms it is
    // the floor, from the reply on.
    TimePoint end = now + ms(80);
    if (heard) {
      PacketHeader reply = DecodePacket(packet)->header;
      reply.flags |= kPacketReply;
      reply.contributions = 1;
      std::vector<std::byte> bytes(kPacketHeaderBytes);
      EncodePacketHeader(reply, std::span(bytes).first<kPacketHeaderBytes>());
      SealPacket(bytes);
      now += ms(1);
      worker.OnPacket(bytes, now);
      end = now + ms(50);
    }
    while (now < end) {
      ASSERT_FALSE(worker.done()) << ToString(worker.status());
      while (!worker.NextPacket(now).empty()) continue;
      const auto next = worker.NextTimer();
      ASSERT_TRUE(next.has_value());
      ASSERT_GT(*next, now);
      ASSERT_LE(*next, end);
      now = *next;
      worker.OnTimer(now);
    }
    EXPECT_EQ(worker.status().code(), StatusCode::kUnavailable) << worker.status();
    EXPECT_THAT(Message(worker.status()), HasSubstr(heard ? "silent for 0.05" : "silent for 0.08"));
  }
}

TEST(RoundTripEstimateTest, FollowsTheStandard) {
  const auto ms = [](int64_t n) { return Duration(std::chrono::milliseconds(n)); };
  RoundTripEstimate estimate({.first = ms(100), .min = ms(1), .max = ms(1000)});
  EXPECT_EQ(estimate.timeout(), ms(100));
  estimate.OnSample(ms(8));  // 8 + 4 * 4
  EXPECT_EQ(estimate.timeout(), ms(24));
  estimate.OnSample(ms(16));  // variation 4 + (8 - 4) / 4 = 5, smoothed 9
  EXPECT_EQ(estimate.timeout(), ms(29));
  TimePoint now{};
  estimate.OnExpiry(now);
  EXPECT_EQ(estimate.timeout(), ms(58));
  estimate.OnExpiry(now + ms(57));  // the rest of the same window
  EXPECT_EQ(estimate.timeout(), ms(58));
  estimate.OnExpiry(now + ms(58));
  EXPECT_EQ(estimate.timeout(), ms(116));
  for (int i = 0; i < 10; ++i) estimate.OnExpiry(now += ms(2000));
  EXPECT_EQ(estimate.timeout(), ms(1000));
}

TEST(RoundTripEstimateTest, SteadyRoundTripsStillLeaveTimeForASlowWorker) {
  const auto ms = [](int64_t n) { return Duration(std::chrono::milliseconds(n)); };
  RoundTripEstimate estimate({.first = ms(100), .min = ms(1), .max = ms(1000)});
  for (int i = 0; i < 100; ++i) estimate.OnSample(ms(20));  // no variation is left
  EXPECT_EQ(estimate.timeout(), ms(40));
}

TEST(RoundTripEstimateTest, OnALongPathTheCeilingIsTwoOfTheLeastRoundTrips) {
  const auto ms = [](int64_t n) { return Duration(std::chrono::milliseconds(n)); };
  RoundTripEstimate estimate({.first = ms(50), .min = ms(1), .max = ms(60)});
  TimePoint now{};
  estimate.OnExpiry(now);  // the first reply is still on its way
  EXPECT_EQ(estimate.timeout(), ms(100)) << "or no packet would ever be sent once";
  for (int i = 0; i < 10; ++i) estimate.OnExpiry(now += ms(2000));
  EXPECT_EQ(estimate.timeout(), ms(200));
  for (int i = 0; i < 100; ++i) estimate.OnSample(ms(80));
  EXPECT_EQ(estimate.timeout(), ms(160));
  for (int i = 0; i < 10; ++i) estimate.OnExpiry(now += ms(2000));
  EXPECT_EQ(estimate.timeout(), ms(160));
  // A stall does not count as a longer path: the ceiling stays at the value that the shortest ones
  // give.
  for (int i = 0; i < 20; ++i) estimate.OnSample(ms(500));
  EXPECT_EQ(estimate.timeout(), ms(160));
  estimate.OnSample(ms(10));
  EXPECT_EQ(estimate.timeout(), ms(60));
}

}  // namespace
}  // namespace weir::aggregation
