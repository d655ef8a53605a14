// SPDX-License-Identifier: Apache-2.0
// One socket: rows of packets as one message, bounds, and the counters after a dead peer.
#include "datapath/aggregation/io/udp_port.h"

#include <sched.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "datapath/aggregation/io/address.h"
#include "datapath/aggregation/io/row_limit.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Bytes(size_t size, int fill) {
  return std::vector<std::byte>(size, static_cast<std::byte>(fill));
}

/// Receives from a port until `count` datagrams are there, for at most two seconds.
std::vector<std::vector<std::byte>> Collect(UdpPort* port, size_t count,
                                            SourceAddress* from = nullptr) {
  std::vector<std::vector<std::byte>> all;
  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(2);
  while (all.size() < count && RealClock().Now() < deadline) {
    port->Wait(RealClock().Now(), deadline);
    port->Receive([&](SourceAddress source, std::span<const std::byte> datagram) {
      if (from != nullptr) *from = source;
      all.emplace_back(datagram.begin(), datagram.end());
    });
  }
  return all;
}

TEST(AddressTest, TextAndNumberAgree) {
  for (const char* text : {"127.0.0.1:1", "10.200.3.255:65535", "0.0.0.0:0"}) {
    const auto address = ParseSourceAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(AddressText(*address), text);
    EXPECT_EQ(ToSourceAddress(ToSocketAddress(*address)), *address);
  }
  EXPECT_EQ(*ParseSourceAddress("localhost:80"), *ParseSourceAddress("127.0.0.1:80"));
  for (const char* text : {"", ":", "1.2.3.4", "1.2.3.4:", "1.2.3:4", "1.2.3.4:65536", "1.2.3.4:-1",
                           "1.2.3.4:1x", "host:1", "[::1]:1", "1.2.3.4 :1"}) {
    EXPECT_EQ(ParseSourceAddress(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(RowLimitTest, AnInterfaceThatTakesLessAtOnceSetsTheLimit) {
  EXPECT_EQ(RowBytesFor(*ParseSourceAddress("127.0.0.1:1")), kRowBytesMax);
  EXPECT_EQ(RowBytesFor(*ParseSourceAddress("192.0.2.1:1")), kRowBytesMax) << "nobody's address";
  bool separate = false;
  size_t one = 0, all = 0, loopback = 0;
  std::thread([&] {  // in a network of its own, which ends with the thread
    separate = unshare(CLONE_NEWNET) == 0;
    if (!separate) return;
    ASSERT_EQ(
        std::system("ip link set lo up && ip link add d0 type veth peer name d1 && "
                    "ip addr add 192.0.2.1/24 dev d0 && ip link set d0 up gso_max_size 14600"),
        0);
    one = RowBytesFor(*ParseSourceAddress("192.0.2.1:1"));
    all = RowBytesFor(*ParseSourceAddress("0.0.0.0:1"));
    loopback = RowBytesFor(*ParseSourceAddress("127.0.0.1:1"));
  })
      .join();
  if (!separate) GTEST_SKIP() << "no network namespace may be made here";
  EXPECT_EQ(one, 14536u);
  EXPECT_EQ(all, 14536u);
  EXPECT_EQ(loopback, kRowBytesMax);
}

class UdpPortRowsTest : public testing::TestWithParam<std::pair<bool, bool>> {};

INSTANTIATE_TEST_SUITE_P(EachEnd, UdpPortRowsTest,
                         testing::Values(std::pair(true, true), std::pair(true, false),
                                         std::pair(false, true), std::pair(false, false)));

TEST_P(UdpPortRowsTest, PacketsArriveOneByOneInOrder) {
  const auto receiver = UdpPort::Bind({.rows = GetParam().first});
  const auto sender = UdpPort::Bind({.rows = GetParam().second});
  ASSERT_TRUE(receiver.ok() && sender.ok());
  // Sizes that begin and end rows: equal, shorter, longer again, empty, and more than one row
  // holds.
  std::vector<size_t> sizes(100, 1072);
  sizes.insert(sizes.end(), {48, 48, 1072, 0, 0, 7, kPacketBytesMax, 1, 2});
  for (size_t i = 0; i < sizes.size(); ++i) {
    (*sender)->Send((*receiver)->address(), Bytes(sizes[i], static_cast<int>(i)));
  }
  (*sender)->Flush();
  SourceAddress from = 0;
  const auto all = Collect(receiver->get(), sizes.size(), &from);
  ASSERT_EQ(all.size(), sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(all[i], Bytes(sizes[i], static_cast<int>(i))) << i;
  }
  EXPECT_EQ(from, (*sender)->address());
  EXPECT_EQ((*sender)->counters().sent, sizes.size());
  EXPECT_EQ((*receiver)->counters().received, sizes.size());
}

TEST(UdpPortTest, EveryAddresseeGetsEveryPacket) {
  const auto sender = UdpPort::Bind({});
  ASSERT_TRUE(sender.ok());
  std::vector<std::unique_ptr<UdpPort>> receivers;
  std::vector<SourceAddress> to;
  for (int i = 0; i < 3; ++i) {
    receivers.push_back(std::move(*UdpPort::Bind({})));
    to.push_back(receivers.back()->address());
  }
  for (int i = 0; i < 5; ++i) (*sender)->Send(to, Bytes(100, i));
  (*sender)->Send(to[1], Bytes(100, 9));  // the row goes on for one of them only
  (*sender)->Flush();
  for (size_t r = 0; r < receivers.size(); ++r) {
    const size_t expected = r == 1 ? 6 : 5;
    const auto all = Collect(receivers[r].get(), expected);
    ASSERT_EQ(all.size(), expected);
    for (size_t i = 0; i < expected; ++i) {
      EXPECT_EQ(all[i], Bytes(100, i == 5 ? 9 : static_cast<int>(i)));
    }
  }
}

TEST(UdpPortTest, PacketsToOthersInBetweenEndNoRow) {
  const auto sender = UdpPort::Bind({});
  ASSERT_TRUE(sender.ok());
  if (!(*sender)->sends_rows()) GTEST_SKIP() << "this kernel segments no rows";
  std::vector<std::unique_ptr<UdpPort>> receivers;
  std::vector<SourceAddress> to;
  for (int i = 0; i < 3; ++i) {
    receivers.push_back(std::move(*UdpPort::Bind({})));
    to.push_back(receivers.back()->address());
  }
  // As replies of which some do not go to all.
  std::vector<std::vector<std::vector<std::byte>>> expected(3);
  for (int i = 0; i < 40; ++i) {
    const std::vector<std::byte> packet = Bytes(1072, i);
    std::vector<SourceAddress> some;
    for (size_t r = 0; r < 3; ++r) {
      if (i % 5 == static_cast<int>(r)) continue;
      some.push_back(to[r]);
      expected[r].push_back(packet);
    }
    (*sender)->Send(some, packet);
    if (i % 7 != 0) continue;
    (*sender)->Send(to[1], Bytes(1072, 100 + i));
    expected[1].push_back(Bytes(1072, 100 + i));
  }
  (*sender)->Flush();
  EXPECT_EQ((*sender)->counters().messages, 3u);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(Collect(receivers[r].get(), expected[r].size()), expected[r]) << r;
  }
}

TEST(UdpPortTest, DeadPeerIsNoticedAndForeignDatagramsStayAway) {
  auto peer = UdpPort::Bind({});
  const auto port = UdpPort::Bind({});
  const auto stranger = UdpPort::Bind({});
  ASSERT_TRUE(peer.ok() && port.ok() && stranger.ok());
  ASSERT_TRUE((*port)->Connect((*peer)->address()).ok());
  (*stranger)->Send((*port)->address(), Bytes(10, 1));
  (*stranger)->Flush();
  (*peer)->Send((*port)->address(), Bytes(10, 2));
  (*peer)->Flush();
  const auto all = Collect(port->get(), 1);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0], Bytes(10, 2));
  peer->reset();
  const SourceAddress anybody = (*stranger)->address();
  for (int i = 0; i < 3; ++i) {
    (*port)->Send(anybody, Bytes(10, 3));
    (*port)->Flush();
  }
  EXPECT_GT((*port)->counters().refused, 0u);
}

TEST(UdpPortTest, TakenPortIsNamed) {
  const auto first = UdpPort::Bind({});
  ASSERT_TRUE(first.ok());
  const std::string address = AddressText((*first)->address());
  const auto second = UdpPort::Bind({.listen = address});
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(second.status()), HasSubstr(address));
  EXPECT_EQ(UdpPort::Bind({.listen = "nowhere"}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir::aggregation
