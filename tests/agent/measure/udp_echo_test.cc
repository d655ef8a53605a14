// SPDX-License-Identifier: Apache-2.0
// The echo responder and its client on loopback, and invalid packets that both must ignore.
#include "agent/measure/udp_echo.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "tests/agent/measure/loopback.h"

namespace weir::agent {
namespace {

class UdpEchoTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = EchoServer::Start(Loopback(0), RealClock());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    fd_ = FileDescriptor(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const SocketAddress to = Loopback(server_->port());
    ASSERT_EQ(connect(fd_.get(), to.get(), to.size()), 0);
  }

  void SendRaw(std::span<const std::byte> packet) {
    ASSERT_EQ(send(fd_.get(), packet.data(), packet.size(), 0),
              static_cast<ssize_t>(packet.size()));
  }
  // Bytes of the next datagram; -1 when none comes within `ms`.
  ssize_t ReceiveRaw(std::span<std::byte> into, int ms) {
    pollfd ready{fd_.get(), POLLIN, 0};
    if (poll(&ready, 1, ms) <= 0) return -1;
    return recv(fd_.get(), into.data(), into.size(), 0);
  }

  std::unique_ptr<EchoServer> server_;
  FileDescriptor fd_;
};

TEST_F(UdpEchoTest, MeasuresLoopback) {
  UdpEchoOptions options;
  options.nonce = 42;
  options.interval = std::chrono::milliseconds(1);
  const SocketAddress target = Loopback(server_->port());
  const auto results = MeasureUdpEcho({&target, 1}, options, RealClock(), {});
  ASSERT_EQ(results.size(), 1u);
  ASSERT_TRUE(results[0].ok()) << results[0].status();
  EXPECT_EQ(results[0]->sent, 5u);
  EXPECT_EQ(results[0]->received, 5u);
  EXPECT_GT(results[0]->rtt_min_s, 1e-7);
  EXPECT_LT(results[0]->rtt_min_s, 0.1);
  EXPECT_LE(results[0]->rtt_min_s, results[0]->rtt_median_s);
}

TEST_F(UdpEchoTest, SilentTargetDoesNotSpoilTheOthers) {
  // Bound and never answering.
  const auto silent = BindSocket(Loopback(0), SOCK_DGRAM);
  ASSERT_TRUE(silent.ok());
  const std::vector<SocketAddress> targets = {*LocalAddress(silent->get()),
                                              Loopback(server_->port())};
  UdpEchoOptions options;
  options.count = 2;
  options.interval = std::chrono::milliseconds(1);
  options.timeout = std::chrono::milliseconds(100);
  const auto results = MeasureUdpEcho(targets, options, RealClock(), {});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(Message(results[0].status()).find(targets[0].ToString()), std::string::npos);
  EXPECT_TRUE(results[1].ok()) << results[1].status();
}

TEST_F(UdpEchoTest, ReplyIsNeverLongerThanItsRequest) {
  std::array<std::byte, 2048> reply;
  for (const size_t size : {kEchoPacketBytesMin, size_t{100}, kEchoPacketBytesMax}) {
    SendRaw(MakeEchoRequest(7, 1, size));
    EXPECT_EQ(ReceiveRaw(reply, 2000), static_cast<ssize_t>(size));
  }
}

TEST_F(UdpEchoTest, AnswersNeitherRepliesNorInvalidPackets) {
  std::vector<std::byte> packet = MakeEchoRequest(7, 1, 64);
  packet[5] = std::byte{2};  // a reply: two responders must not talk to each other
  SendRaw(packet);
  SendRaw(std::vector<std::byte>(64));                                   // no magic
  SendRaw(std::vector<std::byte>(packet.begin(), packet.begin() + 23));  // too short
  std::vector<std::byte> longer = MakeEchoRequest(7, 1, kEchoPacketBytesMax);
  longer.resize(kEchoPacketBytesMax + 1);
  SendRaw(longer);
  SendRaw(MakeEchoRequest(7, 99, 64));  // its answer shows that the others got none
  std::array<std::byte, 2048> reply;
  ASSERT_EQ(ReceiveRaw(reply, 2000), 64);
  uint64_t sequence = 0;
  ASSERT_TRUE(ParseEchoReply(std::span(reply).first(64), 7, &sequence));
  EXPECT_EQ(sequence, 99u);
  EXPECT_EQ(ReceiveRaw(reply, 50), -1);
}

TEST_F(UdpEchoTest, ClientIgnoresForgedReplies) {
  // An impostor that answers with a wrong nonce, then from a wrong sequence.
  const auto impostor = BindSocket(Loopback(0), SOCK_DGRAM);
  ASSERT_TRUE(impostor.ok());
  const SocketAddress target = *LocalAddress(impostor->get());
  std::thread liar([&] {
    std::array<std::byte, 512> packet;
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    pollfd ready{impostor->get(), POLLIN, 0};
    if (poll(&ready, 1, 2000) <= 0) return;
    const ssize_t n = recvfrom(impostor->get(), packet.data(), packet.size(), 0,
                               reinterpret_cast<sockaddr*>(&from), &size);
    packet[5] = std::byte{2};
    auto forged = packet;
    forged[8] ^= std::byte{1};  // nonce
    sendto(impostor->get(), forged.data(), n, 0, reinterpret_cast<sockaddr*>(&from), size);
    forged = packet;
    std::memset(&forged[16], 0xff, 8);  // sequence far past the end
    sendto(impostor->get(), forged.data(), n, 0, reinterpret_cast<sockaddr*>(&from), size);
  });
  UdpEchoOptions options;
  options.count = 1;
  options.nonce = 1234;
  options.timeout = std::chrono::milliseconds(200);
  const auto results = MeasureUdpEcho({&target, 1}, options, RealClock(), {});
  liar.join();
  EXPECT_EQ(results[0].status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(UdpEchoTest, StopEndsTheWait) {
  const auto silent = BindSocket(Loopback(0), SOCK_DGRAM);
  const SocketAddress target = *LocalAddress(silent->get());
  UdpEchoOptions options;
  options.timeout = std::chrono::seconds(30);
  std::stop_source stop;
  stop.request_stop();
  const TimePoint start = RealClock().Now();
  const auto results = MeasureUdpEcho({&target, 1}, options, RealClock(), stop.get_token());
  EXPECT_EQ(results[0].status().code(), StatusCode::kAborted);
  EXPECT_LT(RealClock().Now() - start, std::chrono::seconds(5));
}

TEST_F(UdpEchoTest, SecondResponderOnThePortIsRefused) {
  EXPECT_EQ(EchoServer::Start(Loopback(server_->port()), RealClock()).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weir::agent
