// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/table.h"

#include <gtest/gtest.h>

#include "datapath/nccl/plugin/environment.h"
#include "datapath/nccl/plugin/interface.h"

namespace weir::nccl::plugin {
namespace {

TEST(TableTest, TheFirstMatchingRuleDecides) {
  const auto table = Table::Parse(R"({"rules": [
      {"function": "all_reduce", "bytes_min": 1024, "bytes_end": "4096", "ranks": 8,
       "algorithm": "tree", "protocol": "ll128", "channels": 4, "chunk_bytes": 131072},
      {"function": "all_reduce", "algorithm": "ring", "protocol": "simple"}]})");
  ASSERT_TRUE(table.ok()) << table.status();
  const auto first = table->Find(kNcclAllReduce, 1024, 8);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->algorithm, 0);
  EXPECT_EQ(first->protocol, 1);
  EXPECT_EQ(first->channels, 4);
  EXPECT_EQ(first->chunk_bytes, 131072u);
  for (const auto& [bytes, ranks] : {std::pair(1023, 8), {4096, 8}, {1024, 7}}) {
    const auto other = table->Find(kNcclAllReduce, bytes, ranks);
    ASSERT_TRUE(other.has_value());
    EXPECT_EQ(other->algorithm, 1);
    EXPECT_EQ(other->protocol, 2);
    EXPECT_EQ(other->channels, 0);
  }
  EXPECT_FALSE(table->Find(kNcclBroadcast, 1024, 8).has_value());
  EXPECT_FALSE(Table().Find(kNcclAllReduce, 1024, 8).has_value());
}

TEST(TableTest, IdentityIsOfTheRulesNotOfTheText) {
  const auto a = Table::Parse(
      R"({"rules":[{"function":"reduce","algorithm":"ring","protocol":"ll","bytes_min":0}]})");
  const auto b = Table::Parse(
      R"({ "rules" : [ {"protocol":"ll", "algorithm":"ring", "function":"reduce"} ] })");
  const auto c =
      Table::Parse(R"({"rules":[{"function":"reduce","algorithm":"ring","protocol":"ll128"}]})");
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->identity(), b->identity());
  EXPECT_NE(a->identity(), c->identity());
  EXPECT_EQ(Table().identity(), Table::Parse("{}")->identity());
  EXPECT_NE(Table().identity(), 0u);
}

TEST(TableTest, RefusesWhatItDoesNotUnderstandAndSaysWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "json"},
      {"[]", "table"},
      {R"({"rule": []})", "table.rule"},
      {R"({"rules": 5})", "table.rules"},
      {R"({"rules": [5]})", "table.rules[0]"},
      {R"({"rules": [{"function": "all_reduce"}]})", "algorithm: expected one of tree, ring"},
      {R"({"rules": [{"function": "all", "algorithm": "ring", "protocol": "ll"}]})",
       "table.rules[0].function"},
      {R"({"rules": [{"function": "reduce", "algorithm": "ring", "protocol": "ll", "x": 1}]})",
       "table.rules[0].x"},
      {R"({"rules": [{"function": "reduce", "algorithm": "ring", "protocol": "ll",
           "bytes_min": 8, "bytes_end": 8}]})",
       "bytes_end: expected more than 8"},
      {R"({"rules": [{"function": "reduce", "algorithm": "ring", "protocol": "ll",
           "channels": 65}]})",
       "channels: expected at most 64"},
      {R"({"rules": [{"function": "reduce", "algorithm": "ring", "protocol": "ll",
           "chunk_bytes": 4095}]})",
       "chunk_bytes: expected a multiple of 4096"},
      {R"({"rules": [{"function": "reduce", "algorithm": "ring", "protocol": "ll",
           "bytes_min": -1}]})",
       "bytes_min"},
  };
  for (const auto& [text, message] : cases) {
    const auto table = Table::Parse(text);
    ASSERT_FALSE(table.ok()) << text;
    EXPECT_NE(Message(table.status()).find(message), std::string::npos)
        << text << ": " << table.status();
  }
  std::string many = R"({"rules": [)";
  for (size_t i = 0; i <= kRulesMax; ++i) {
    many += std::string(i == 0 ? "" : ",") +
            R"({"function":"reduce","algorithm":"ring","protocol":"ll"})";
  }
  EXPECT_FALSE(Table::Parse(many + "]}").ok());
  EXPECT_FALSE(Table::Parse(std::string(kTableBytesMax + 1, ' ')).ok());
}

TEST(EnvironmentTest, LinesAreVariables) {
  const auto parsed = ParseEnvironment("# ours\nNCCL_ALGO=Ring\r\n\nNCCL_DEBUG=A=B\nNCCL_ALGO=");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->size(), 2u);
  EXPECT_EQ(parsed->at("NCCL_ALGO"), "");
  EXPECT_EQ(parsed->at("NCCL_DEBUG"), "A=B");
}

TEST(EnvironmentTest, RefusesOtherLines) {
  for (const std::string& text : {std::string("PATH=/"), std::string("NCCL_ALGO"),
                                  std::string("NCCL_A=1\nx"), std::string("NCCL_A=\0b", 9)}) {
    EXPECT_EQ(ParseEnvironment(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(ParseEnvironment(std::string(kEnvironmentBytesMax + 1, '#')).ok());
}

}  // namespace
}  // namespace weir::nccl::plugin
