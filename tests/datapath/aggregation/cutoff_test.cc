// SPDX-License-Identifier: Apache-2.0
// Rounds that end without a straggler: the aggregator's answers to given packets at given times.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "tests/datapath/aggregation/lossy_world.h"
#include "tests/datapath/aggregation/trace_suite.h"

namespace weir::aggregation {
namespace {

constexpr int kCutoffWorkers = 4, kCutoffQuorum = 3;
constexpr int kCutoff_ms = 20;
constexpr int kCutoffTimer = -1;  // in place of a worker: time passes

enum class CutoffAnswer { kNothing, kToSender, kToAll, kExpired };

/// One packet, or one check of the time. Worker w adds w + 1.
struct CutoffStep {
  int at_ms = 0;
  int worker = kCutoffTimer;
  uint32_t round = 0;
  CutoffAnswer answer = CutoffAnswer::kNothing;
  std::vector<int> contributors = {};
  uint16_t slot = 0;
  uint32_t operation = 0;
};

struct CutoffTrace {
  std::string name;
  std::vector<CutoffStep> steps;
};

std::vector<CutoffTrace> CutoffTraces() {
  constexpr CutoffAnswer kOne = CutoffAnswer::kToSender, kAll = CutoffAnswer::kToAll,
                         kExpired = CutoffAnswer::kExpired;
  return {
      {"all are there before the cut-off",
       {{0, 0}, {1, 1}, {2, 2}, {19, 3, 0, kAll, {0, 1, 2, 3}}, {30}}},
      {"a quorum is answered at the cut-off and not before",
       {{0, 0}, {1, 1}, {2, 2}, {19}, {20, kCutoffTimer, 0, kAll, {0, 1, 2}}, {40}}},
      {"below the quorum a round waits on",
       {{0, 0}, {1, 1}, {500}, {501, 2}, {502, kCutoffTimer, 0, kAll, {0, 1, 2}}}},
      {"the straggler gets the sum that it is not in, as often as it asks",
       {{0, 0},
        {0, 1},
        {0, 2},
        {20, kCutoffTimer, 0, kAll, {0, 1, 2}},
        {30, 3, 0, kOne, {0, 1, 2}},
        {31, 3, 0, kOne, {0, 1, 2}},
        {32, 0, 0, kOne, {0, 1, 2}}}},
      {"a partial reply that was lost is served again while the next round is open",
       {{0, 0},
        {0, 1},
        {0, 2},
        {20, kCutoffTimer, 0, kAll, {0, 1, 2}},
        {21, 1, 1},
        {22, 2, 0, kOne, {0, 1, 2}},
        {23, 3, 0, kOne, {0, 1, 2}},
        {24, 1, 1}}},
      {"in its operation nobody waits for it again, but it counts when it is not the last",
       {{0, 0},
        {0, 1},
        {0, 2},
        {20, kCutoffTimer, 0, kAll, {0, 1, 2}},
        {21, 0, 1},
        {22, 1, 1},
        {23, 2, 1, kAll, {0, 1, 2}},
        {24, 3, 1, kOne, {0, 1, 2}},
        {25, 3, 2},
        {26, 0, 2},
        {27, 1, 2},
        {28, 2, 2, kAll, {0, 1, 2, 3}}}},
      {"other slots of its operation end at the next look at the clock",
       {{0, 0},
        {0, 1},
        {0, 2},
        {10, 0, 0, CutoffAnswer::kNothing, {}, 1},
        {10, 1, 0, CutoffAnswer::kNothing, {}, 1},
        {11, 2, 0, CutoffAnswer::kNothing, {}, 1},
        {20, kCutoffTimer, 0, kAll, {0, 1, 2}, 1}}},
      {"the next operation waits for it again",
       {{0, 0},
        {0, 1},
        {0, 2},
        {20, kCutoffTimer, 0, kAll, {0, 1, 2}},
        {21, 0, 1, CutoffAnswer::kNothing, {}, 0, 1},
        {22, 1, 1, CutoffAnswer::kNothing, {}, 0, 1},
        {23, 2, 1, CutoffAnswer::kNothing, {}, 0, 1},
        {24},
        {25, 3, 1, kAll, {0, 1, 2, 3}, 0, 1}}},
      {"two rounds on its result is gone, and what comes twice changes nothing",
       {{0, 0},
        {0, 1},
        {0, 2},
        {20, kCutoffTimer, 0, kAll, {0, 1, 2}},
        {21, 0, 1},
        {21, 1, 1},
        {21, 2, 1, kAll, {0, 1, 2}},
        {22, 0, 2},
        {23, 3, 0, kExpired},
        {24, 3, 0, kExpired},
        {25, 3, 1, kOne, {0, 1, 2}},
        {26, 3, 1, kOne, {0, 1, 2}},
        {27, 3, 2},
        {28, 3, 2},
        {29, 3, 0, kExpired},
        {30, 1, 2},
        {31, 2, 2, kAll, {0, 1, 2, 3}}}},
      {"a straggler alone opens no round before the others",
       {{0, 0}, {0, 1}, {0, 2}, {1, 3, 1}, {20, kCutoffTimer, 0, kAll, {0, 1, 2}}, {21, 3, 2}}},
  };
}

Lease CutoffLease() {
  Lease lease = {.id = kTraceLease,
                 .epoch = 1,
                 .cookie = kTraceCookie,
                 .mode = PacketMode::kTable,
                 .workers = kCutoffWorkers,
                 .slots = 2,
                 .lanes = kTraceLanes,
                 .sum_bits = 8,
                 .quorum = kCutoffQuorum,
                 .cutoff = std::chrono::milliseconds(kCutoff_ms),
                 .checked = false};
  for (uint8_t level = 0; level < kTableLevels; ++level) lease.levels.push_back(level);
  return lease;
}

std::vector<std::byte> CutoffPacket(const CutoffStep& step) {
  PacketHeader header = RequestHeader(CutoffLease());
  header.slot = step.slot;
  header.round = step.round;
  header.operation = step.operation;
  std::vector<std::byte> packet(kPacketHeaderBytes + kTraceLanes / 2,
                                static_cast<std::byte>((step.worker + 1) * 17));
  EncodePacketHeader(header, std::span(packet).first<kPacketHeaderBytes>());
  return packet;
}

class CutoffPlane : private ReplySink {
 public:
  CutoffPlane() { EXPECT_TRUE(aggregator_.Grant(CutoffLease(), AddressesOf(kCutoffWorkers)).ok()); }
  const std::vector<Emission>& Do(const CutoffStep& step) {
    sent_.clear();
    const TimePoint now = TimePoint{} + std::chrono::milliseconds(1000 + step.at_ms);
    if (step.worker == kCutoffTimer) {
      aggregator_.OnTimer(now, this);
    } else {
      aggregator_.OnPacket(AddressOf(step.worker), CutoffPacket(step), now, this);
    }
    return sent_;
  }
  const Aggregator& aggregator() const { return aggregator_; }

