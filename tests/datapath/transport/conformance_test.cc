// SPDX-License-Identifier: Apache-2.0
// The contract of every transport, tested with each one of the registry and the in-memory one,
// without and with random delays.

#include <algorithm>
#include <atomic>
#include <thread>

#include "datapath/base/random.h"
#include "datapath/wire/frame_seal.h"
#include "tests/datapath/transport/conformance.h"
#include "tests/support/sanitized.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<const TransportFactory*> AllFactories() {
  static const auto* delayed = [] {
    auto* owned = new std::vector<std::unique_ptr<TransportFactory>>();
    for (const TransportFactory* factory : PlainFactories()) {
      FaultOptions options;
      options.seed = 7;
      options.every_peer.delay_probability = 0.2;
      options.every_peer.delay_max = std::chrono::microseconds(500);
      owned->push_back(MakeFaultFactory(*factory, options));
    }
    return owned;
  }();
  std::vector<const TransportFactory*> factories = PlainFactories();
  for (const auto& factory : *delayed) factories.push_back(factory.get());
  return factories;
}

TEST_P(TransportConformance, DeliversEverySizeInOrderWithItsHeader) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  std::vector<size_t> sizes = {
      0, 1, 71, 72, 73, 4095, 8119, 8120, 8121, 65535, 65536 + 1, (1 << 20), (3 << 20) + 7, 0, 5};
  std::vector<Bytes> sent, received;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sent.push_back(Pattern(sizes[i], i));
    received.emplace_back(sizes[i] + i % 3);  // some buffers are larger than needed
  }
  RunRanks(2, [&](int rank) {
    std::vector<StatusOr<Ticket>> tickets;
    for (size_t i = 0; i < sizes.size(); ++i) {
      FrameHeader header;
      header.slot = static_cast<uint32_t>(i);
      header.plan_version = 3;
      header.op_sequence = 1ull << 40;
      header.bucket = 0xC0FFEE;
      header.control = {.version = 4, .step = 99};
      header.flags = kFlagNonFinite;
      tickets.push_back(rank == 0 ? world[0]->PostSend(1, header, sent[i])
                                  : world[1]->PostReceive(0, received[i]));
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      const FrameHeader header = Done(*world[rank], tickets[i]);
      EXPECT_EQ(header.slot, i);
      EXPECT_EQ(header.payload_bytes, sizes[i]);
      EXPECT_EQ(header.source_rank, 0);
      EXPECT_EQ(header.plan_version, 3u);
      EXPECT_EQ(header.op_sequence, 1ull << 40);
      EXPECT_EQ(header.bucket, 0xC0FFEEu);
      EXPECT_EQ(header.control, (ControlWord{4, 99}));
      EXPECT_EQ(header.flags, kFlagNonFinite);
    }
  });
  for (size_t i = 0; i < sizes.size(); ++i) {
    received[i].resize(sizes[i]);
    EXPECT_EQ(received[i], sent[i]) << "message " << i;
  }
}

TEST_P(TransportConformance, MovesAllDirectionsAtOnce) {
  constexpr int kWorld = 4;
  constexpr size_t kSize = (4 << 20) / test::kFewer;  // more than any socket takes at once
  World world = Connect(kWorld);
  ASSERT_EQ(world.size(), size_t{kWorld});
  RunRanks(kWorld, [&](int rank) {
    std::vector<Bytes> in(kWorld, Bytes(kSize)), out;
    for (int peer = 0; peer < kWorld; ++peer) out.push_back(Pattern(kSize, rank * 10 + peer));
    std::vector<StatusOr<Ticket>> sends, receives;
    for (int peer = 0; peer < kWorld; ++peer) {
      if (peer != rank) sends.push_back(world[rank]->PostSend(peer, {}, out[peer]));
    }
    for (int peer = 0; peer < kWorld; ++peer) {
      if (peer != rank) receives.push_back(world[rank]->PostReceive(peer, in[peer]));
    }
    for (const auto& ticket : sends) Done(*world[rank], ticket);
    for (const auto& ticket : receives) Done(*world[rank], ticket);
    for (int peer = 0; peer < kWorld; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ(in[peer], Pattern(kSize, peer * 10 + rank));
    }
  });
}

