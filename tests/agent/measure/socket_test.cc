// SPDX-License-Identifier: Apache-2.0
// Parsing and printing of addresses.
#include "agent/measure/socket.h"

#include <gtest/gtest.h>

namespace weir::agent {
namespace {

TEST(SocketTest, SplitsHostAndPort) {
  EXPECT_EQ(SplitHostPort("10.0.0.1:80")->first, "10.0.0.1");
  EXPECT_EQ(SplitHostPort("[fd00::1]:80")->first, "fd00::1");
  EXPECT_EQ(SplitHostPort("host:65535")->second, 65535);
}

TEST(SocketTest, RejectsWhatIsNoHostAndPort) {
  for (const char* text :
       {"", "host", ":80", "host:", "host:65536", "host:-1", "host:8x", "fd00::1:80", "host: 80"}) {
    EXPECT_FALSE(SplitHostPort(text).ok()) << text;
  }
}

TEST(SocketTest, ParsesLiteralsOnly) {
  EXPECT_EQ(SocketAddress::Parse("[::1]:7")->ToString(), "[::1]:7");
  EXPECT_EQ(SocketAddress::Parse("localhost:7")->ToString(), "127.0.0.1:7");
  EXPECT_EQ(SocketAddress::FromIp("node-3", 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(SocketAddress::FromIp("127.9.9.9", 1)->is_loopback());
  EXPECT_FALSE(SocketAddress::FromIp("10.0.0.1", 1)->is_loopback());
}

TEST(SocketTest, PollTimeRoundsUpAndIsCapped) {
  const TimePoint now{};
  EXPECT_EQ(PollMilliseconds(now, now, 100), 0);
  EXPECT_EQ(PollMilliseconds(now, now + std::chrono::microseconds(1), 100), 1);
  EXPECT_EQ(PollMilliseconds(now, TimePoint::max(), 100), 100);
}

}  // namespace
}  // namespace weir::agent
