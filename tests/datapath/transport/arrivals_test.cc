// SPDX-License-Identifier: Apache-2.0
// The speed of links by the arrival of payloads, and cases in which it is not known.

#include "datapath/transport/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "datapath/transport/transport.h"
#include "tests/support/simulated_path.h"

namespace weir {
namespace {

std::vector<ArrivalSample> Measure(const test::PathOptions& options, double payload, uint64_t seed,
                                   int frames = 1) {
  test::SimulatedPath path(options, seed);
  PeerArrivals arrivals{1, {}};
  for (int i = 0; i < frames; ++i) path.Send(payload, 0.1, &arrivals.points);
  return MeasureArrivals({arrivals});
}

TEST(ArrivalsTest, RateOfAnOpenWindowIsTheLinks) {
  for (const double rate : {1.25e6, 6.25e6, 25e6, 62.5e6, 125e6}) {
    for (const double rtt : {2e-4, 4e-3, 0.02, 0.05}) {
      for (const double payload : {2e5, 1e6}) {
        test::PathOptions options{.bytes_per_s = rate, .rtt_s = rtt};
        options.window_bytes = std::max(3e5, 2 * rate * rtt);
        const auto samples = Measure(options, payload, 7);
        ASSERT_EQ(samples.size(), 1u) << rate << " " << rtt << " " << payload;
        EXPECT_NEAR(std::log(samples[0].s_per_byte * rate), 0, 0.1) << rtt << " " << payload;
        EXPECT_FALSE(samples[0].within_burst);
        EXPECT_EQ(samples[0].peer, 1);
        EXPECT_LT(samples[0].relative_deviation, 0.35);
      }
    }
  }
}

TEST(ArrivalsTest, SlowStartDoesNotLookLikeASlowLink) {
  int measured = 0;
  for (const double rate : {25e6, 62.5e6, 125e6}) {
    for (const double rtt : {0.01, 0.02, 0.05}) {
      for (const double payload : {3e5, 1e6, 3e6}) {
        test::PathOptions options{.bytes_per_s = rate, .rtt_s = rtt, .cold = true};
        const auto samples = Measure(options, payload, 3);
        if (samples.empty()) continue;
        ++measured;
        EXPECT_LT(samples[0].s_per_byte * rate, 1.25) << rate << " " << rtt << " " << payload;
        EXPECT_GT(samples[0].s_per_byte * rate, 0.8) << rate << " " << rtt << " " << payload;
      }
    }
  }
  EXPECT_GE(measured, 12);
}

TEST(ArrivalsTest, ABurstIsLeftOutOrSaid) {
  test::PathOptions options{.bytes_per_s = 25e6, .rtt_s = 0.002, .burst_bytes = 65536};
  const auto whole = Measure(options, 3e5, 1);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_NEAR(std::log(whole[0].s_per_byte * 25e6), 0, 0.1);
  options.line_bytes_per_s = 1e8;
  const auto within = Measure(options, 9e4, 1);
  ASSERT_EQ(within.size(), 1u);
  EXPECT_TRUE(within[0].within_burst);
  EXPECT_LT(within[0].s_per_byte * 25e6, 1.1);
}

TEST(ArrivalsTest, ShortFramesAndClocksThatWereSetSayNothing) {
  EXPECT_TRUE(Measure({}, 2e4, 1).empty());
  EXPECT_TRUE(MeasureArrivals({}).empty());
  PeerArrivals arrivals{0, {{10, 20000}, {9, 200000}, {11, 200000}}};
  EXPECT_TRUE(MeasureArrivals({arrivals}).empty());
  arrivals.points = {{10, 200000}, {10, 0}, {11, 200000}};
  EXPECT_TRUE(MeasureArrivals({arrivals}).empty());
}

/// One peer's reads, by intervals in milliseconds and kilobytes.
PeerArrivals Recorded(const std::vector<std::pair<double, double>>& reads) {
  PeerArrivals arrivals;
  double at_s = 100;
  for (const auto& [ms, kb] : reads) {
    at_s += 1e-3 * ms;
    arrivals.points.push_back({at_s, static_cast<uint32_t>(1e3 * kb)});
  }
  return arrivals;
}

// Recorded at 1 Gb/s: a reader that comes late finds packets that the kernel joined, with the stamp
// of the newest; several frames follow each other without a pause.
TEST(ArrivalsTest, ReadsOfJoinedPacketsAreOnePointAndFramesOneTrain) {
  std::vector<std::pair<double, double>> reads;
  for (int frame = 0; frame < 11; ++frame) {
    reads.emplace_back(0.55, 65.1);
    reads.emplace_back(1.43, 98.4);
    reads.emplace_back(0, 72.4);
  }
  const auto samples = MeasureArrivals({Recorded(reads)});
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_NEAR(std::log(samples[0].s_per_byte * 119e6), 0, 0.05);
  EXPECT_EQ(samples[0].payload_bytes, 2594889u);
}

// Recorded at 500 Mb/s: windows of some 40 kB that follow each other by a round trip, which a busy
// host made long.
TEST(ArrivalsTest, WindowsThatFollowEachOtherAreNoSlowLinkForSure) {
  for (const auto& reads :
       {std::vector<std::pair<double, double>>{
            {0, 19.4}, {0.04, 22.6}, {2.06, 22.6}, {12.1, 43.4}, {7.54, 22.6}},
        {{0, 19.4},
         {0.04, 28.3},
         {15.84, 22.6},
         {0.1, 22.6},
         {14.33, 33.9},
         {5.45, 27.9},
         {3.68, 26.2}},
        {{0, 17.7}, {0.04, 31.4}, {4.25, 19.2}, {0.06, 19.2}, {13.29, 38.4}, {10.6, 27.7}}}) {
    for (const ArrivalSample& sample : MeasureArrivals({Recorded(reads)})) {
      EXPECT_TRUE(sample.relative_deviation > 0.2 || sample.within_burst);
    }
  }
}

TEST(ArrivalsTest, StalledStampsCostLittle) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    test::PathOptions options{.bytes_per_s = 25e6, .rtt_s = 0.02};
    options.stalls_per_s = 100;
    const auto samples = Measure(options, 1e6, seed, 4);
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_NEAR(std::log(samples[0].s_per_byte * 25e6), 0, 0.15) << seed;
  }
}

