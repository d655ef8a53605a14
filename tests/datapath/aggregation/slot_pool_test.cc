// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/slot_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "tests/datapath/aggregation/lossy_world.h"
#include "tests/datapath/aggregation/published_switch.h"
#include "tests/datapath/aggregation/trace_suite.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;

class SoftwarePlane : public DataPlane, private ReplySink {
 public:
  void Grant(const Lease& lease) override {
    const auto range = aggregator_.Grant(lease, AddressesOf(lease.workers));
    ASSERT_TRUE(range.ok()) << range.status();
  }
  std::vector<Emission> OnPacket(SourceAddress source,
                                 std::span<const std::byte> datagram) override {
    sent_.clear();
    aggregator_.OnPacket(source, datagram, TimePoint{}, this);
    return sent_;
  }

 private:
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    sent_.push_back({.to = to, .packet = {packet.begin(), packet.end()}});
  }
  Aggregator aggregator_{AggregatorLimits{}};
  std::vector<Emission> sent_;
};

/// The published protocol behind the same packets: round modulo 2 is its version.
class PublishedPlane : public DataPlane {
 public:
  void Grant(const Lease& lease) override {
    workers_ = lease.workers;
    lanes_.assign(lease.lanes, PublishedSwitch(lease.workers, lease.slots));
  }
  std::vector<Emission> OnPacket(SourceAddress source,
                                 std::span<const std::byte> datagram) override {
    const StatusOr<Packet> packet = DecodePacket(datagram);
    if (!packet.ok()) return {};
    PacketHeader reply = packet->header;
    reply.flags |= kPacketReply;
    reply.contributions = static_cast<uint16_t>(workers_);
    std::vector<uint32_t> lanes(lanes_.size());
    LoadLanes(packet->payload, false, lanes);
    PublishedSwitch::To to = PublishedSwitch::To::kNobody;
    for (size_t i = 0; i < lanes.size(); ++i) {
      const PublishedSwitch::Result result =
          lanes_[i].OnPacket(static_cast<int>(source - AddressOf(0)),
                             static_cast<int>(reply.round & 1), reply.slot, lanes[i]);
      to = result.to;
      lanes[i] = result.value;
    }
    std::vector<std::byte> bytes(kPacketHeaderBytes + lanes.size() * 4);
    EncodePacketHeader(reply, std::span(bytes).first<kPacketHeaderBytes>());
    StoreLanes(lanes, false, std::span(bytes).subspan(kPacketHeaderBytes));
    std::vector<Emission> sent;
    if (to == PublishedSwitch::To::kSender) sent.push_back({source, bytes});
    for (int w = 0; to == PublishedSwitch::To::kAll && w < workers_; ++w) {
      sent.push_back({AddressOf(w), bytes});
    }
    return sent;
  }

 private:
  int workers_ = 0;
  std::vector<PublishedSwitch> lanes_;
};

TEST(SlotPoolTest, AnswersEveryTraceAsItMust) {
  for (const Trace& trace : SumTraces()) {
    SoftwarePlane plane;
    EXPECT_EQ(RunTrace(trace, &plane), "");
  }
}

TEST(SlotPoolTest, ThePublishedProtocolAnswersTheTracesOfAnOrderlyNetwork) {
  for (const Trace& trace : SumTraces()) {
    if (trace.workers > 32) continue;
    const bool orderly = trace.name == "basic" || trace.name == "both sets" ||
                         trace.name == "a slot is used again" ||
                         trace.name == "a duplicate in mid-reduction" ||
                         trace.name == "a duplicate after completion goes to its sender" ||
                         trace.name == "a duplicate of the other set while the next is open" ||
                         trace.name.starts_with("a world of");
    if (!orderly) continue;
    PublishedPlane plane;
    EXPECT_EQ(RunTrace(trace, &plane), "");
  }
}

