// SPDX-License-Identifier: Apache-2.0
// Waiting for the first of several messages, over every transport, without and with faults.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "datapath/transport/fault.h"
#include "tests/support/inproc_transport.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using World = std::vector<std::unique_ptr<Transport>>;

std::vector<const TransportFactory*> WaitAnyFactories() {
  static const std::unique_ptr<TransportFactory> inproc = MakeInprocFactory();
  std::vector<const TransportFactory*> factories = UsableFactories();
  static const std::unique_ptr<TransportFactory> faulty =
      MakeFaultFactory(**Transports().Find("tcp"), FaultOptions());
  factories.push_back(inproc.get());
  factories.push_back(faulty.get());
  return factories;
}

class WaitAny : public ::testing::TestWithParam<const TransportFactory*> {
 protected:
  World Connect(int world) {
    StatusOr<World> connected = ConnectWorld(*GetParam(), world);
    EXPECT_TRUE(connected.ok()) << connected.status();
    return connected.ok() ? std::move(*connected) : World();
  }
};

// A wait that must succeed.
FrameHeader Finished(Transport& transport, const StatusOr<Ticket>& ticket) {
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  if (!ticket.ok()) return {};
  const StatusOr<FrameHeader> header = transport.Wait(*ticket, Within(kPatience));
  EXPECT_TRUE(header.ok()) << header.status();
  return header.ok() ? *header : FrameHeader();
}

TEST_P(WaitAny, ServesWhicheverMessageComesFirst) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  RunRanks(3, [&](int rank) {
    Transport& own = *world[rank];
    Bytes go(1), bytes(3000);
    if (rank == 1) Finished(own, own.PostReceive(0, go));  // so its message comes second
    if (rank != 0) {
      const Bytes sent = Pattern(3000, rank);
      Finished(own, own.PostSend(0, {}, sent));
      if (rank == 1) Finished(own, own.PostReceive(0, go));
      return;
    }
    Bytes late(3000);
    const std::vector<Ticket> tickets = {*own.PostReceive(1, late), *own.PostReceive(2, bytes)};
    const auto first = own.WaitAny(tickets, Within(kPatience));
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(*first, std::optional<size_t>(1));
    EXPECT_EQ(Finished(own, tickets[1]).source_rank, 2);
    EXPECT_EQ(bytes, Pattern(3000, 2));
    Finished(own, own.PostSend(1, {}, go));
    const auto second = own.WaitAny(std::span(tickets).first(1), Within(kPatience));
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(*second, std::optional<size_t>(0));
    EXPECT_EQ(Finished(own, tickets[0]).source_rank, 1);
    EXPECT_EQ(late, Pattern(3000, 1));
    const Status twice = own.WaitAny(tickets, Within(1)).status();
    EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(twice), HasSubstr("not posted"));
    Finished(own, own.PostSend(1, {}, go));
  });
}

TEST_P(WaitAny, WakeAndDeadlineEndItAndFailNothing) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  Bytes buffer(4);
  const std::vector<Ticket> tickets = {*world[0]->PostReceive(1, buffer)};
  const auto nothing = world[0]->WaitAny(tickets, Within(0.01));
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_FALSE(nothing->has_value());
  world[0]->Wake();  // it comes before the wait, so the next wait returns
  for (int round = 0; round < 50; ++round) {
    std::thread waker;
    if (round > 0) waker = std::thread([&] { world[0]->Wake(); });
    const TimePoint start = RealClock().Now();
    const auto woken = world[0]->WaitAny(tickets, Within(kPatience));
    if (waker.joinable()) waker.join();
    ASSERT_TRUE(woken.ok()) << woken.status();
    EXPECT_FALSE(woken->has_value());
    EXPECT_LT(ToSeconds(RealClock().Now() - start), kPatience / 2);
  }
  const Bytes sent = Pattern(4, 9);  // the receive still works
  Finished(*world[1], world[1]->PostSend(0, {}, sent));
  Finished(*world[0], tickets[0]);
  EXPECT_EQ(buffer, sent);
}

TEST_P(WaitAny, OutlivesAPeerThatLeavesInOrder) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  Bytes gone(4), alive(4);
  const std::vector<Ticket> tickets = {*world[0]->PostReceive(1, gone),
                                       *world[0]->PostReceive(2, alive)};
  std::thread leaving([&] { world[1].reset(); });
  const auto nothing = world[0]->WaitAny(tickets, Within(0.05));
  leaving.join();
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_FALSE(nothing->has_value());
  const Bytes sent = Pattern(4, 3);
  std::thread sender([&] { Finished(*world[2], world[2]->PostSend(0, {}, sent)); });
  const auto second = world[0]->WaitAny(tickets, Within(kPatience));
  sender.join();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, std::optional<size_t>(1));
}

INSTANTIATE_TEST_SUITE_P(EveryTransport, WaitAny, ::testing::ValuesIn(WaitAnyFactories()),
                         [](const auto& info) {
                           std::string name = info.param->Traits().name;
                           std::replace(name.begin(), name.end(), '+', '_');
                           return name;
                         });

}  // namespace
}  // namespace weir::testing
