// SPDX-License-Identifier: Apache-2.0
// The nccl transport over devices made of host memory: the same demands as tests/datapath/transport
// makes of the others, as far as a send may end before its receive is posted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "datapath/base/random.h"
#include "datapath/transport/fault.h"
#include "tests/datapath/nccl/fake_device.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using World = std::vector<std::unique_ptr<Transport>>;

class NcclTransportTest : public ::testing::Test {
 protected:
  World Connect(int world, const FaultOptions* faults = nullptr) {
    const auto faulty = faults ? MakeFaultFactory(*factory_, *faults) : nullptr;
    StatusOr<World> connected = ConnectWorld(faults ? *faulty : *factory_, world, Options());
    EXPECT_TRUE(connected.ok()) << connected.status();
    return connected.ok() ? std::move(*connected) : World();
  }
  static TransportOptions Options() {
    TransportOptions options;
    options.job = 4711;
    return options;
  }
  void TearDown() override { EXPECT_EQ(fabric_.mistakes(), ""); }

  FakeFabric fabric_;
  std::unique_ptr<TransportFactory> factory_ =
      nccl::MakeFactory([this]() -> StatusOr<std::unique_ptr<nccl::Device>> {
        return std::make_unique<FakeDevice>(&fabric_);
      });
};

FrameHeader Finished(Transport& transport, const StatusOr<Ticket>& ticket) {
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  if (!ticket.ok()) return {};
  const StatusOr<FrameHeader> header = transport.Wait(*ticket, Within(kPatience));
  EXPECT_TRUE(header.ok()) << header.status();
  return header.ok() ? *header : FrameHeader();
}

Status Failed(Transport& transport, const StatusOr<Ticket>& ticket, double seconds = kPatience) {
  if (!ticket.ok()) return ticket.status();
  return transport.Wait(*ticket, Within(seconds)).status();
}

TEST_F(NcclTransportTest, DeliversEverySizeInOrderWithItsHeader) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  std::vector<size_t> sizes = {0, 1, 4096, 0, 1 << 20, 7};
  for (size_t i = 0; i < 100; ++i) sizes.push_back(1 + i * 37 % 1000);  // several batches
  std::vector<Bytes> sent, received;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sent.push_back(Pattern(sizes[i], i));
    if (sizes[i] > 0) sent.back()[0] = std::byte{1};
    received.emplace_back(sizes[i] + i % 3);
  }
  RunRanks(2, [&](int rank) {
    std::vector<StatusOr<Ticket>> tickets;
    for (size_t i = 0; i < sizes.size(); ++i) {
      FrameHeader header;
      header.slot = static_cast<uint32_t>(i);
      header.op_sequence = 1ull << 40;
      header.control = {.version = 4, .step = 99};
      tickets.push_back(rank == 0 ? world[0]->PostSend(1, header, sent[i])
                                  : world[1]->PostReceive(0, received[i]));
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      const FrameHeader header = Finished(*world[rank], tickets[i]);
      EXPECT_EQ(header.slot, i);
      EXPECT_EQ(header.payload_bytes, sizes[i]);
      EXPECT_EQ(header.source_rank, 0);
      EXPECT_EQ(header.op_sequence, 1ull << 40);
      EXPECT_EQ(header.control, (ControlWord{4, 99}));
    }
  });
  for (size_t i = 0; i < sizes.size(); ++i) {
    received[i].resize(sizes[i]);
    EXPECT_EQ(received[i], sent[i]) << "message " << i;
  }
  EXPECT_GT(fabric_.largest_batch(), 1);
}