/// Chunks 0, 1, 2 of two workers are 1, 10 and 100. A copy of worker 0's first packet overtakes no
/// packet and is only late: it comes after worker 0 has begun chunk 1.
Trace LateDuplicate(uint32_t third) {
  return {"the first packet again after its sender's flip",
          2,
          1,
          {{0, 0, 0, 1},
           {1, 0, 0, 1, Answer::kToAll, 2},
           {0, 0, 1, 10},
           {0, 0, 0, 1, Answer::kToSender, 2},
           {1, 0, 1, 10, Answer::kToAll, 20},
           {0, 0, 2, 100},
           {1, 0, 2, 100, Answer::kToAll, third}}};
}

TEST(SlotPoolTest, ThePublishedProtocolTakesALateDuplicateForAContribution) {
  PublishedSwitch published(2, 1);
  using To = PublishedSwitch::To;
  EXPECT_EQ(published.OnPacket(0, 0, 0, 1).to, To::kNobody);
  EXPECT_EQ(published.OnPacket(1, 0, 0, 1).value, 2u);
  EXPECT_EQ(published.OnPacket(0, 1, 0, 10).to, To::kNobody);
  EXPECT_EQ(published.OnPacket(0, 0, 0, 1).to, To::kNobody);  // the late duplicate is "new"
  EXPECT_EQ(published.OnPacket(1, 1, 0, 10).value, 20u);
  EXPECT_EQ(published.OnPacket(0, 0, 0, 100).to, To::kNobody);  // and this the duplicate
  const PublishedSwitch::Result third = published.OnPacket(1, 0, 0, 100);
  EXPECT_EQ(third.to, To::kAll);
  EXPECT_EQ(third.value, 101u);  // 1 + 100 where 200 is right, and nobody notices
  PublishedPlane plane;
  EXPECT_THAT(RunTrace(LateDuplicate(200), &plane), HasSubstr("step 3"));
}

TEST(SlotPoolTest, OurProtocolAnswersTheLateDuplicateAndSumsOn) {
  SoftwarePlane plane;
  EXPECT_EQ(RunTrace(LateDuplicate(200), &plane), "");
}

TEST(SlotPoolTest, AnOverflowIsSaidInTheReply) {
  SoftwarePlane plane;
  const Trace trace{.name = "", .steps = {}};
  plane.Grant(TraceLease(trace, 1));
  const TraceStep top = {.worker = 0, .value = 0x7FFFFFFF};
  const TraceStep one = {.worker = 1, .value = 1};
  plane.OnPacket(AddressOf(0), TracePacket(top));
  const auto sent = plane.OnPacket(AddressOf(1), TracePacket(one));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_NE(DecodePacket(sent[0].packet)->header.flags & kPacketOverflow, 0);
}

class AggregatorTest : public ::testing::Test, protected ReplySink {
 protected:
  static Lease Make(uint16_t id, uint32_t epoch, uint16_t slots) {
    return {.id = id, .epoch = epoch, .cookie = 1, .workers = 2, .slots = slots};
  }
  StatusOr<SlotRange> Grant(const Lease& lease) {
    return aggregator_.Grant(lease, AddressesOf(lease.workers));
  }
  void Send(SourceAddress, std::span<const std::byte>) override { ++sent_; }

  Aggregator aggregator_{{.slots = 16, .slots_per_job = 8, .leases = 3}};
  int sent_ = 0;
};