TEST_P(TransportConformance, RandomTrafficArrivesWhateverIsWaitedForFirst) {
  constexpr int kWorld = 3;
  constexpr uint64_t kSeed = 20240131;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  World world = Connect(kWorld);
  ASSERT_EQ(world.size(), size_t{kWorld});
  const auto size_of = [](int from, int to, int i) {
    return Random(MixSeed(MixSeed(kSeed, from * 8 + to), i)).Below(60000);
  };
  RunRanks(kWorld, [&](int rank) {
    constexpr int kMessages = 60;
    Random random(MixSeed(kSeed, 100 + rank));
    std::vector<std::pair<Ticket, size_t>> posted;
    std::vector<Bytes> in(kWorld * kMessages), out(kWorld * kMessages);
    int next_send[kWorld] = {}, next_receive[kWorld] = {};
    for (int left = 2 * (kWorld - 1) * kMessages; left > 0;) {
      const int peer = static_cast<int>(random.Below(kWorld));
      const bool sends = random.Below(2) == 0;
      int& next = sends ? next_send[peer] : next_receive[peer];
      if (peer == rank || next == kMessages) continue;
      const size_t index = static_cast<size_t>(peer) * kMessages + next;
      StatusOr<Ticket> ticket = 0;
      if (sends) {
        out[index] = Pattern(size_of(rank, peer, next), index);
        ticket = world[rank]->PostSend(peer, {}, out[index]);
      } else {
        in[index].resize(size_of(peer, rank, next));
        ticket = world[rank]->PostReceive(peer, in[index]);
      }
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      posted.push_back({*ticket, sends ? size_of(rank, peer, next) : in[index].size()});
      ++next;
      --left;
    }
    while (!posted.empty()) {
      const size_t pick = random.Below(posted.size());
      EXPECT_EQ(Done(*world[rank], posted[pick].first).payload_bytes, posted[pick].second);
      posted.erase(posted.begin() + static_cast<ptrdiff_t>(pick));
    }
    for (int peer = 0; peer < kWorld; ++peer) {
      for (int i = 0; peer != rank && i < kMessages; ++i) {
        const size_t mine = static_cast<size_t>(peer) * kMessages + i;
        const size_t theirs = static_cast<size_t>(rank) * kMessages + i;
        EXPECT_EQ(in[mine], Pattern(size_of(peer, rank, i), theirs));
      }
    }
  });
}

TEST_P(TransportConformance, PostedOperationsAreBounded) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  Bytes buffer(8);
  std::vector<Ticket> tickets;
  for (int i = 0; i < kPostedMax; ++i) {
    const StatusOr<Ticket> ticket = world[0]->PostReceive(1, buffer);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    tickets.push_back(*ticket);
  }
  EXPECT_STATUS(world[0]->PostReceive(1, buffer).status(), kResourceExhausted, HasSubstr("4096"));
  RunRanks(2, [&](int rank) {
    const Bytes payload(8, std::byte{1});
    if (rank == 0) {
      for (Ticket ticket : tickets) Done(*world[0], ticket);
    } else {
      for (int i = 0; i < kPostedMax; ++i) Done(*world[1], world[1]->PostSend(0, {}, payload));
    }
  });
  EXPECT_TRUE(world[0]->PostReceive(1, buffer).ok());
}

TEST_P(TransportConformance, SlowReaderHoldsTheSenderAndLosesNothing) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  constexpr int kMessages = 40 / test::kFewer;  // beyond all socket buffers
  constexpr size_t kSize = 1 << 20;
  std::vector<Bytes> payloads;
  for (int i = 0; i < kMessages; ++i) payloads.push_back(Pattern(kSize, i));
  std::atomic<bool> all_posted = false;
  RunRanks(2, [&](int rank) {
    if (rank == 0) {
      std::vector<StatusOr<Ticket>> tickets;
      for (const Bytes& payload : payloads) tickets.push_back(world[0]->PostSend(1, {}, payload));
      all_posted = true;
      all_posted.notify_all();
      for (const auto& ticket : tickets) Done(*world[0], ticket);
      return;
    }
    all_posted.wait(false);
    for (const Bytes& payload : payloads) {
      Bytes buffer(kSize);
      Done(*world[1], world[1]->PostReceive(0, buffer));
      EXPECT_EQ(buffer, payload);
    }
  });
}

