// SPDX-License-Identifier: Apache-2.0
// The options of the mesh's connections, as the kernel reports them.

#include "datapath/transport/mesh/socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <vector>

namespace weir::mesh {
namespace {

std::string CongestionControl(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
  return name;
}

std::string SystemsCongestionControl() {
  return CongestionControl(UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)).get());
}

struct Pair {
  UniqueFd listener, dialer, accepted;
};

// From `from` to 127.0.0.1, both ends configured.
Pair Connect(const char* from, const TransportOptions& options) {
  Pair pair;
  TransportAddress bound;
  auto listener = Listen(options, 1, &bound);
  EXPECT_TRUE(listener.ok()) << listener.status();
  pair.listener = std::move(*listener);
  pair.dialer = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string& chosen =
      options.congestion_control.empty() ? "reno" : options.congestion_control;
  EXPECT_EQ(setsockopt(pair.dialer.get(), IPPROTO_TCP, TCP_CONGESTION, chosen.data(),
                       static_cast<socklen_t>(chosen.size())),
            0);
  sockaddr_in source = {};
  source.sin_family = AF_INET;
  EXPECT_EQ(inet_pton(AF_INET, from, &source.sin_addr), 1);
  EXPECT_EQ(bind(pair.dialer.get(), reinterpret_cast<sockaddr*>(&source), sizeof source), 0);
  const auto target = ResolveAddress(bound);
  EXPECT_EQ(connect(pair.dialer.get(), target->get(), target->size), 0);
  pollfd waits = {pair.listener.get(), POLLIN, 0};
  EXPECT_EQ(poll(&waits, 1, 10'000), 1);
  pair.accepted = UniqueFd(accept4(pair.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_GE(pair.accepted.get(), 0);
  ConfigureConnection(pair.dialer.get(), options);
  ConfigureConnection(pair.accepted.get(), options);
  return pair;
}

TEST(ConfigureConnectionTest, NothingPacesWithinAHost) {
  const Pair pair = Connect("127.0.0.1", {});
  EXPECT_EQ(CongestionControl(pair.dialer.get()), "reno");
  EXPECT_EQ(CongestionControl(pair.accepted.get()), "reno");
}

// A connection that ever had a control that paces keeps pacing under another one, and no call
// reports it. So the test looks at sockets before they are connected: a dialing one that no peer
// accepts.
TEST(SocketsTest, BeginWithoutPacing) {
  TransportAddress bound;
  const auto listener = Listen({}, 0, &bound);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ(CongestionControl(listener->get()), "reno");
  std::vector<UniqueFd> dialed;
  bool in_progress = false;
  const auto target = ResolveAddress(bound);
  while (!in_progress && dialed.size() < 16) {
    auto dialer = StartDial(*target, {}, &in_progress);
    ASSERT_TRUE(dialer.ok()) << dialer.status();
    dialed.push_back(std::move(*dialer));
  }
  ASSERT_TRUE(in_progress);
  EXPECT_EQ(CongestionControl(dialed.back().get()), "reno");
}

TEST(ConfigureConnectionTest, BetweenHostsItIsTheSystems) {
  const Pair pair = Connect("127.0.0.2", {});
  EXPECT_EQ(CongestionControl(pair.dialer.get()), SystemsCongestionControl());
  EXPECT_EQ(CongestionControl(pair.accepted.get()), SystemsCongestionControl());
}

TEST(ConfigureConnectionTest, WhatTheOptionsNameStays) {
  TransportOptions options;
  options.congestion_control = SystemsCongestionControl();
  const Pair pair = Connect("127.0.0.1", options);
  EXPECT_EQ(CongestionControl(pair.dialer.get()), options.congestion_control);
  EXPECT_EQ(CongestionControl(pair.accepted.get()), options.congestion_control);
}

}  // namespace
}  // namespace weir::mesh