TEST_F(AggregatorTest, RangesAreDisjointAndAreGivenBack) {
  EXPECT_EQ(Grant(Make(1, 1, 6))->first, 0u);
  EXPECT_EQ(Grant(Make(2, 1, 4))->first, 6u);
  EXPECT_EQ(Grant(Make(3, 1, 6))->first, 10u);
  ASSERT_TRUE(aggregator_.Revoke(2, 1).ok());
  EXPECT_EQ(Grant(Make(4, 1, 5)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Grant(Make(4, 1, 4))->first, 6u);
}

TEST_F(AggregatorTest, LimitsAreNamed) {
  EXPECT_THAT(Message(Grant(Make(1, 1, 9)).status()), HasSubstr("at most 8 slots a job"));
  for (uint16_t id = 1; id <= 3; ++id) ASSERT_TRUE(Grant(Make(id, 1, 1)).ok());
  EXPECT_THAT(Message(Grant(Make(4, 1, 1)).status()), HasSubstr("all 3 leases"));
  EXPECT_TRUE(Grant(Make(3, 2, 8)).ok());  // in its own place
}

TEST_F(AggregatorTest, EpochsOnlyGrowEvenAcrossARevocation) {
  ASSERT_TRUE(Grant(Make(1, 5, 2)).ok());
  EXPECT_EQ(Grant(Make(1, 5, 2)).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(aggregator_.Revoke(1, 4).code(), StatusCode::kNotFound);
  ASSERT_TRUE(aggregator_.Revoke(1, 5).ok());
  EXPECT_EQ(Grant(Make(1, 4, 2)).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Grant(Make(1, 6, 2)).ok());
}

TEST_F(AggregatorTest, RefusesTermsThatMakeNoSense) {
  const auto wrong = [&](const Lease& lease, const char* names) {
    const StatusOr<SlotRange> range = Grant(lease);
    EXPECT_EQ(range.status().code(), StatusCode::kInvalidArgument) << names;
    EXPECT_THAT(Message(range.status()), HasSubstr(names));
  };
  Lease lease = Make(1, 0, 2);
  wrong(lease, "epoch");
  lease = Make(1, 1, 0);
  wrong(lease, "slots");
  lease = Make(1, 1, 2);
  lease.workers = 65;
  wrong(lease, "workers");
  lease = Make(1, 1, 2);
  lease.lanes = 257;
  wrong(lease, "lanes");
  lease = Make(1, 1, 2);
  lease.quorum = 1;
  wrong(lease, "quorum");
  lease = Make(1, 1, 2);
  lease.mode = PacketMode::kSparse;
  wrong(lease, "columns");
  lease.columns = 2;
  wrong(lease, "columns");
  lease = Make(1, 1, 2);
  lease.mode = PacketMode::kTable;
  lease.sum_bits = 8;
  lease.lanes = 256;
  wrong(lease, "levels");
  lease.levels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 128};
  wrong(lease, "at most 255");
  const SourceAddress twice[] = {4, 4};
  EXPECT_THAT(Message(aggregator_.Grant(Make(1, 1, 2), twice).status()), HasSubstr("same address"));
  const SourceAddress one[] = {4};
  EXPECT_THAT(Message(aggregator_.Grant(Make(1, 1, 2), one).status()), HasSubstr("expected 2"));
}

TEST_F(AggregatorTest, JobsDoNotSeeEachOther) {
  Lease first = Make(1, 1, 2), second = Make(2, 1, 2);
  first.lanes = second.lanes = kTraceLanes;
  first.checked = second.checked = false;
  ASSERT_TRUE(aggregator_.Grant(first, AddressesOf(2)).ok());
  const SourceAddress others[] = {50, 51};
  ASSERT_TRUE(aggregator_.Grant(second, others).ok());
  const TraceStep step = {.value = 1, .lease = 2, .cookie = 1};
  aggregator_.OnPacket(AddressOf(0), TracePacket(step), {}, this);
  EXPECT_EQ(aggregator_.counters().foreign, 1u);
  aggregator_.OnPacket(50, TracePacket(step), {}, this);
  EXPECT_EQ(aggregator_.counters().added, 1u);
  EXPECT_FALSE(aggregator_.OldestOpenRound(1).has_value());
  EXPECT_EQ(aggregator_.OldestOpenRound(2)->missing, 2u);
  EXPECT_EQ(sent_, 0);
}

}  // namespace
}  // namespace weir::aggregation