TEST_P(TransportConformance, OversizePayloadNamesTheSender) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  const Bytes payload(100);
  Bytes buffer(99);
  const StatusOr<Ticket> sent = world[1]->PostSend(0, {}, payload);
  ASSERT_TRUE(sent.ok());
  EXPECT_STATUS(Failure(*world[0], world[0]->PostReceive(1, buffer)), kDataLoss,
                AllOf(HasSubstr("rank 1"), HasSubstr("100 bytes"), HasSubstr("at most 99")));
}

TEST_P(TransportConformance, DeadlineNamesTheSilentRankAndFailsTheTransport) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  Bytes buffer(8);
  const Status status = Failure(*world[0], world[0]->PostReceive(2, buffer), 0.05);
  EXPECT_STATUS(status, kDeadlineExceeded, AllOf(HasSubstr("rank 2"), HasSubstr("last received")));
  EXPECT_EQ(world[0]->PostReceive(1, buffer).status(), status);
  EXPECT_EQ(world[0]->PostSend(1, {}, buffer).status(), status);
}

TEST_P(TransportConformance, AbortTellsEveryoneTheReason) {
  constexpr int kWorld = 4;
  World world = Connect(kWorld);
  ASSERT_EQ(world.size(), size_t{kWorld});
  RunRanks(kWorld, [&](int rank) {
    Bytes buffer(8);
    if (rank == 1) {
      world[1]->Abort("bucket 17 differs");
      EXPECT_STATUS(world[1]->PostReceive(0, buffer).status(), kAborted,
                    HasSubstr("bucket 17 differs"));
      return;
    }
    const int other = rank == 0 ? 2 : rank == 2 ? 3 : 0;  // no rank waits for the aborting one
    EXPECT_STATUS(Failure(*world[rank], world[rank]->PostReceive(other, buffer)), kUnavailable,
                  HasSubstr("rank 1 reported: bucket 17 differs"));
  });
}

TEST_P(TransportConformance, FailureTravelsToRanksThatDidNotSeeItsCause) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  Bytes buffer(8);
  EXPECT_EQ(Failure(*world[0], world[0]->PostReceive(1, buffer), 0.01).code(),
            StatusCode::kDeadlineExceeded);
  world[0].reset();
  EXPECT_STATUS(Failure(*world[2], world[2]->PostReceive(1, buffer)), kUnavailable,
                AllOf(HasSubstr("rank 0 reported:"), HasSubstr("rank 1")));
}

TEST_P(TransportConformance, OrderlyDepartureFailsOnlyThoseWhoStillWait) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  const Bytes last_words = Pattern(20000, 9), from_1 = Pattern(100, 8);
  Bytes buffer(20000), small(100);
  Done(*world[2], world[2]->PostSend(0, {}, last_words));
  world[2].reset();
  RunRanks(2, [&](int rank) {
    if (rank == 1) {
      Done(*world[1], world[1]->PostSend(0, {}, from_1));
      return;
    }
    Done(*world[0], world[0]->PostReceive(1, small));
    EXPECT_EQ(small, from_1);
    Done(*world[0], world[0]->PostReceive(2, buffer));
    EXPECT_EQ(buffer, last_words);
  });
  EXPECT_STATUS(Failure(*world[0], world[0]->PostReceive(2, buffer)), kUnavailable,
                AllOf(HasSubstr("rank 2 ("), HasSubstr("closed the connection")));
}

