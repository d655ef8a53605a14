// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "datapath/base/random.h"
#include "tests/support/golden.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes Encode(const PacketHeader& header, const Bytes& payload, bool sealed) {
  Bytes bytes(kPacketHeaderBytes);
  EncodePacketHeader(header, std::span(bytes).first<kPacketHeaderBytes>());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  if (sealed) SealPacket(bytes);
  return bytes;
}

PacketHeader RandomPacketHeader(Random& random) {
  PacketHeader h;
  h.mode = static_cast<PacketMode>(1 + random.Below(5));
  if (random.Below(2) == 0) h.flags |= kPacketReply;
  if (random.Below(2) == 0) h.flags |= kPacketLittleEndian;
  h.lease = static_cast<uint16_t>(random.Next());
  h.epoch = static_cast<uint32_t>(random.Next());
  h.cookie = random.Next();
  h.slot = static_cast<uint16_t>(random.Next());
  h.round = static_cast<uint32_t>(random.Next());
  h.operation = static_cast<uint32_t>(random.Next());
  h.offset = static_cast<uint32_t>(random.Next());
  h.exponent = static_cast<uint16_t>(random.Next());
  h.lanes = static_cast<uint16_t>(1 + random.Below(256));
  if ((h.flags & kPacketReply) != 0) h.contributions = static_cast<uint16_t>(random.Below(65));
  if (h.mode == PacketMode::kTable) {
    h.lanes = static_cast<uint16_t>(h.lanes * 2);
    h.detail = random.Below(2) == 0 ? 8 : 16;
  }
  if (h.mode == PacketMode::kSparse) {
    h.columns = static_cast<uint8_t>(1 + random.Below(kColumnsMax));
    h.lanes = static_cast<uint16_t>(1 + random.Below(kPacketLanesMax / h.columns));
    h.detail = static_cast<uint32_t>(random.Below(1ull << h.columns));
  }
  if (h.mode == PacketMode::kSum && random.Below(3) == 0) h.flags |= kPacketLead;
  return h;
}

TEST(AggregationPacketTest, SurvivesTheRoundTripAndNoOtherLength) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    const PacketHeader header = RandomPacketHeader(random);
    Bytes payload(PayloadBytes(header));
    for (std::byte& octet : payload) octet = static_cast<std::byte>(random.Next());
    Bytes bytes = Encode(header, payload, i % 2 == 0);
    ASSERT_LE(bytes.size(), kPacketBytesMax);
    const StatusOr<Packet> packet = DecodePacket(bytes);
    ASSERT_TRUE(packet.ok()) << packet.status();
    PacketHeader found = packet->header;
    if (i % 2 == 0) {
      EXPECT_NE(found.flags & kPacketChecked, 0);
      found.flags &= static_cast<uint8_t>(~kPacketChecked);
      found.checksum = 0;
    }
    EXPECT_EQ(found, header);
    EXPECT_EQ(Bytes(packet->payload.begin(), packet->payload.end()), payload);
    if (!payload.empty()) {
      EXPECT_FALSE(DecodePacket(std::span(bytes).first(bytes.size() - 1)).ok());
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(DecodePacket(bytes).ok());
  }
}

TEST(AggregationPacketTest, EveryFlippedBitOfASealedPacketIsSeen) {
  PacketHeader header;
  header.lanes = 4;
  header.epoch = 1;
  const Bytes whole = Encode(header, Bytes(16, std::byte{5}), true);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes bytes = whole;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const StatusOr<Packet> packet = DecodePacket(bytes);
    ASSERT_FALSE(packet.ok()) << "bit " << bit;
    EXPECT_EQ(packet.status().code(), StatusCode::kDataLoss);
  }
}

TEST(AggregationPacketTest, EveryPrefixIsRefused) {
  PacketHeader header;
  header.lanes = 4;
  const Bytes whole = Encode(header, Bytes(16, std::byte{5}), false);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(DecodePacket(std::span(whole).first(size)).ok()) << size;
  }
}

struct Bad {
  PacketHeader header;
  std::string names;
};

TEST(AggregationPacketTest, RefusesHeadersThatContradictThemselves) {
  std::vector<Bad> all(16);
  all[0] = {{.flags = 64, .lanes = 8}, "flags"};
  all[1] = {{.flags = kPacketNotice, .lanes = 8, .detail = 1}, "flags"};
  all[2] = {{.flags = kPacketOverflow, .lanes = 8}, "flags"};
  all[3] = {{.mode = PacketMode::kMax, .flags = kPacketLead, .lanes = 8}, "lead"};
  all[4] = {{.lanes = 8, .contributions = 1}, "contributions"};
  all[5] = {{.flags = kPacketReply, .lanes = 8, .contributions = 4097}, "contributions"};
  all[6] = {{.flags = kPacketReply | kPacketNotice, .lanes = 8, .detail = 3}, "notice"};
  all[7] = {{.lanes = 0}, "lanes"};
  all[8] = {{.lanes = 257}, "at most 256"};
  all[9] = {{.lanes = 8, .detail = 1}, "detail"};
  all[10] = {{.mode = PacketMode::kTable, .lanes = 8, .detail = 4}, "sum bits"};
  all[11] = {{.mode = PacketMode::kTable, .lanes = 7, .detail = 8}, "even"};
  all[12] = {{.mode = PacketMode::kTable, .lanes = 514, .detail = 16}, "512"};
  all[13] = {{.mode = PacketMode::kSparse, .lanes = 8}, "columns"};
  all[14] = {{.mode = PacketMode::kSparse, .columns = 3, .lanes = 86}, "256 in all"};
  all[15] = {{.mode = PacketMode::kSparse, .columns = 3, .lanes = 8, .detail = 8}, "that exist"};
  all.push_back({{.columns = 1, .lanes = 8}, "columns"});
  for (const Bad& bad : all) {
    const StatusOr<Packet> packet =
        DecodePacket(Encode(bad.header, Bytes(PayloadBytes(bad.header)), false));
    ASSERT_FALSE(packet.ok()) << bad.names;
    EXPECT_THAT(Message(packet.status()), HasSubstr(bad.names));
  }
}

