// SPDX-License-Identifier: Apache-2.0
// Messages that a rank may send and messages that are rejected.
#include "agent/rank_json.h"

#include <gtest/gtest.h>

#include "datapath/base/random.h"
#include "datapath/wire/socket_frame.h"

namespace weir::agent {
namespace {

TEST(RankJsonTest, ReadsFieldNamesAsWrittenAndIgnoresUnknownOnes) {
  const auto message = ParseRankMessage(
      R"({"hello":{"job":"j","rank":2,"world":4,"datapath_address":"10.0.0.1:9","future":[{}]}})");
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->hello().rank(), 2u);
  EXPECT_EQ(message->hello().datapath_address(), "10.0.0.1:9");
}

// A rank of a later version may protect its frames in a way that this agent does not know.
TEST(RankJsonTest, ReadsEnumeratorsByNameAndTakesUnknownOnesForUnspecified) {
  const auto protection = [](const std::string& name) {
    const auto message = ParseRankMessage(
        StrCat(R"({"hello":{"frame_protection":")", name, R"(","unauthenticated_peers":2}})"));
    EXPECT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message.ok() ? message->hello().unauthenticated_peers() : 0, 2u);
    return message.ok() ? message->hello().frame_protection() : -1;
  };
  EXPECT_EQ(protection("FRAME_PROTECTION_ENCRYPTED"), v1::FRAME_PROTECTION_ENCRYPTED);
  EXPECT_EQ(protection("FRAME_PROTECTION_FUTURE"), v1::FRAME_PROTECTION_UNSPECIFIED);
}

TEST(RankJsonTest, Reads64BitIntegersAsNumbersOrText) {
  EXPECT_EQ(ParseRankMessage(R"({"step":{"step":12}})")->step().step(), 12u);
  EXPECT_EQ(ParseRankMessage(R"({"step":{"step":"18446744073709551615"}})")->step().step(),
            UINT64_MAX);
}

TEST(RankJsonTest, WritesFieldNamesAsWritten) {
  v1::RankCommand command;
  command.mutable_offer()->mutable_plan()->add_buckets()->mutable_choice()->set_segment_bytes(4096);
  const auto json = FormatRankCommand(command);
  ASSERT_TRUE(json.ok());
  EXPECT_NE(json->find("\"segment_bytes\":4096"), std::string::npos) << *json;
}

TEST(RankJsonTest, MalformedTextIsDataLoss) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("nul"),
        std::string("{\"hello\":3}"), std::string("{\"hello\":{\"rank\":-1}}"),
        std::string("{\"hello\":{\"rank\":4294967296}}"), std::string("{\"hello\":{\"rank\":1.5}}"),
        std::string("{\"hello\":{\"job\":[]}}"), std::string("{\"hello\":{\"job\":\"\xff\xfe\"}}"),
        std::string("{\"ack\":{},\"nack\":{}}"), std::string(1000, '\0')}) {
    EXPECT_EQ(ParseRankMessage(text).status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST(RankJsonTest, DepthIsBoundedBeforeParsing) {
  const std::string deep(1u << 20, '[');
  EXPECT_NE(Message(ParseRankMessage(deep).status()).find("deeper than 32"), std::string::npos);
  EXPECT_TRUE(CheckJsonDepth(R"({"a":"[[[[[[[[\"[[[["})", 1).ok());
  EXPECT_FALSE(CheckJsonDepth("[[", 1).ok());
}

TEST(RankJsonTest, SizeIsBounded) {
  EXPECT_FALSE(ParseRankMessage(std::string(kSocketFrameBytesMax + 1, ' ')).ok());
}

TEST(RankJsonTest, ErrorTextsAreShortAndPrintable) {
  const auto status = ParseRankMessage("{\"hello\":\"\x1b[31m" + std::string(5000, 'x')).status();
  EXPECT_LT(Message(status).size(), 300u);
  EXPECT_EQ(Message(status).find('\x1b'), std::string::npos);
}

TEST(RankJsonTest, MutatedMessagesNeverCrash) {
  const std::string good =
      R"({"step":{"step":"7","buckets":[{"bucket":"00aa","ratio":0.1,"gain":"NaN"}],"gains":[{"ratios":[1,0.1]}]}})";
  Random random(5);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (uint64_t edits = 1 + random.Below(4); edits > 0; --edits) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    accepted += ParseRankMessage(text).ok() ? 1 : 0;
  }
  EXPECT_LT(accepted, 20000);
}

TEST(RankJsonTest, TokenIsAStringField) {
  EXPECT_EQ(*ParseTokenProof(R"({"token_proof":"secret"})"), "secret");
  for (const char* text : {"", "{}", "[]", "{\"token_proof\":3}", "{\"token_proof\":\"x\"",
                           "\"token_proof\"", "{\"token\":\"secret\"}"}) {
    EXPECT_FALSE(ParseTokenProof(text).ok()) << text;
  }
}

}  // namespace
}  // namespace weir::agent