TEST_P(TransportConformance, EveryFrameOfADepartedRankIsStillDelivered) {
  const std::vector<size_t> sizes = {10, 0, 3000, 9000, 1, 12000, 72};
  for (size_t received_before = 0; received_before < sizes.size(); ++received_before) {
    SCOPED_TRACE(::testing::Message()
                 << received_before << " frames received before the departure");
    World world = Connect(3);
    ASSERT_EQ(world.size(), 3u);
    const auto receive = [&](size_t i) {
      Bytes buffer(sizes[i]);
      Done(*world[0], world[0]->PostReceive(2, buffer));
      EXPECT_EQ(buffer, Pattern(sizes[i], i));
    };
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Bytes payload = Pattern(sizes[i], i);
      Done(*world[2], world[2]->PostSend(0, {}, payload));
    }
    for (size_t i = 0; i < received_before; ++i) receive(i);
    world[2].reset();
    const Bytes nudge(1);
    RunRanks(2, [&](int rank) {  // rank 0 notices the departure while it waits for another rank
      Bytes buffer(1);
      Done(*world[rank],
           rank == 1 ? world[1]->PostSend(0, {}, nudge) : world[0]->PostReceive(1, buffer));
    });
    for (size_t i = received_before; i < sizes.size(); ++i) receive(i);
    Bytes buffer(1);
    EXPECT_STATUS(Failure(*world[0], world[0]->PostReceive(2, buffer)), kUnavailable,
                  HasSubstr("rank 2 ("));
  }
}

TEST_P(TransportConformance, FramesWithoutPayloadMayArriveBeforeTheirReceives) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  for (const uint64_t slot : {1, 2}) {
    FrameHeader header;
    header.slot = static_cast<uint32_t>(slot);
    Done(*world[2], world[2]->PostSend(0, header, {}));
  }
  // Rank 0 reads the headers while it waits for another rank. No receive is posted for them yet,
  // and nothing follows them that would make it look again.
  const Bytes nudge(1);
  RunRanks(2, [&](int rank) {
    Bytes buffer(1);
    Done(*world[rank],
         rank == 1 ? world[1]->PostSend(0, {}, nudge) : world[0]->PostReceive(1, buffer));
  });
  for (const uint32_t slot : {1u, 2u}) {
    Bytes buffer;
    const FrameHeader header = Done(*world[0], world[0]->PostReceive(2, buffer));
    EXPECT_EQ(header.slot, slot);
    EXPECT_EQ(header.payload_bytes, 0u);
  }
}

TEST_P(TransportConformance, AbortGivesUpEveryBuffer) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  {
    // This is more than sockets buffer, so the frame is sent in part. The address sanitizer detects
    // uses of memory that the caller has freed.
    Bytes large(16 << 20), small(1);
    ASSERT_TRUE(world[0]->PostSend(1, {}, large).ok());
    ASSERT_TRUE(world[0]->PostReceive(1, small).ok());
    world[0]->Abort("done with it");
  }
  world[0].reset();
  Bytes buffer(16 << 20);
  EXPECT_FALSE(Failure(*world[1], world[1]->PostReceive(0, buffer)).ok());
}

// A transport that still read the memory would send its later content.
TEST_P(TransportConformance, NothingOfABufferIsReadAfterAbandon) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  Bytes large(16 << 20, std::byte{1}), small(100, std::byte{1}), received(16 << 20);
  ASSERT_TRUE(world[0]->PostSend(1, {}, large).ok());
  ASSERT_TRUE(world[0]->PostSend(1, {}, small).ok());
  world[0]->Abandon("no memory");
  std::fill(large.begin(), large.end(), std::byte{0xee});
  std::fill(small.begin(), small.end(), std::byte{0xee});
  EXPECT_FALSE(Failure(*world[1], world[1]->PostReceive(0, received)).ok());
  // It looks for a run of them, because single ones may be part of an encrypted frame that arrived
  // in part and was not opened.
  EXPECT_EQ(std::search_n(received.begin(), received.end(), 16, std::byte{0xee}), received.end());
}

TEST_P(TransportConformance, InterruptEndsAWait) {
  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  Bytes buffer(8);
  const StatusOr<Ticket> ticket = world[0]->PostReceive(1, buffer);
  std::thread interrupter([&] { world[0]->Interrupt(); });
  EXPECT_STATUS(Failure(*world[0], ticket), kAborted, HasSubstr("interrupted"));
  interrupter.join();
}

