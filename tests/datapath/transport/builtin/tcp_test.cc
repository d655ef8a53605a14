// SPDX-License-Identifier: Apache-2.0
// Features of the tcp transport only: addresses, options, TCP_INFO, resets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "tests/datapath/transport/builtin/raw_peer.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const TransportFactory& Tcp() { return **Transports().Find("tcp"); }

TransportOptions TcpOptions(int rank, int world) {
  TransportOptions options;
  options.rank = rank;
  options.world = world;
  return options;
}

TEST(TcpTransportTest, UnknownNameListsTheTransports) {
  const auto found = Transports().Find("infiniband");
  EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(Message(found.status()), AllOf(HasSubstr("'infiniband'"), HasSubstr("tcp")));
}

TEST(TcpTransportTest, BadAddressesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"nonsense", "expected host:port"},
      {":80", "expected host:port"},
      {"127.0.0.1:", "expected host:port"},
      {"127.0.0.1:65536", "expected a port"},
      {"127.0.0.1:http", "expected a port"},
      {"host.invalid:80", "cannot resolve host 'host.invalid'"},
      {"127.0.0.1:-1", "expected a port"},
  };
  for (const auto& [address, expected] : cases) {
    TransportOptions options = TcpOptions(0, 2);
    options.listen = address;
    const auto created = Tcp().Create(options);
    EXPECT_EQ(created.status().code(), StatusCode::kInvalidArgument) << created.status();
    EXPECT_THAT(Message(created.status()), AllOf(HasSubstr(address), HasSubstr(expected)));
  }
}

TEST(TcpTransportTest, TakenPortIsUnavailable) {
  auto first = Tcp().Create(TcpOptions(0, 2));
  ASSERT_TRUE(first.ok());
  TransportOptions options = TcpOptions(1, 2);
  options.listen = (*first)->address();
  const auto second = Tcp().Create(options);
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(second.status()),
              AllOf(HasSubstr(options.listen), HasSubstr("address already in use")));
}

TEST(TcpTransportTest, UnknownCongestionControlListsThoseOfTheSystem) {
  TransportOptions options = TcpOptions(0, 2);
  options.congestion_control = "warp";
  const auto created = Tcp().Create(options);
  EXPECT_EQ(created.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(created.status()),
              AllOf(HasSubstr("'warp'"), HasSubstr("available: "), HasSubstr("reno")));
}

TEST(TcpTransportTest, Ipv6AndChosenCongestionControlWork) {
  TransportOptions options = TcpOptions(0, 2);
  options.listen = "[::1]:0";
  options.congestion_control = "reno";
  options.send_buffer_bytes = options.receive_buffer_bytes = 1 << 16;
  auto probe = Tcp().Create(options);
  if (!probe.ok()) GTEST_SKIP() << "no IPv6 loopback: " << probe.status();
  auto world = ConnectWorld(Tcp(), 2, options);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_THAT((*world)[0]->address(), HasSubstr("[::1]:"));
  const Bytes payload(1 << 20, std::byte{3});
  Bytes buffer(1 << 20);
  RunRanks(2, [&](int rank) {
    const auto ticket =
        rank == 0 ? (*world)[0]->PostSend(1, {}, payload) : (*world)[1]->PostReceive(0, buffer);
    EXPECT_TRUE((*world)[rank]->Wait(*ticket, Within(kPatience)).ok());
  });
  EXPECT_EQ(buffer, payload);
}

TEST(TcpTransportTest, SamplesDescribeThePathWhileTrafficRuns) {
  auto world = ConnectWorld(Tcp(), 2, TcpOptions(0, 2));
  ASSERT_TRUE(world.ok()) << world.status();
  std::atomic<bool> stop = false;
  std::thread sampler([&] {
    while (!stop) {
      for (const PathSample& sample : (*world)[0]->Samples()) EXPECT_EQ(sample.peer, 1);
    }
  });
  RunRanks(2, [&](int rank) {
    const Bytes out(4 << 20);
    Bytes in(4 << 20);
    for (int i = 0; i < 8; ++i) {
      const auto receive = (*world)[rank]->PostReceive(1 - rank, in);
      const auto send = (*world)[rank]->PostSend(1 - rank, {}, out);
      EXPECT_TRUE((*world)[rank]->Wait(*receive, Within(kPatience)).ok());
      EXPECT_TRUE((*world)[rank]->Wait(*send, Within(kPatience)).ok());
    }
  });
  stop = true;
  sampler.join();
  const PathSample sample = (*world)[0]->Samples().at(0);
  EXPECT_GT(sample.rtt_s, 0);
  EXPECT_LT(sample.rtt_s, 5);
  EXPECT_GT(sample.rtt_min_s, 0);
  EXPECT_LE(sample.rtt_min_s, sample.rtt_s + 1e-3);
  EXPECT_GE(sample.bytes_received, 32u << 20);
  EXPECT_GE(sample.bytes_acked, 28u << 20);
  EXPECT_GT(sample.congestion_window_bytes, 1000u);
  EXPECT_GT(sample.delivery_rate_bytes_per_s, 1e6);
  EXPECT_GT(sample.busy_s, 0);
}

// Closing a socket with unread input resets the connection; what was sent must arrive all the same.
TEST(TcpTransportTest, DepartureWithUnreadInputLosesNothing) {
  TransportOptions options = TcpOptions(0, 2);
  options.receive_buffer_bytes = 1 << 16;  // most of the payload is unsent when this rank leaves
  auto world = ConnectWorld(Tcp(), 2, options);
  ASSERT_TRUE(world.ok()) << world.status();
  const Bytes unread(100), payload(1 << 20, std::byte{5});
  const auto never_received = (*world)[1]->PostSend(0, {}, unread);
  ASSERT_TRUE((*world)[1]->Wait(*never_received, Within(kPatience)).ok());
  std::barrier sent(2);
  RunRanks(2, [&](int rank) {
    if (rank == 0) {
      const auto ticket = (*world)[0]->PostSend(1, {}, payload);
      EXPECT_TRUE((*world)[0]->Wait(*ticket, Within(kPatience)).ok());
      sent.arrive_and_wait();
      (*world)[0].reset();
      return;
    }
    sent.arrive_and_wait();
    Bytes buffer(1 << 20);
    const auto ticket = (*world)[1]->PostReceive(0, buffer);
    const auto received = (*world)[1]->Wait(*ticket, Within(kPatience));
    EXPECT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(buffer, payload);
  });
}

}  // namespace
}  // namespace weir::testing