TEST(AggregationPacketTest, RefusesOtherMagicVersionModeAndAChecksumThatDoesNotCount) {
  PacketHeader header;
  header.lanes = 4;
  const Bytes whole = Encode(header, Bytes(16), false);
  const struct {
    size_t at;
    uint8_t value;
    const char* names;
  } wrong[] = {{0, 0, "magic"}, {1, 0, "magic"}, {2, 1, "version"},
               {3, 0, "mode"},  {3, 6, "mode"},  {47, 1, "checksum"}};
  for (const auto& [at, value, names] : wrong) {
    Bytes bytes = whole;
    bytes[at] = static_cast<std::byte>(value);
    const StatusOr<Packet> packet = DecodePacket(bytes);
    ASSERT_FALSE(packet.ok()) << names;
    EXPECT_THAT(Message(packet.status()), HasSubstr(names));
  }
}

TEST(AggregationPacketTest, LanesSurviveInEitherOrder) {
  const std::vector<uint32_t> lanes = {1, 0x01020304, 0xFFFFFFFE};
  for (const bool little : {false, true}) {
    Bytes payload(12);
    StoreLanes(lanes, little, payload);
    EXPECT_EQ(payload[little ? 7 : 4], std::byte{1});
    std::vector<uint32_t> again(3);
    LoadLanes(payload, little, again);
    EXPECT_EQ(again, lanes);
  }
}

// The bytes that WIRE.md prints are the bytes that the code sends.
class AggregationGoldenTest : public ::testing::Test {
 protected:
  void Expect(const std::string& name, const Bytes& bytes) {
    const std::string root = WEIR_TEST_SOURCE_DIR;
    const auto golden = testing::ReadGolden(root + "/golden/wire/aggregation_v2.hex");
    const auto found = golden.find(name);
    ASSERT_NE(found, golden.end()) << name;
    EXPECT_EQ(found->second.bytes, bytes) << name;
    EXPECT_THAT(testing::ReadText(root + "/../proto/WIRE.md"), HasSubstr(found->second.dump));
  }
};

Bytes Lanes(const std::vector<uint32_t>& lanes) {
  Bytes payload(lanes.size() * 4);
  StoreLanes(lanes, false, payload);
  return payload;
}

const PacketHeader kGolden = {.lease = 7,
                              .epoch = 3,
                              .cookie = 0x0123456789abcdef,
                              .slot = 5,
                              .lanes = 4,
                              .round = 9,
                              .operation = 17,
                              .offset = 2,
                              .exponent = 201};

TEST_F(AggregationGoldenTest, ASumGoesUpAndComesDown) {
  Expect("sum of four lanes, up", Encode(kGolden, Lanes({1, 2, 3, 0xFFFFFFFF}), false));
  PacketHeader reply = kGolden;
  reply.flags = kPacketReply;
  reply.contributions = 2;
  Expect("sum of four lanes, down, sealed", Encode(reply, Lanes({2, 4, 6, 0xFFFFFFFE}), true));
}

TEST_F(AggregationGoldenTest, TheOtherModes) {
  PacketHeader h = kGolden;
  h.exponent = 0;
  h.mode = PacketMode::kTable;
  h.detail = 8;
  Expect("four table indices, up", Encode(h, {std::byte{0x1f}, std::byte{0x70}}, false));
  h.flags = kPacketReply;
  h.contributions = 2;
  Bytes sums(kContributorBytes + 4);
  sums[7] = std::byte{5};
  for (int i = 0; i < 4; ++i) sums[8 + i] = static_cast<std::byte>(3 * i);
  Expect("four table sums of workers 0 and 2, down", Encode(h, sums, false));
  PacketHeader sparse = kGolden;
  sparse.exponent = 0;
  sparse.mode = PacketMode::kSparse;
  sparse.columns = 2;
  sparse.lanes = 2;
  sparse.detail = 2;
  Expect("two columns, a block in the second, up",
         Encode(sparse, Lanes({12, kNoBlock, 1, 2}), false));
  PacketHeader notice = kGolden;
  notice.exponent = 0;
  notice.flags = kPacketReply | kPacketNotice;
  notice.detail = static_cast<uint32_t>(Notice::kMismatch);
  Expect("notice of a mismatch, down", Encode(notice, {}, false));
}

}  // namespace
}  // namespace weir::aggregation
