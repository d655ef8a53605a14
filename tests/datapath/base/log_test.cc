// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/log_limit.h"

namespace weir {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    SetLogSink([this](LogLevel level, std::string_view part, std::string_view message) {
      lines_.push_back(StrCat(static_cast<int>(level), " ", part, " ", message));
    });
  }
  ~LogTest() override {
    SetLogSink({});
    SetMinimumLogLevel(LogLevel::kInfo);
  }
  std::vector<std::string> lines_;
};

TEST_F(LogTest, WritesFromTheMinimumLevelUp) {
  Log(LogLevel::kDebug, "agent", "hidden");
  Log(LogLevel::kInfo, "agent", "shown");
  SetMinimumLogLevel(LogLevel::kError);
  Log(LogLevel::kWarning, "agent", "hidden");
  Log(LogLevel::kError, "agent", "shown too");
  EXPECT_EQ(lines_, (std::vector<std::string>{"1 agent shown", "3 agent shown too"}));
}

// Names and reasons of strangers could contain whole lines, or what a terminal obeys.
TEST_F(LogTest, ControlCharactersAreEscaped) {
  Log(LogLevel::kInfo, "audit", "a\n2026 I audit: forged\r\x1b[2K\x7f\t\xc2\x9b, grün ✓");
  EXPECT_EQ(lines_,
            (std::vector<std::string>{"1 audit a\\n2026 I audit: forged\\x0d\\x1b[2K\\x7f\\x09"
                                      "\\xc2\\x9b, grün ✓"}));
}

TEST_F(LogTest, LimitLeavesOutLinesAndSaysHowMany) {
  FakeClock clock;
  LogLimit limit(clock);
  for (int i = 0; i < 1000; ++i) limit.Log(LogLevel::kInfo, "p", "refused");
  EXPECT_EQ(lines_.size(), static_cast<size_t>(LogLimit::kLinesMax));
  clock.Advance(LogLimit::kWindow);
  limit.Log(LogLevel::kInfo, "p", "refused");
  ASSERT_EQ(lines_.size(), static_cast<size_t>(LogLimit::kLinesMax) + 2);
  EXPECT_EQ(lines_[LogLimit::kLinesMax], "1 p 980 lines like the next one were left out");
}

TEST_F(LogTest, StandardErrorLineHasTimeLevelAndPart) {
  SetLogSink({});
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kWarning, "transport", "rank 1 is late");
  const std::string line = ::testing::internal::GetCapturedStderr();
  ASSERT_GT(line.size(), 24u);
  EXPECT_EQ(line[10], 'T');
  EXPECT_EQ(line.substr(23), "Z W transport: rank 1 is late\n");
}

TEST_F(LogTest, FieldsFollowTheMessage) {
  Log(LogLevel::kInfo, "access", "GET /", {{"peer", "10.0.0.1"}, {"principal", "a\nb"}});
  EXPECT_EQ(lines_, (std::vector<std::string>{"1 access GET / peer=10.0.0.1 principal=a\\nb"}));
}

TEST_F(LogTest, JsonLinesAreOneObjectEachWhateverTheyContain) {
  SetLogSink({});
  SetLogFormat(LogFormat::kJson);
  ::testing::internal::CaptureStderr();
  const std::string hostile =
      "\xff\"\\\n\x01\xed\xa0\x80\xc0\x80 gr\xc3\xbcn \xf0\x9f\x98\x80 \xf4\x90\x80\x80\x7f\xc2";
  Log(LogLevel::kWarning, "audit", hostile, {{"request_id", "a\"b"}});
  const std::string text = ::testing::internal::GetCapturedStderr();
  SetLogFormat(LogFormat::kText);
  ASSERT_EQ(text.back(), '\n');
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto line = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(line.is_object()) << text;
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["part"], "audit");
  EXPECT_EQ(line["request_id"], "a\"b");
  EXPECT_EQ(line["time"].get<std::string>().size(), std::string("2026-01-31T12:00:00.123Z").size());
  const std::string lost = "\xef\xbf\xbd";
  EXPECT_EQ(line["message"], lost + "\"\\\n\x01" + lost + lost + lost + lost + lost +
                                 " gr\xc3\xbcn \xf0\x9f\x98\x80 " + lost + lost + lost + lost +
                                 "\x7f" + lost);
}

TEST(ParseLogFormatTest, KnowsTwoNames) {
  EXPECT_EQ(*ParseLogFormat("text"), LogFormat::kText);
  EXPECT_EQ(*ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_EQ(ParseLogFormat("xml").status().code(), StatusCode::kNotFound);
}

TEST(ParseLogLevelTest, KnowsFourNames) {
  EXPECT_EQ(*ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(*ParseLogLevel("info"), LogLevel::kInfo);
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(*ParseLogLevel("error"), LogLevel::kError);
  EXPECT_EQ(ParseLogLevel("loud").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace weir
