// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "datapath/base/random.h"
#include "tests/support/golden.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader RandomHeader(Random& random) {
  FrameHeader h;
  h.type = static_cast<FrameType>(1 + random.Below(3));
  h.flags = static_cast<uint16_t>(random.Next());
  h.source_rank = static_cast<uint16_t>(random.Next());
  h.slot = static_cast<uint32_t>(random.Next());
  h.message = static_cast<uint32_t>(random.Next());
  h.plan_version = random.Next();
  h.op_sequence = random.Next();
  h.bucket = random.Next();
  h.control = {random.Next(), random.Next()};
  h.payload_bytes = static_cast<uint32_t>(random.Below(kFramePayloadBytesMax + 1ull));
  h.payload_checksum = static_cast<uint32_t>(random.Next());
  return h;
}

HeaderBytes Encode(const FrameHeader& header) {
  HeaderBytes bytes;
  EncodeFrameHeader(header, bytes);
  return bytes;
}

void ExpectEqual(const FrameHeader& a, const FrameHeader& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.flags, b.flags);
  EXPECT_EQ(a.source_rank, b.source_rank);
  EXPECT_EQ(a.slot, b.slot);
  EXPECT_EQ(a.message, b.message);
  EXPECT_EQ(a.plan_version, b.plan_version);
  EXPECT_EQ(a.op_sequence, b.op_sequence);
  EXPECT_EQ(a.bucket, b.bucket);
  EXPECT_EQ(a.control, b.control);
  EXPECT_EQ(a.payload_bytes, b.payload_bytes);
  EXPECT_EQ(a.payload_checksum, b.payload_checksum);
}

TEST(FrameTest, HeaderSurvivesTheRoundTrip) {
  constexpr uint64_t kSeed = 12;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    const FrameHeader header = RandomHeader(random);
    const StatusOr<FrameHeader> decoded = DecodeFrameHeader(Encode(header));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ExpectEqual(*decoded, header);
  }
}

// Overwrites octets of a good header and, if asked, makes its checksum right again.
template <typename T>
Status DecodeWith(size_t offset, T value, bool fix_checksum = true) {
  HeaderBytes bytes = Encode({});
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  if (fix_checksum) {
    const uint32_t checksum = Checksum(std::span(bytes).first(68));
    std::memcpy(bytes.data() + 68, &checksum, sizeof checksum);
  }
  return DecodeFrameHeader(bytes).status();
}

TEST(FrameTest, EachWrongFieldIsNamed) {
  EXPECT_TRUE(DecodeWith(6, uint16_t{0}).ok());
  EXPECT_TRUE(DecodeWith(56, kFramePayloadBytesMax).ok());
  const std::vector<std::pair<Status, std::string>> cases = {
      {DecodeWith(0, uint32_t{0x20544547}), "frame magic"},
      {DecodeWith(4, uint8_t{1}), "frame version: expected 3, found 1"},
      {DecodeWith(5, uint8_t{0}), "frame type: expected 1..4, found 0"},
      {DecodeWith(5, uint8_t{5}), "frame type: expected 1..4, found 5"},
      {DecodeWith(10, uint16_t{1}), "frame reserved bytes: expected 0, found 1"},
      {DecodeWith(56, kFramePayloadBytesMax + 1),
       "expected at most 1073741824 bytes, found 1073741825"},
      {DecodeWith(16, uint8_t{1}, false), "frame header checksum"},
      {DecodeWith(68, uint32_t{1}, false), "frame header checksum"},
  };
  for (const auto& [status, expected] : cases) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << expected;
    EXPECT_THAT(Message(status), HasSubstr(expected));
  }
}

TEST(FrameTest, AHeaderWithATagHasNoChecksums) {
  FrameHeader header;
  header.payload_bytes = 5;
  header.payload_checksum = 7;
  HeaderBytes bytes;
  EncodeFrameHeader(header, bytes, FrameCheck::kTag);
  EXPECT_FALSE(DecodeFrameHeader(bytes).ok());
  const StatusOr<FrameHeader> decoded = DecodeFrameHeader(bytes, FrameCheck::kTag);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->payload_bytes, 5u);
  EXPECT_EQ(decoded->payload_checksum, 0u);
  EXPECT_THAT(Message(DecodeFrameHeader(Encode({}), FrameCheck::kTag).status()),
              HasSubstr("frame header checksum: expected 0"));
  bytes[60] = std::byte{1};
  EXPECT_THAT(Message(DecodeFrameHeader(bytes, FrameCheck::kTag).status()),
              HasSubstr("frame payload checksum: expected 0, found 1"));
}

TEST(FrameTest, NoMutationPasses) {
  constexpr uint64_t kSeed = 99;
  Random random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    const HeaderBytes good = Encode(RandomHeader(random));
    HeaderBytes bad = good;
    const uint64_t changes = 1 + random.Below(6);
    for (uint64_t c = 0; c < changes; ++c) {
      bad[random.Below(kFrameHeaderBytes)] = static_cast<std::byte>(random.Next());
    }
    if (bad == good) continue;
    EXPECT_FALSE(DecodeFrameHeader(bad).ok()) << "seed " << kSeed << " round " << i;
  }
}

TEST(FrameTest, DescribeNamesWhatErrorsNeed) {
  FrameHeader header;
  header.plan_version = 3;
  header.op_sequence = 17;
  header.slot = 2;
  header.message = 4;
  header.bucket = 0x00c0ffee00c0ffee;
  header.source_rank = 1;
  EXPECT_EQ(Describe(header), "plan 3 op 17 message 4 slot 2 bucket 00c0ffee00c0ffee from rank 1");
  header.op_sequence = UINT64_MAX;
  EXPECT_THAT(Describe(header), HasSubstr("op outside steps"));
}

// ---- recorded bytes: a change here needs another frame version

std::map<std::string, testing::GoldenBytes> Golden() {
  return testing::ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/frames_v3.hex");
}

TEST(FrameGoldenTest, DataFrameHasItsRecordedBytes) {
  const auto golden =
      Golden()
          ["data: plan 3, operation 17, message 4, slot 5, plan 4 announced for step 100, 8 bytes"]
              .bytes;
  ASSERT_EQ(golden.size(), kFrameHeaderBytes + 8);
  const std::span<const std::byte> payload = std::span(golden).subspan(kFrameHeaderBytes);
  FrameHeader header;
  header.flags = kFlagNonFinite;
  header.source_rank = 2;
  header.slot = 5;
  header.message = 4;
  header.plan_version = 3;
  header.op_sequence = 17;
  header.bucket = 0x00c0ffee00c0ffee;
  header.control = {.version = 4, .step = 100};
  header.payload_bytes = 8;
  header.payload_checksum = Checksum(payload);
  const HeaderBytes bytes = Encode(header);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), golden.begin()));
  const auto decoded = DecodeFrameHeader(
      std::span<const std::byte, kFrameHeaderBytes>(golden.data(), kFrameHeaderBytes));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectEqual(*decoded, header);
}

TEST(FrameGoldenTest, DocumentShowsTheRecordedBytes) {
  const std::string document = testing::ReadText(WEIR_TEST_SOURCE_DIR "/../proto/WIRE.md");
  const auto golden = Golden();
  EXPECT_EQ(golden.size(), 10u);
  for (const auto& [name, example] : golden) {
    EXPECT_FALSE(example.bytes.empty());
    EXPECT_NE(document.find("```\n" + example.dump + "```"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace weir
