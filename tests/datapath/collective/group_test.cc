// SPDX-License-Identifier: Apache-2.0
// The identity of operations, and the control word and flags in their frames.

#include "datapath/collective/group.h"

#include "datapath/collective/primitives.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;

class GroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    world_ = MakeWorld("inproc", 2);
    ASSERT_EQ(world_.size(), 2u);
  }

  // Rank 1 sends one message of 4 bytes, rank 0 receives it.
  void Exchange(const OperationId& sent, const OperationId& expected, uint32_t sent_slot = 0) {
    static const std::vector<std::byte> payload(4);
    std::vector<std::byte> buffer(8);
    Group sender(*world_[1]), receiver(*world_[0]);
    sender.Begin(sent, {.version = 4, .step = 40}, 2, Within(5));
    receiver.Begin(expected, {.version = 3, .step = 30}, 1, Within(5));
    const StatusOr<Ticket> send = sender.Send(0, sent_slot, payload);
    ASSERT_TRUE(send.ok()) << send.status();
    const StatusOr<Ticket> receive = receiver.Receive(1, 0, buffer);
    ASSERT_TRUE(receive.ok()) << receive.status();
    received_ = receiver.WaitReceive(*receive);
    if (received_.ok()) {
      ASSERT_TRUE(sender.WaitSend(*send).ok());
    }
    control_ = receiver.control();
    flags_ = receiver.flags();
    bytes_sent_ = sender.bytes_sent();
  }

  World world_;
  StatusOr<size_t> received_ = size_t{0};
  ControlWord control_;
  uint16_t flags_ = 0;
  uint64_t bytes_sent_ = 0;
};

constexpr OperationId kId{.plan_version = 2, .op_sequence = 17, .bucket = 0xC0FFEE};

TEST_F(GroupTest, MatchingFrameGivesItsSizeAndMergesWhatItCarries) {
  Exchange(kId, kId);
  ASSERT_TRUE(received_.ok()) << received_.status();
  EXPECT_EQ(*received_, 4u);
  EXPECT_EQ(control_, (ControlWord{.version = 4, .step = 40}));
  EXPECT_EQ(flags_, 3);
  EXPECT_EQ(bytes_sent_, kFrameHeaderBytes + 4);
}

TEST_F(GroupTest, MismatchNamesBothSidesAndMergesNothing) {
  OperationId other = kId;
  other.plan_version = 3;
  Exchange(other, kId);
  ASSERT_EQ(received_.status().code(), StatusCode::kInternal);
  EXPECT_THAT(Message(received_.status()), HasSubstr("rank 1 sent plan 3 op 17"));
  EXPECT_THAT(Message(received_.status()), HasSubstr("rank 0 expected plan 2 op 17"));
  EXPECT_EQ(control_, (ControlWord{.version = 3, .step = 30}));
  EXPECT_EQ(flags_, 1);
}

TEST_F(GroupTest, AnotherSlotIsAMismatch) {
  Exchange(kId, kId, 1);
  ASSERT_EQ(received_.status().code(), StatusCode::kInternal);
  EXPECT_THAT(Message(received_.status()), HasSubstr("slot 1"));
}

TEST_F(GroupTest, MismatchAbortsTheTransportOnBothRanks) {
  OperationId other = kId;
  other.op_sequence = 18;
  Exchange(other, kId);
  std::byte buffer[4];
  EXPECT_FALSE(world_[0]->PostReceive(1, buffer).ok());
  const StatusOr<Ticket> ticket = world_[1]->PostReceive(0, buffer);
  const Status status =
      ticket.ok() ? world_[1]->Wait(*ticket, Within(5)).status() : ticket.status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("rank 1 sent plan 2 op 18"));
}

TEST_F(GroupTest, BeginForgetsTheLastOperation) {
  Group group(*world_[0]);
  group.Begin(kId, {.version = 4, .step = 40}, 2, Within(5));
  group.Begin(kId, {}, 0, Within(5));
  EXPECT_EQ(group.control(), ControlWord());
  EXPECT_EQ(group.flags(), 0);
  EXPECT_EQ(group.bytes_sent(), 0u);
}

TEST_F(GroupTest, WhatOneOperationBorrowedTheNextOneGets) {
  ScratchPool pool(8);
  const std::byte* memory = nullptr;
  for (int operation = 0; operation < 3; ++operation) {
    Group group(*world_[0], kSegmentBytesDefault, &pool);
    Scratch scratch(group, 70'000);
    const std::span<std::byte> first = scratch.Buffer(0, 70'000), third = scratch.Buffer(2, 10);
    if (operation == 0) memory = first.data();
    EXPECT_EQ(first.data(), memory);
    EXPECT_EQ(third.data(), memory + 2 * 70'000);
    EXPECT_EQ(scratch.Buffer(Scratch::kWindow, 1).data(), memory);
  }
  Group lone(*world_[0]);
  Scratch scratch(lone, 70'000);
  EXPECT_NE(scratch.Buffer(0, 1).data(), memory);
}

TEST_F(GroupTest, DeadlineNamesTheRankThatWasWaitedFor) {
  Group group(*world_[0]);
  group.Begin(kId, {}, 0, Within(0.05));
  std::byte buffer[4];
  const StatusOr<Ticket> ticket = group.Receive(1, 0, buffer);
  ASSERT_TRUE(ticket.ok());
  const Status status = group.WaitReceive(*ticket).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace weir::testing
