// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/byte_cursor.h"

#include <gtest/gtest.h>

#include <array>

namespace weir {
namespace {

TEST(ByteCursorTest, WritesLittleEndianAndReadsItBack) {
  std::array<std::byte, 15> bytes{};
  ByteWriter writer(bytes);
  writer.Write(uint32_t{0x04030201});
  writer.Write(uint16_t{0x0605});
  writer.Write(uint8_t{7});
  writer.WriteBytes(std::as_bytes(std::span("12345678", 8)));
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer.offset(), 15u);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(bytes[i], std::byte(i + 1));

  ByteReader reader(bytes);
  uint32_t a = 0;
  uint16_t b = 0;
  uint8_t c = 0;
  std::span<const std::byte> rest;
  ASSERT_TRUE(reader.Read(&a).ok() && reader.Read(&b).ok() && reader.Read(&c).ok());
  EXPECT_EQ(a, 0x04030201u);
  EXPECT_EQ(b, 0x0605u);
  EXPECT_EQ(c, 7u);
  EXPECT_EQ(reader.rest().size(), 8u);
  ASSERT_TRUE(reader.ReadBytes(8, &rest).ok());
  EXPECT_EQ(rest.data(), bytes.data() + 7);
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(ByteCursorTest, ReadPastTheEndSaysWhereAndMovesNothing) {
  const std::array<std::byte, 5> bytes{};
  ByteReader reader(bytes);
  uint32_t value = 0;
  ASSERT_TRUE(reader.Read(&value).ok());
  const Status status = reader.Read(&value);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(Message(status), "truncated at offset 4: expected 4 more bytes, found 1");
  EXPECT_EQ(reader.offset(), 4u);
  uint8_t last = 0;
  EXPECT_TRUE(reader.Read(&last).ok());
}

TEST(ByteCursorTest, HugeLengthIsRefused) {
  const std::array<std::byte, 5> bytes{};
  ByteReader reader(bytes);
  uint8_t first = 0;
  std::span<const std::byte> out;
  ASSERT_TRUE(reader.Read(&first).ok());
  EXPECT_FALSE(reader.ReadBytes(SIZE_MAX, &out).ok());
  EXPECT_FALSE(reader.ReadBytes(5, &out).ok());
  EXPECT_TRUE(reader.ReadBytes(4, &out).ok());
}

TEST(ByteCursorTest, OverflowStopsTheWriterForGood) {
  std::array<std::byte, 4> bytes{};
  ByteWriter writer{std::span<std::byte>(bytes).first(3)};
  writer.Write(uint16_t{0xFFFF});
  writer.Write(uint16_t{0xFFFF});
  EXPECT_FALSE(writer.ok());
  writer.Write(uint8_t{0xFF});  // would fit, but the stream already has a gap
  EXPECT_FALSE(writer.ok());
  EXPECT_EQ(writer.offset(), 2u);
  EXPECT_EQ(bytes[2], std::byte{0});
  EXPECT_EQ(bytes[3], std::byte{0});
}

TEST(ByteCursorTest, EmptyRunsAreFine) {
  ByteWriter writer({});
  writer.WriteBytes({});
  EXPECT_TRUE(writer.ok());
  ByteReader reader({});
  std::span<const std::byte> out;
  EXPECT_TRUE(reader.ReadBytes(0, &out).ok());
}

}  // namespace
}  // namespace weir