// Every rank sends before it receives, in a ring and across it: streams in which frames of several
// peers stood behind each other would never end.
TEST_F(NcclTransportTest, RandomTrafficOfAllPairsEndsWhateverTheOrder) {
  constexpr int kWorld = 4, kMessages = 40;
  constexpr uint64_t kSeed = 11;
  World world = Connect(kWorld);
  ASSERT_EQ(world.size(), size_t{kWorld});
  const auto message = [](int from, int to, int i) {
    const uint64_t seed = MixSeed(MixSeed(kSeed, from * 8 + to), i);
    Bytes bytes = Pattern(Random(seed).Below(3000), seed);
    if (!bytes.empty()) bytes[0] = std::byte{2};
    return bytes;
  };
  RunRanks(kWorld, [&](int rank) {
    Random random(MixSeed(kSeed, 100 + rank));
    std::vector<Ticket> posted;
    std::vector<Bytes> in(kWorld * kMessages), out(kWorld * kMessages);
    for (int i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < kWorld; ++peer) {
        if (peer == rank) continue;
        out[peer * kMessages + i] = message(rank, peer, i);
        in[peer * kMessages + i].resize(3000);
        const auto send = world[rank]->PostSend(peer, {}, out[peer * kMessages + i]);
        const auto receive = world[rank]->PostReceive(peer, in[peer * kMessages + i]);
        ASSERT_TRUE(send.ok() && receive.ok());
        posted.insert(posted.end(), {*send, *receive});
      }
    }
    while (!posted.empty()) {
      const size_t pick = random.Below(posted.size());
      Finished(*world[rank], posted[pick]);
      posted.erase(posted.begin() + static_cast<ptrdiff_t>(pick));
    }
    for (int peer = 0; peer < kWorld; ++peer) {
      for (int i = 0; peer != rank && i < kMessages; ++i) {
        const Bytes expected = message(peer, rank, i);
        in[peer * kMessages + i].resize(expected.size());
        EXPECT_EQ(in[peer * kMessages + i], expected);
      }
    }
  });
}

TEST_F(NcclTransportTest, WaitAnyServesWhateverEndsFirstAndIsWoken) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  Bytes from_1(10), from_2(10), sent(10);
  const Ticket tickets[] = {*world[0]->PostReceive(1, from_1), *world[0]->PostReceive(2, from_2)};
  RunRanks(3, [&](int rank) {
    if (rank == 1) return;
    if (rank == 2) {
      Finished(*world[2], world[2]->PostSend(0, {}, sent));
      return;
    }
    const auto first = world[0]->WaitAny(tickets, Within(kPatience));
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(*first, std::optional<size_t>(1));
    Finished(*world[0], tickets[1]);
    world[0]->Wake();
    const auto woken = world[0]->WaitAny(std::span(tickets).first(1), Within(kPatience));
    ASSERT_TRUE(woken.ok()) << woken.status();
    EXPECT_FALSE(woken->has_value());
  });
}

TEST_F(NcclTransportTest, MemoryOfTheHostIsRefused) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  Bytes host(10, std::byte{0xEE});
  EXPECT_EQ(world[0]->PostSend(1, {}, host).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(world[0]->PostReceive(1, host).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(NcclTransportTest, PostedOperationsAreBounded) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  Bytes buffer(8);
  for (size_t i = 0; i < 1024; ++i) ASSERT_TRUE(world[0]->PostReceive(1, buffer).ok());
  EXPECT_EQ(world[0]->PostReceive(1, buffer).status().code(), StatusCode::kResourceExhausted);
}

// ---- failures

TEST_F(NcclTransportTest, OversizePayloadNamesTheSenderOnBothSides) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  RunRanks(2, [&](int rank) {
    Bytes bytes(rank == 0 ? 99 : 100);
    const Status status = Failed(*world[rank], rank == 0 ? world[0]->PostReceive(1, bytes)
                                                         : world[1]->PostSend(0, {}, bytes));
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("rank 1"), HasSubstr("100 bytes"), HasSubstr("at most 99")));
    EXPECT_EQ(status.code(), rank == 0 ? StatusCode::kDataLoss : StatusCode::kUnavailable);
  });
}

