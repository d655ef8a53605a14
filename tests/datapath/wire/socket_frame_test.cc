// SPDX-License-Identifier: Apache-2.0
// The cutting of the local socket's byte stream into JSON texts.

#include "datapath/wire/socket_frame.h"

#include <gtest/gtest.h>

#include "datapath/base/random.h"

namespace weir {
namespace {

TEST(SocketFrameTest, BytesAreLittleEndianLengthThenText) {
  EXPECT_EQ(EncodeSocketFrame("{}"), std::string("\x02\0\0\0{}", 6));
}

TEST(SocketFrameReaderTest, AnySplitOfTheStreamGivesTheSameTexts) {
  std::vector<std::string> texts;
  std::string stream;
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    texts.push_back("{\"a\":\"" + std::string(random.Below(300), 'x') + "\"}");
    stream += EncodeSocketFrame(texts.back());
  }
  for (size_t portion : {size_t{1}, size_t{3}, size_t{64}, size_t{1000}, stream.size()}) {
    SocketFrameReader reader;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += portion) {
      reader.Append(std::string_view(stream).substr(at, portion));
      for (;;) {
        auto text = reader.Next();
        ASSERT_TRUE(text.ok());
        if (!text->has_value()) break;
        got.push_back(**text);
      }
    }
    EXPECT_EQ(got, texts) << "portion " << portion;
    EXPECT_EQ(reader.buffered_bytes(), 0u);
  }
}

TEST(SocketFrameReaderTest, TruncatedFrameWaitsForTheRest) {
  SocketFrameReader reader;
  const std::string frame = EncodeSocketFrame("{\"a\":1}");
  reader.Append(std::string_view(frame).substr(0, frame.size() - 1));
  auto text = reader.Next();
  ASSERT_TRUE(text.ok());
  EXPECT_FALSE(text->has_value());
  EXPECT_EQ(reader.buffered_bytes(), frame.size() - 1);
}

TEST(SocketFrameReaderTest, OversizedAndEmptyClaimsFailForGood) {
  for (const std::string& prefix : {std::string("\x01\0\x40\0", 4), std::string("\0\0\0\0", 4),
                                    std::string("\xff\xff\xff\xff", 4)}) {
    SocketFrameReader reader;
    reader.Append(prefix);
    EXPECT_EQ(reader.Next().status().code(), StatusCode::kDataLoss);
    reader.Append(EncodeSocketFrame("{}"));
    EXPECT_EQ(reader.Next().status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(reader.buffered_bytes(), 0u);
  }
}

TEST(SocketFrameReaderTest, LargestFrameIsAccepted) {
  const std::string text(kSocketFrameBytesMax, ' ');
  SocketFrameReader reader;
  reader.Append(EncodeSocketFrame(text));
  auto got = reader.Next();
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->value().size(), kSocketFrameBytesMax);
}

}  // namespace
}  // namespace weir