TEST_P(TransportConformance, ConnectNamesTheMissingRank) {
  TransportOptions options = FreshJob();
  options.world = 3;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<TransportAddress> addresses;
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    options.listen = ListenAddress(*GetParam(), options.rank);
    StatusOr<std::unique_ptr<Transport>> transport = GetParam()->Create(options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    addresses.push_back((*transport)->address());
    transports.push_back(std::move(*transport));
  }
  // Long enough for the two to meet before either gives up.
  const double seconds = GetParam()->Traits().needs_device ? 2 : 0.3;
  RunRanks(2, [&](int rank) {
    const Status status = transports[rank]->Connect(addresses, Within(seconds));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), HasSubstr("rank 2 ("));
    EXPECT_EQ(Message(status).find(StrCat("rank ", 1 - rank, " (")), std::string::npos) << status;
  });
}

TEST_P(TransportConformance, AWorldOfOneNeedsNobody) {
  World world = Connect(1);
  ASSERT_EQ(world.size(), 1u);
  EXPECT_TRUE(world[0]->Samples().empty());
  Bytes buffer(1);
  EXPECT_EQ(world[0]->PostReceive(0, buffer).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(TransportConformance, WrongCallsSayWhatWasExpected) {
  TransportOptions options = FreshJob();
  options.rank = 2;
  options.world = 2;
  EXPECT_STATUS(GetParam()->Create(options).status(), kInvalidArgument,
                HasSubstr("expected 0..1, found 2"));
  options.rank = 0;
  options.world = 0;
  EXPECT_STATUS(GetParam()->Create(options).status(), kInvalidArgument, HasSubstr("found 0"));
  options.world = 2;
  options.listen = ListenAddress(*GetParam(), 0);
  StatusOr<std::unique_ptr<Transport>> lonely = GetParam()->Create(options);
  ASSERT_TRUE(lonely.ok());
  Bytes buffer(8);
  EXPECT_STATUS((*lonely)->PostReceive(1, buffer).status(), kFailedPrecondition,
                HasSubstr("not connected"));
  EXPECT_STATUS((*lonely)->Connect({(*lonely)->address()}, Within(1)), kInvalidArgument,
                HasSubstr("expected 2 (the world), found 1"));

  World world = Connect(2);
  ASSERT_EQ(world.size(), 2u);
  for (const int peer : {-1, 0, 2}) {
    EXPECT_STATUS(world[0]->PostSend(peer, {}, buffer).status(), kInvalidArgument,
                  HasSubstr(StrCat("found ", peer)));
  }
  EXPECT_STATUS(world[0]->Wait(12345678, Within(1)).status(), kInvalidArgument,
                HasSubstr("12345678"));
  const StatusOr<Ticket> ticket = world[1]->PostSend(0, {}, buffer);
  Done(*world[1], ticket);
  EXPECT_STATUS(Failure(*world[1], ticket), kInvalidArgument, HasSubstr("not posted"));
}

TEST_P(TransportConformance, CountsSentBytesAndSamplesEveryPeer) {
  World world = Connect(3);
  ASSERT_EQ(world.size(), 3u);
  const uint64_t before = world[0]->bytes_sent();
  const Bytes payload(1000);
  Done(*world[0], world[0]->PostSend(1, {}, payload));
  const std::string& name = GetParam()->Traits().name;
  const bool tag = !name.starts_with("auto") && (name.find("_authenticated") != std::string::npos ||
                                                 name.find("_encrypted") != std::string::npos);
  EXPECT_EQ(world[0]->bytes_sent() - before, 1000 + kFrameHeaderBytes + (tag ? kFrameTagBytes : 0));
  const std::vector<PathSample> samples = world[0]->Samples();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].peer, 1);
  EXPECT_EQ(samples[1].peer, 2);
}

INSTANTIATE_TEST_SUITE_P(EveryTransport, TransportConformance, ::testing::ValuesIn(AllFactories()),
                         [](const auto& info) {
                           std::string name = info.param->Traits().name;
                           std::replace(name.begin(), name.end(), '+', '_');
                           return name;
                         });