TEST(ArrivalsTest, WhatOthersSendMeanwhileCountsForTheHost) {
  // Two peers, each with half of what the host takes in.
  std::vector<PeerArrivals> arrivals;
  for (int peer = 0; peer < 2; ++peer) {
    test::SimulatedPath path({.bytes_per_s = 25e6, .rtt_s = 0.002},
                             static_cast<uint64_t>(peer + 1));
    arrivals.push_back({peer, {}});
    path.Send(1e6, 0.1, &arrivals.back().points);
  }
  for (const ArrivalSample& sample : MeasureArrivals(arrivals)) {
    EXPECT_NEAR(std::log(sample.s_per_byte * 25e6), 0, 0.1);
    EXPECT_NEAR(std::log(sample.ingress_s_per_byte * 50e6), 0, 0.15);
  }
}

// 127.0.0.2 and 127.0.0.3 are different hosts by their addresses.
TEST(ArrivalsTest, TcpMeasuresThePaceOfItsSender) {
  constexpr double kPace = 2e7;
  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(20);
  std::vector<std::unique_ptr<Transport>> ranks;
  std::vector<TransportAddress> addresses;
  for (int r = 0; r < 2; ++r) {
    TransportOptions options;
    options.rank = r;
    options.world = 2;
    options.listen = "127.0.0." + std::to_string(2 + r) + ":0";
    options.pacing_bytes_per_s = static_cast<uint64_t>(kPace);
    auto rank = (*Transports().Find("tcp"))->Create(options);
    ASSERT_TRUE(rank.ok()) << ToString(rank.status());
    ranks.push_back(*std::move(rank));
    addresses.push_back(ranks.back()->address());
  }
  std::vector<std::byte> sent(4 << 20), received(sent.size());
  std::thread joining([&] { (void)ranks[1]->Connect(addresses, deadline).ok(); });
  const Status connected = ranks[0]->Connect(addresses, deadline);
  joining.join();
  ASSERT_TRUE(connected.ok()) << ToString(connected);
  // Where other programs have the processors, data waits for its receiver, and its times say
  // nothing: then there is no sample, or one that is off.
  constexpr int kTransfers = 20;
  double off = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTransfers && off > 0.25; ++i) {
    std::thread sender([&] {
      const auto ticket = ranks[1]->PostSend(0, FrameHeader(), sent);
      if (ticket.ok()) (void)ranks[1]->Wait(*ticket, deadline).ok();
    });
    const auto ticket = ranks[0]->PostReceive(1, received);
    const Status status =
        ticket.ok() ? ranks[0]->Wait(*ticket, deadline).status() : ticket.status();
    sender.join();
    ASSERT_TRUE(status.ok()) << ToString(status);
    const auto samples = ranks[0]->TakeArrivals();
    if (samples.empty()) continue;
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_EQ(samples[0].peer, 1);
    off = std::abs(std::log(samples[0].s_per_byte * kPace));
  }
  EXPECT_LT(off, 0.25);
  EXPECT_TRUE(ranks[0]->TakeArrivals().empty());
}

TEST(ArrivalLogTest, KeepsTheNewestAndIsEmptiedByTake) {
  ArrivalLog log;
  for (size_t i = 0; i < ArrivalLog::kPointsMax + 10; ++i) log.Add({1.0 * i, 1});
  const auto taken = log.Take();
  ASSERT_EQ(taken.size(), ArrivalLog::kPointsMax);
  EXPECT_EQ(taken.front().at_s, 10);
  EXPECT_EQ(taken.back().at_s, ArrivalLog::kPointsMax + 9);
  EXPECT_TRUE(log.Take().empty());
  EXPECT_EQ(ArrivalLog::PieceBytes(30'000, 0), 4u << 10);
  EXPECT_EQ(ArrivalLog::PieceBytes(1 << 20, 0), 16u << 10);
  EXPECT_EQ(ArrivalLog::PieceBytes(1 << 21, 1 << 20), 32u << 10);
  EXPECT_EQ(ArrivalLog::PieceBytes(1 << 30, 1 << 29), 256u << 10);
}

}  // namespace
}  // namespace weir