 private:
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    sent_.push_back({.to = to, .packet = {packet.begin(), packet.end()}});
  }
  Aggregator aggregator_{AggregatorLimits{}};
  std::vector<Emission> sent_;
};

void ExpectReply(const CutoffStep& step, const Emission& emission) {
  const StatusOr<Packet> packet = DecodePacket(emission.packet);
  ASSERT_TRUE(packet.ok()) << packet.status();
  const PacketHeader& h = packet->header;
  EXPECT_EQ(h.round, step.round);
  EXPECT_EQ(h.operation, step.operation);
  if (step.answer == CutoffAnswer::kExpired) {
    EXPECT_NE(h.flags & kPacketNotice, 0);
    EXPECT_EQ(h.detail, static_cast<uint32_t>(Notice::kExpired));
    return;
  }
  ASSERT_EQ(h.flags & kPacketNotice, 0);
  uint64_t set = 0;
  int sum = 0;
  for (const int worker : step.contributors) {
    set |= uint64_t{1} << worker;
    sum += worker + 1;
  }
  uint64_t found;
  std::memcpy(&found, packet->payload.data(), sizeof found);
  EXPECT_EQ(__builtin_bswap64(found), set);
  EXPECT_EQ(h.contributions, step.contributors.size());
  for (size_t lane = 0; lane < kTraceLanes; ++lane) {
    EXPECT_EQ(std::to_integer<int>(packet->payload[kContributorBytes + lane]), sum) << lane;
  }
}

TEST(CutoffTest, AnswersEveryTraceAsItMust) {
  for (const CutoffTrace& trace : CutoffTraces()) {
    CutoffPlane plane;
    for (size_t i = 0; i < trace.steps.size(); ++i) {
      SCOPED_TRACE(trace.name + ", step " + std::to_string(i));
      const CutoffStep& step = trace.steps[i];
      const std::vector<Emission> sent = plane.Do(step);
      // Both slots of "other slots" end at one look; the first one's answers come first.
      const size_t rounds = trace.name.starts_with("other slots") ? 2 : 1;
      size_t expected = step.answer == CutoffAnswer::kNothing ? 0 : 1;
      if (step.answer == CutoffAnswer::kToAll) expected = kCutoffWorkers * rounds;
      ASSERT_EQ(sent.size(), expected);
      for (size_t e = expected - expected / rounds; e < expected; ++e) {
        const SourceAddress to = step.answer == CutoffAnswer::kToAll
                                     ? AddressOf(static_cast<int>(e) % kCutoffWorkers)
                                     : AddressOf(step.worker);
        EXPECT_EQ(sent[e].to, to);
        ExpectReply(step, sent[e]);
      }
    }
  }
}

TEST(CutoffTest, RoundsWithoutAWorkerAreCountedHoweverTheyEnd) {
  CutoffPlane plane;
  const CutoffTrace trace = CutoffTraces()[5];
  for (const CutoffStep& step : trace.steps) plane.Do(step);
  EXPECT_EQ(plane.aggregator().counters().cut_off, 2u);  // by the clock, and without being awaited
  EXPECT_EQ(plane.aggregator().counters().completed, 2u);
}

TEST(CutoffTest, LeasesSayBothOrNeither) {
  const auto wrong = [](int quorum, Duration cutoff, const char* names) {
    Lease lease = CutoffLease();
    lease.quorum = quorum;
    lease.cutoff = cutoff;
    const std::string message = Message(Validate(lease));
    EXPECT_NE(message.find(names), std::string::npos) << message;
  };
  wrong(0, std::chrono::milliseconds(1), "quorum: expected 1 .. workers, found 0");
  wrong(5, std::chrono::milliseconds(1), "quorum: expected 1 .. workers, found 5");
  wrong(3, Duration::zero(), "cut-off: expected a time");
  wrong(3, std::chrono::seconds(61), "cut-off: expected a time of at most 60 s");
  wrong(3, std::chrono::milliseconds(-1), "cut-off");
  Lease exact = {.epoch = 1, .workers = 4, .slots = 1, .quorum = 3};
  EXPECT_NE(Message(Validate(exact)).find("in table mode only"), std::string::npos);
  EXPECT_TRUE(Validate(CutoffLease()).ok());
}

}  // namespace
}  // namespace weir::aggregation