// ---- deaths and damage, over every plain transport

class TransportUnderFault : public TransportConformance {};

// The checksum detects it or, if there is a key, the tag.
auto FoundCorrupt() {
  return ::testing::AnyOf(AllOf(HasSubstr("corrupt payload"), HasSubstr("checksum")),
                          HasSubstr("a frame that does not verify"));
}

TEST_P(TransportUnderFault, CorruptPayloadNamesTheSender) {
  FaultOptions faults;
  faults.rank = 1;
  faults.every_peer.corrupt_probability = 1;
  const auto factory = MakeFaultFactory(*GetParam(), faults);
  World world = Connect(2, factory.get());
  ASSERT_EQ(world.size(), 2u);
  RunRanks(2, [&](int rank) {
    Bytes bytes(300);
    if (rank == 1) {
      const Bytes payload(300);
      Done(*world[1], world[1]->PostSend(0, {}, payload));
    } else {
      EXPECT_STATUS(Failure(*world[0], world[0]->PostReceive(1, bytes)), kDataLoss,
                    AllOf(HasSubstr("rank 1 ("), FoundCorrupt()));
    }
  });
}

TEST_P(TransportUnderFault, LargeCorruptPayloadIsFoundToo) {
  FaultOptions faults;
  faults.rank = 1;
  faults.every_peer.corrupt_probability = 1;
  const auto factory = MakeFaultFactory(*GetParam(), faults);
  World world = Connect(2, factory.get());
  ASSERT_EQ(world.size(), 2u);
  RunRanks(2, [&](int rank) {
    Bytes bytes(8 << 20);
    if (rank == 1) {
      Done(*world[1], world[1]->PostSend(0, {}, bytes));
    } else {
      EXPECT_STATUS(Failure(*world[0], world[0]->PostReceive(1, bytes)), kDataLoss, FoundCorrupt());
    }
  });
}

TEST_P(TransportUnderFault, DroppedFrameEndsInADeadlineThatNamesTheSender) {
  FaultOptions faults;
  faults.rank = 1;
  faults.every_peer.drop_probability = 1;
  const auto factory = MakeFaultFactory(*GetParam(), faults);
  World world = Connect(2, factory.get());
  ASSERT_EQ(world.size(), 2u);
  Bytes bytes(300);
  Done(*world[1], world[1]->PostSend(0, {}, bytes));
  EXPECT_STATUS(Failure(*world[0], world[0]->PostReceive(1, bytes), 0.05), kDeadlineExceeded,
                HasSubstr("rank 1 ("));
}

TEST_P(TransportUnderFault, DeathIsNamedOnEverySurvivorWhoeverItWaitsFor) {
  constexpr int kWorld = 4;
  FaultOptions faults;
  faults.rank = 2;
  faults.disconnect_after_frames = 2;
  const auto factory = MakeFaultFactory(*GetParam(), faults);
  World world = Connect(kWorld, factory.get());
  ASSERT_EQ(world.size(), size_t{kWorld});
  RunRanks(kWorld, [&](int rank) {
    Bytes buffer(8);
    if (rank == 2) {
      for (int i = 0; i < 2; ++i) Done(*world[2], world[2]->PostSend(0, {}, buffer));
      EXPECT_STATUS(world[2]->PostSend(0, {}, buffer).status(), kUnavailable,
                    HasSubstr("fault injection"));
      return;
    }
    const TimePoint start = RealClock().Now();
    const int other = rank == 0 ? 1 : rank == 1 ? 3 : 0;
    EXPECT_STATUS(Failure(*world[rank], world[rank]->PostReceive(other, buffer)), kUnavailable,
                  AllOf(HasSubstr("rank 2 ("), HasSubstr("closed the connection")));
    EXPECT_LT(ToSeconds(RealClock().Now() - start), kPatience / 2);
  });
}

INSTANTIATE_TEST_SUITE_P(EveryTransport, TransportUnderFault, ::testing::ValuesIn(PlainFactories()),
                         [](const auto& info) { return info.param->Traits().name; });

}  // namespace
}  // namespace weir::testing