TEST_F(NcclTransportTest, DeadlineNamesTheSilentRankAndFreesTheBuffers) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  Bytes buffer(8);
  const Status status = Failed(*world[0], world[0]->PostReceive(2, buffer), 0.05);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), HasSubstr("rank 2 ("));
  EXPECT_EQ(world[0]->PostSend(1, {}, buffer).status(), status);
  EXPECT_THAT(Message(Failed(*world[1], world[1]->PostReceive(2, buffer))),
              AllOf(HasSubstr("rank 0 reported"), HasSubstr("rank 2 (")));
}

TEST_F(NcclTransportTest, AbortTellsEveryoneTheReason) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  RunRanks(3, [&](int rank) {
    Bytes buffer(8);
    if (rank == 1) return world[1]->Abort("bucket 17 differs");
    EXPECT_THAT(Message(Failed(*world[rank], world[rank]->PostReceive(2 - rank, buffer))),
                HasSubstr("rank 1 reported: bucket 17 differs"));
  });
}

TEST_F(NcclTransportTest, DeathIsNamedOnEverySurvivorWhoeverItWaitsFor) {
  FaultOptions faults;
  faults.rank = 2;
  faults.disconnect_after_frames = 2;
  World world = Connect(4, &faults);
  ASSERT_EQ(world.size(), 4u);
  RunRanks(4, [&](int rank) {
    Bytes buffer(8);
    if (rank == 2) {
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(world[2]->PostSend(0, {}, {}).ok());
      EXPECT_FALSE(world[2]->PostSend(0, {}, buffer).ok());
      return;
    }
    const int other = rank == 0 ? 1 : rank == 1 ? 3 : 0;
    const Status status = Failed(*world[rank], world[rank]->PostReceive(other, buffer));
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), HasSubstr("rank 2 ("));
  });
}

TEST_F(NcclTransportTest, ErrorOfNcclNamesThePeerAndTravels) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  fabric_.FailWith("remote process exited");
  RunRanks(2, [&](int rank) {
    Bytes bytes(100);
    const Status status = Failed(*world[rank], rank == 0 ? world[0]->PostReceive(1, bytes)
                                                         : world[1]->PostSend(0, {}, bytes));
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank "), HasSubstr("remote process exited")));
  });
}

TEST_F(NcclTransportTest, OrderlyDepartureFailsOnlyThoseWhoStillWait) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  Bytes buffer(8), sent(8);
  world[2].reset();
  RunRanks(2, [&](int rank) {
    Finished(*world[rank],
             rank == 0 ? world[0]->PostReceive(1, buffer) : world[1]->PostSend(0, {}, sent));
  });
  const Status status = Failed(*world[0], world[0]->PostReceive(2, buffer));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 2 ("), HasSubstr("closed the connection")));
}

TEST_F(NcclTransportTest, ConnectEndsWithItsDeadlineWhenNcclDoesNot) {
  fabric_.never_opens = true;
  const Status status = ConnectWorld(*factory_, 2, Options(), 0.3).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(Message(status), HasSubstr("rank "));
}

TEST_F(NcclTransportTest, InterruptEndsAWait) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  Bytes buffer(8);
  const StatusOr<Ticket> ticket = world[0]->PostReceive(1, buffer);
  std::thread interrupter([&] { world[0]->Interrupt(); });
  EXPECT_EQ(Failed(*world[0], ticket).code(), StatusCode::kAborted);
  interrupter.join();
}

#if WEIR_HAVE_NCCL
TEST(NcclCudaTest, CreateSaysWhyThereIsNoDeviceOrHostMemoryIsRefused) {
  const auto factory = nccl::MakeCudaFactory();
  EXPECT_TRUE(factory->Traits().needs_device);
  const auto created = factory->Create(TransportOptions());
  if (!created.ok()) {
    EXPECT_EQ(created.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(Message(created.status()), HasSubstr("no CUDA device"));
    GTEST_SKIP() << created.status();
  }
  const Status alone = (*created)->Connect({(*created)->address()}, Within(kPatience));
  EXPECT_TRUE(alone.ok()) << alone;
}
#endif

}  // namespace
}  // namespace weir::testing
