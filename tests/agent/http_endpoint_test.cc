// SPDX-License-Identifier: Apache-2.0
#include "agent/http_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <fstream>

#include "datapath/base/clock.h"

namespace weir::agent {
namespace {

using ::testing::HasSubstr;

constexpr const char* kToken = "0123456789abcdef";

httplib::Result Get(int port, const char* path, const httplib::Headers& headers = {}) {
  httplib::Client client("127.0.0.1", port);
  return client.Get(path, headers);
}

TEST(HttpEndpointTest, MetricsAskForTheTokenAndHealthDoesNot) {
  const std::string path = testing::TempDir() + "metrics-tokens";
  std::ofstream(path) << kToken << "\n";
  const auto tokens = TokenFile::Open(path, "test");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  Status well;
  const auto endpoint = HttpEndpoint::Start(
      {.address = "127.0.0.1:0", .tokens = tokens->get()}, [] { return "weir_x 1\n"; },
      [&] { return well; });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const int port = (*endpoint)->port();
  EXPECT_EQ(Get(port, "/metrics")->status, 401);
  EXPECT_EQ(Get(port, "/metrics", {{"Authorization", "Bearer wrong"}})->status, 401);
  const auto page = Get(port, "/metrics", {{"Authorization", std::string("Bearer ") + kToken}});
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->body, "weir_x 1\n");
  // Somebody who guesses is put off, and does not lock out who has the token.
  int status = 0;
  for (int i = 0; i < 30; ++i) {
    status = Get(port, "/metrics", {{"Authorization", StrCat("Bearer ", i)}})->status;
  }
  EXPECT_EQ(status, 429);
  EXPECT_EQ(Get(port, "/metrics", {{"Authorization", std::string("Bearer ") + kToken}})->status,
            200);
  EXPECT_EQ(Get(port, "/healthz")->status, 200);
  well = Unavailable("hangs");
  EXPECT_EQ(Get(port, "/healthz")->status, 503);
}

TEST(HttpEndpointTest, WrongAndTakenAddressesAreErrors) {
  const auto text = [] { return ""; };
  const auto well = [] { return OkStatus(); };
  const auto first = HttpEndpoint::Start({.address = "127.0.0.1:0"}, text, well);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string taken = StrCat("127.0.0.1:", (*first)->port());
  EXPECT_EQ(HttpEndpoint::Start({.address = taken}, text, well).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(HttpEndpoint::Start({.address = "no address"}, text, well).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(HttpEndpointTest, EndsAtOnce) {
  auto endpoint = HttpEndpoint::Start(
      {.address = "127.0.0.1:0"}, [] { return ""; }, [] { return OkStatus(); });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const TimePoint start = RealClock().Now();
  endpoint->reset();
  EXPECT_LT(RealClock().Now() - start, std::chrono::milliseconds(1000));
}

}  // namespace
}  // namespace weir::agent
