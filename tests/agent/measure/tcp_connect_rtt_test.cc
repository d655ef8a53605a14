// SPDX-License-Identifier: Apache-2.0
// Handshake times on loopback: answered, refused, silent.
#include "agent/measure/tcp_connect_rtt.h"

#include <gtest/gtest.h>

#include "agent/measure/udp_echo.h"
#include "tests/agent/measure/loopback.h"

namespace weir::agent {
namespace {

TEST(TcpConnectRttTest, MeasuresAnOpenPort) {
  const auto server = EchoServer::Start(Loopback(0), RealClock());
  ASSERT_TRUE(server.ok());
  const auto rtt = MeasureTcpConnect(Loopback((*server)->port()), {}, RealClock(), {});
  ASSERT_TRUE(rtt.ok()) << rtt.status();
  EXPECT_EQ(rtt->received, 3u);
  EXPECT_GT(rtt->rtt_min_s, 1e-7);
  EXPECT_LT(rtt->rtt_min_s, 0.1);
}

TEST(TcpConnectRttTest, RefusalCountsAsAnAnswer) {
  uint16_t port = 0;
  {
    const auto bound = BindSocket(Loopback(0), SOCK_STREAM);
    port = LocalAddress(bound->get())->port();
  }
  const auto rtt = MeasureTcpConnect(Loopback(port), {}, RealClock(), {});
  ASSERT_TRUE(rtt.ok()) << rtt.status();
  EXPECT_EQ(rtt->received, 3u);
}

TEST(TcpConnectRttTest, SilentTargetIsADeadlineThatNamesIt) {
  // A full backlog drops handshakes: a bound listener that never accepts, filled up.
  const auto listener = BindSocket(Loopback(0), SOCK_STREAM);
  ASSERT_TRUE(listener.ok());
  ASSERT_EQ(listen(listener->get(), 0), 0);
  const SocketAddress target = *LocalAddress(listener->get());
  std::vector<FileDescriptor> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    (void)!connect(fillers.back().get(), target.get(), target.size());
  }
  TcpConnectOptions options;
  options.count = 1;
  options.timeout = std::chrono::milliseconds(150);
  const auto rtt = MeasureTcpConnect(target, options, RealClock(), {});
  ASSERT_FALSE(rtt.ok());
  EXPECT_EQ(rtt.status().code(), StatusCode::kDeadlineExceeded) << rtt.status();
  EXPECT_NE(Message(rtt.status()).find(target.ToString()), std::string::npos);
}

TEST(TcpConnectRttTest, StopAborts) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(MeasureTcpConnect(Loopback(9), {}, RealClock(), stop.get_token()).status().code(),
            StatusCode::kAborted);
}

}  // namespace
}  // namespace weir::agent
