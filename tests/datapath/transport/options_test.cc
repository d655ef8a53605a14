// SPDX-License-Identifier: Apache-2.0
// Transports and their options as text.

#include "datapath/transport/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace weir::testing {
namespace {
using std::chrono::microseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the default options changed by `text`.
TransportOptions Parsed(const std::string& text, const std::string& name) {
  TransportOptions options;
  const auto factory = ParseTransport(text, &options);
  EXPECT_TRUE(factory.ok()) << factory.status();
  if (factory.ok()) EXPECT_EQ((*factory)->Traits().name, name);
  return options;
}

void ExpectError(const std::string& text, StatusCode code,
                 const ::testing::Matcher<const std::string&>& message) {
  TransportOptions options;
  options.connections = 7;
  const Status status = ParseTransport(text, &options).status();
  EXPECT_EQ(status.code(), code) << text << ": " << status;
  EXPECT_THAT(Message(status), message) << text;
  EXPECT_EQ(options.connections, 7) << text;
}

TEST(ParseTransportTest, ANameAloneChangesNothing) {
  TransportOptions options;
  options.rank = 3;
  options.connections = 2;
  const auto factory = ParseTransport("auto", &options);
  ASSERT_TRUE(factory.ok()) << factory.status();
  EXPECT_EQ((*factory)->Traits().name, "auto");
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.connections, 2);
}

TEST(ParseTransportTest, EveryOptionReachesItsField) {
  const TransportOptions options =
      Parsed("tcp:connections=4,pacing=100M,zero_copy=64Ki,congestion=bbr,busy_poll=50us", "tcp");
  EXPECT_EQ(options.connections, 4);
  EXPECT_EQ(options.pacing_bytes_per_s, 100'000'000u);
  EXPECT_EQ(options.zero_copy_bytes_min, size_t{64} << 10);
  EXPECT_EQ(options.congestion_control, "bbr");
  EXPECT_EQ(options.busy_poll, microseconds(50));
  EXPECT_EQ(Parsed("auto:connections=16", "auto").connections, 16);
  EXPECT_TRUE(Parsed("auto:connections=2,nccl=on", "auto").nccl);
  EXPECT_FALSE(Parsed("auto:nccl=off", "auto").nccl);
  EXPECT_EQ(Parsed("shm:busy_poll=2ms", "shm").busy_poll, microseconds(2000));
}

TEST(ParseTransportTest, UnknownNamesAndKeysListTheValidOnes) {
  ExpectError("pigeon:connections=4", StatusCode::kNotFound,
              AllOf(HasSubstr("'pigeon'"), HasSubstr("auto, shm, tcp")));
  ExpectError("", StatusCode::kNotFound, HasSubstr("auto, shm, tcp"));
  ExpectError("tcp:connections=4,conections=4", StatusCode::kNotFound,
              AllOf(HasSubstr("transport tcp: unknown option 'conections'"),
                    HasSubstr("valid: connections, pacing, zero_copy, congestion, busy_poll")));
  ExpectError("shm:connections=4", StatusCode::kNotFound,
              AllOf(HasSubstr("transport shm: unknown option 'connections'"),
                    HasSubstr("valid: busy_poll")));
}

TEST(ParseTransportTest, BadValuesAreNamedWithWhatWasExpected) {
  for (const char* value :
       {"0", "17", "-1", "4 ", " 4", "4K", "four", "", "1e0", "99999999999999999999"}) {
    ExpectError(std::string("tcp:connections=") + value, StatusCode::kInvalidArgument,
                AllOf(HasSubstr("transport tcp: connections: expected 1..16, found '" +
                                std::string(value) + "'"),
                      HasSubstr("valid: connections, pacing")));
  }
  for (const char* setting :
       {"pacing=fast", "pacing=1.5M", "pacing=1MiB", "pacing=-1", "pacing=18446744073709551615K",
        "zero_copy=k", "congestion=", "busy_poll=50", "busy_poll=61s", "busy_poll=-1us",
        "busy_poll=us", "nccl=1", "nccl="}) {
    const std::string text = setting, key = text.substr(0, text.find('='));
    ExpectError("auto:" + text, StatusCode::kInvalidArgument,
                AllOf(HasSubstr("transport auto: " + key + ": expected "),
                      HasSubstr("found '" + text.substr(key.size() + 1) + "'")));
  }
}

TEST(ParseTransportTest, EveryKeyHasOneValue) {
  ExpectError("tcp:connections=4,connections=4", StatusCode::kInvalidArgument,
              HasSubstr("connections: given twice"));
  for (const char* text : {"tcp:", "tcp:connections", "tcp:connections=4,", "tcp:,connections=4"}) {
    ExpectError(text, StatusCode::kInvalidArgument, HasSubstr("expected KEY=VALUE, found '"));
  }
}

TEST(ParseTransportTest, TheCongestionControlIsTheKernels) {
  TransportOptions options;
  const auto factory = ParseTransport("tcp:congestion=warp", &options);
  ASSERT_TRUE(factory.ok()) << factory.status();
  const Status status = (*factory)->Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("warp"));
}

TEST(ParseValuesTest, UnitsAreExact) {
  EXPECT_EQ(ParseBytes("0"), 0u);
  EXPECT_EQ(ParseBytes("3K"), 3000u);
  EXPECT_EQ(ParseBytes("3Ki"), 3072u);
  EXPECT_EQ(ParseBytes("5G"), 5'000'000'000u);
  EXPECT_EQ(ParseBytes("5Gi"), uint64_t{5} << 30);
  EXPECT_EQ(ParseBytes("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(ParseBytes("17179869184Gi"), std::nullopt);  // 2^64
  EXPECT_EQ(ParseDuration("0"), Duration(0));
  EXPECT_EQ(ParseDuration("60s"), std::chrono::minutes(1));
  EXPECT_EQ(ParseDuration("60001ms"), std::nullopt);
  EXPECT_EQ(ParseCount("5", 5, 5), 5u);
  EXPECT_EQ(ParseCount("6", 5, 5), std::nullopt);
}

// The tables of options agree with the documentation: the README and the C header.
TEST(TransportOptionsTest, EveryOptionIsDocumented) {
  const auto read = [](const std::string& path) {
    std::ifstream file(std::string(WEIR_TEST_SOURCE_DIR) + "/../" + path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
  const std::string readme = read("datapath/transport/README.md"),
                    header = read("datapath/api/weir.h");
  for (const TransportFactory* factory : Transports().All()) {
    EXPECT_FALSE(factory->Traits().options.empty()) << factory->Traits().name;
    for (const TransportOption& option : factory->Traits().options) {
      EXPECT_THAT(readme, HasSubstr(StrCat("| `", option.key, "` |")));
      EXPECT_THAT(header, HasSubstr(StrCat("   *   ", option.key, "=")));
      EXPECT_FALSE(option.expected.empty() || option.meaning.empty()) << option.key;
    }
  }
}

}  // namespace
}  // namespace weir::testing
