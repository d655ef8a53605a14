// SPDX-License-Identifier: Apache-2.0
// Ranks that hold the job's key against peers that do not, and against attackers on the path.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>

#include "tests/datapath/transport/builtin/man_in_the_middle.h"
#include "tests/datapath/transport/conformance.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kKeyedJob = 78;

std::unique_ptr<Transport> NewKeyed(int rank, bool encrypt = false, int connections = 1) {
  TransportOptions options;
  options.job = kKeyedJob;
  options.rank = rank;
  options.world = 2;
  options.connections = connections;
  options.job_key = TestKey();
  options.encrypt = encrypt;
  auto transport = (*Transports().Find("tcp"))->Create(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return std::move(*transport);
}

struct Outcome {
  Status connected[2];
  Status received;
  Bytes buffer;
};

// ---- strangers

mesh::Hello RogueHello(Protection protection) {
  return {.job = kKeyedJob,
          .rank = 1,
          .world = 2,
          .expected_peer = 0,
          .protection = protection,
          .nonce = *NewNonce()};
}

// Lets `rogue` connect to rank 0 while it waits for rank 1. Then the true rank 1 connects and must
// get its place.
void WithRogue(const std::function<void(RawPeer&)>& rogue) {
  auto rank0 = NewKeyed(0), rank1 = NewKeyed(1);
  const std::vector<TransportAddress> addresses = {rank0->address(), rank1->address()};
  Status status0;
  std::thread connecting([&] { status0 = rank0->Connect(addresses, Within(kPatience)); });
  RawPeer raw(rank0->address());
  rogue(raw);
  const Status status1 = rank1->Connect(addresses, Within(kPatience));
  connecting.join();
  EXPECT_TRUE(status0.ok()) << status0;
  EXPECT_TRUE(status1.ok()) << status1;
  const Bytes payload = Pattern(1000, 3);
  Bytes buffer(1000);
  const auto sent = rank1->PostSend(0, {}, payload);
  Done(*rank0, rank0->PostReceive(1, buffer));
  EXPECT_EQ(buffer, payload);
  Done(*rank1, sent);
}

void ExpectAbort(RawPeer& raw, const std::string& why) {
  std::string text;
  const auto answer = raw.ReadFrame(&text);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->type, FrameType::kAbort);
  EXPECT_THAT(text, HasSubstr(why));
}

TEST(TcpKeyTest, AHelloWithoutAKeyIsRefused) {
  Logged logged;
  WithRogue([](RawPeer& raw) {
    ASSERT_TRUE(raw.Send(mesh::EncodeHello(RogueHello(Protection::kChecked))));
    ExpectAbort(raw, "job key: rank 0 has one, rank 1 none");
  });
  EXPECT_THAT(logged.text(), HasSubstr("rank 0 refused 127.0.0.1:"));
}

TEST(TcpKeyTest, AWrongProofIsRefusedAndNamed) {
  Logged logged;
  WithRogue([](RawPeer& raw) {
    const auto answer = raw.Introduce(RogueHello(Protection::kAuthenticated));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->type, FrameType::kHello);
    ASSERT_TRUE(raw.Send(mesh::EncodeFrame(FrameType::kProof, 1, *NewNonce())));
    ExpectAbort(raw, "does not hold the job's key (it claims to be rank 1)");
  });
  EXPECT_THAT(logged.text(), AllOf(HasSubstr("rank 0 refused 127.0.0.1:"),
                                   HasSubstr("does not hold the job's key")));
}

TEST(TcpKeyTest, TheAcceptorsOwnProofSentBackIsRefused) {
  Logged logged;
  WithRogue([](RawPeer& raw) {
    std::string answer;
    ASSERT_TRUE(raw.Introduce(RogueHello(Protection::kAuthenticated), &answer).ok());
    const auto bytes = std::as_bytes(std::span(answer));
    ASSERT_TRUE(raw.Send(mesh::EncodeFrame(FrameType::kProof, 1, bytes.last(kSecretBytes))));
    ExpectAbort(raw, "does not hold the job's key");
  });
}

TEST(TcpKeyTest, DataInPlaceOfAProofIsRefused) {
  Logged logged;
  WithRogue([](RawPeer& raw) {
    ASSERT_TRUE(raw.Introduce(RogueHello(Protection::kAuthenticated)).ok());
    ASSERT_TRUE(raw.Send(DataFrame(1, Bytes(8))));
    ExpectAbort(raw, "a data frame before its hello");
  });
}

// A caller that has sent a hello but no proof never counts as a rank, however long it waits.
TEST(TcpKeyTest, ARogueThatWaitsIsNoObstacle) {
  Logged logged;
  std::optional<RawPeer> waits;
  WithRogue([&](RawPeer& raw) {
    ASSERT_TRUE(raw.Introduce(RogueHello(Protection::kAuthenticated)).ok());
    waits.emplace(mesh::UniqueFd(dup(raw.fd())));
  });
}

TEST(TcpKeyTest, AHandshakeOfYesterdayIsRefused) {
  Bytes hello, proof;
  {
    auto rank0 = NewKeyed(0), rank1 = NewKeyed(1);
    ManInTheMiddle middle(rank0->address(), true, [&](size_t number, const Bytes& frame) {
      if (number == 0) hello = frame;
      if (number == 1) proof = frame;
      return std::vector<Bytes>{frame};
    });
    RunRanks(2, [&](int r) {
      Transport& rank = r == 0 ? *rank0 : *rank1;
      EXPECT_TRUE(rank.Connect({middle.address(), rank1->address()}, Within(kPatience)).ok());
    });
    rank1.reset();
    rank0.reset();
  }
  Logged logged;
  WithRogue([&](RawPeer& raw) {
    ASSERT_TRUE(raw.Send(hello));
    ASSERT_TRUE(raw.ReadFrame().ok());
    ASSERT_TRUE(raw.Send(proof));
    ExpectAbort(raw, "does not hold the job's key");
  });
}

// ---- ranks with different settings (see also conformance_key_test.cc)

TEST(TcpKeyTest, OptionsThatExcludeEachOtherAreRefused) {
  TransportOptions options;
  options.encrypt = true;
  for (const char* name : {"tcp", "shm", "auto"}) {
    EXPECT_STATUS((*Transports().Find(name))->Create(options).status(), kInvalidArgument,
                  HasSubstr("encrypt: needs a job key"));
  }
  options.job_key = TestKey();
  EXPECT_TRUE((*Transports().Find("tcp"))->Create(options).ok());
  options.unauthenticated = true;
  EXPECT_STATUS((*Transports().Find("tcp"))->Create(options).status(), kInvalidArgument,
                HasSubstr("unauthenticated: expected no job key"));
}

// A stranger that listens in rank 0's place gets a hello and nothing else.
TEST(TcpKeyTest, AFalseRank0IsFoundOut) {
  TransportAddress address;
  const auto listener = mesh::Listen(TransportOptions(), 4, &address);
  ASSERT_TRUE(listener.ok());
  auto rank1 = NewKeyed(1);
  Status status;
  std::thread connecting([&] {
    status = rank1->Connect({address, rank1->address()}, Within(kPatience));
  });
  pollfd waits = {listener->get(), POLLIN, 0};
  ASSERT_EQ(poll(&waits, 1, 10'000), 1);
  RawPeer raw(mesh::UniqueFd(accept(listener->get(), nullptr, nullptr)));
  ASSERT_TRUE(raw.ReadFrame().ok());
  mesh::Hello hello = RogueHello(Protection::kAuthenticated);
  hello.rank = 0;
  hello.expected_peer = UINT32_MAX;
  const Secret proof = *NewNonce();
  ASSERT_TRUE(raw.Send(mesh::EncodeHello(hello, &proof)));
  ExpectAbort(raw, "does not hold the job's key");
  connecting.join();
  EXPECT_STATUS(
      status, kFailedPrecondition,
      AllOf(HasSubstr(StrCat("rank 0 (", address, ")")), HasSubstr("does not hold the job's key")));
}

// ---- on the path

// Rank 1 sends 3 frames of 400 bytes to rank 0 through `meddle`, then leaves in order.
Outcome Through(const ManInTheMiddle::Meddle& meddle, bool encrypt, int connections = 1) {
  auto rank0 = NewKeyed(0, encrypt, connections);
  auto rank1 = NewKeyed(1, encrypt, connections);
  Outcome outcome;
  outcome.buffer.resize(1200);
  ManInTheMiddle middle(rank0->address(), true, meddle);
  RunRanks(2, [&](int r) {
    Transport& rank = r == 0 ? *rank0 : *rank1;
    outcome.connected[r] = rank.Connect({middle.address(), rank1->address()}, Within(kPatience));
  });
  if (!outcome.connected[0].ok() || !outcome.connected[1].ok()) return outcome;
  const Bytes payload = Pattern(1200, 5);
  for (size_t i = 0; i < 3; ++i) {
    (void)rank1->PostSend(0, {}, std::span(payload).subspan(400 * i, 400));
  }
  std::thread leaving([&] { rank1.reset(); });
  for (size_t i = 0; i < 3 && outcome.received.ok(); ++i) {
    const auto ticket = rank0->PostReceive(1, std::span(outcome.buffer).subspan(400 * i, 400));
    outcome.received =
        ticket.ok() ? rank0->Wait(*ticket, Within(kPatience)).status() : ticket.status();
  }
  leaving.join();
  rank0.reset();
  return outcome;
}

class TcpPathTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(AuthenticatedAndEncrypted, TcpPathTest, ::testing::Bool());

// The second of the data frames.
constexpr size_t kVictim = 3;

TEST_P(TcpPathTest, WhoOnlyPassesOnIsNotNoticed) {
  const Outcome outcome = Through(ManInTheMiddle::PassOn, GetParam());
  EXPECT_TRUE(outcome.connected[0].ok() && outcome.connected[1].ok());
  EXPECT_TRUE(outcome.received.ok()) << outcome.received;
  EXPECT_EQ(outcome.buffer, Pattern(1200, 5));
}

struct Attack {
  const char* name;
  ManInTheMiddle::Meddle meddle;
};

std::vector<Attack> Attacks() {
  const auto on_victim = [](std::function<std::vector<Bytes>(Bytes)> change) {
    return [change](size_t number, const Bytes& frame) {
      return number == kVictim ? change(frame) : std::vector<Bytes>{frame};
    };
  };
  std::vector<Attack> attacks;
  attacks.push_back({"scales the payload by -3", on_victim([](Bytes frame) {
                       for (size_t at = kFrameHeaderBytes; at + 20 <= frame.size(); at += 4) {
                         float value;
                         std::memcpy(&value, &frame[at], sizeof value);
                         value *= -3;
                         std::memcpy(&frame[at], &value, sizeof value);
                       }
                       return std::vector<Bytes>{frame};
                     })});
  attacks.push_back({"says that it has no checksum and needs none", on_victim([](Bytes frame) {
                       frame[6] ^= std::byte{2};
                       frame[100] ^= std::byte{1};
                       return std::vector<Bytes>{frame};
                     })});
  attacks.push_back({"makes the checksums right and leaves the tag", on_victim([](Bytes frame) {
                       frame[100] ^= std::byte{1};
                       FrameHeader header = *DecodeFrameHeader(
                           std::span(frame).first<kFrameHeaderBytes>(), FrameCheck::kTag);
                       header.payload_checksum =
                           Checksum(std::span(frame).subspan(kFrameHeaderBytes, 400));
                       EncodeFrameHeader(header, std::span(frame).first<kFrameHeaderBytes>());
                       return std::vector<Bytes>{frame};
                     })});
  attacks.push_back({"repeats it", on_victim([](Bytes frame) {
                       return std::vector<Bytes>{frame, frame};
                     })});
  attacks.push_back({"leaves it out", on_victim([](Bytes) { return std::vector<Bytes>{}; })});
  attacks.push_back({"cuts its end off", on_victim([](Bytes frame) {
                       frame.resize(frame.size() - 20);
                       return std::vector<Bytes>{frame};
                     })});
  attacks.push_back({"shortens it", on_victim([](Bytes frame) {
                       const uint32_t bytes = 396;
                       std::memcpy(&frame[56], &bytes, sizeof bytes);
                       frame.erase(frame.begin() + 100, frame.begin() + 104);
                       return std::vector<Bytes>{frame};
                     })});
  attacks.push_back(
      {"puts a shutdown notice before it", on_victim([](Bytes frame) {
         return std::vector<Bytes>{mesh::EncodeFrame(FrameType::kAbort, 1, {}), frame};
       })});
  const auto held = std::make_shared<Bytes>();
  attacks.push_back({"exchanges it with the next", [held](size_t number, const Bytes& frame) {
                       if (number == kVictim) *held = frame;
                       if (number == kVictim) return std::vector<Bytes>{};
                       if (number == kVictim + 1) return std::vector<Bytes>{frame, *held};
                       return std::vector<Bytes>{frame};
                     }});
  return attacks;
}

TEST_P(TcpPathTest, WhateverIsDoneToAFrameItIsNotDelivered) {
  for (const Attack& attack : Attacks()) {
    SCOPED_TRACE(attack.name);
    const Outcome outcome = Through(attack.meddle, GetParam());
    ASSERT_TRUE(outcome.connected[0].ok() && outcome.connected[1].ok());
    EXPECT_FALSE(outcome.received.ok());
    EXPECT_THAT(Message(outcome.received), HasSubstr("rank 1 ("));
    EXPECT_EQ(outcome.received.code(), StatusCode::kDataLoss) << outcome.received;
  }
}

// A cut connection counts as the peer's death, whatever its last bytes are.
TEST_P(TcpPathTest, AnEndWithoutANoticeThatVerifiesIsNoOrderlyEnd) {
  for (const bool forge : {false, true}) {
    const Outcome outcome = Through(
        [forge](size_t number, const Bytes& frame) {
          if (number < kVictim) return std::vector<Bytes>{frame};
          if (number > kVictim || !forge) return std::vector<Bytes>{};
          FrameHeader header;
          header.type = FrameType::kAbort;
          header.source_rank = 1;
          Bytes notice(kFrameHeaderBytes + kFrameTagBytes, std::byte{7});
          EncodeFrameHeader(header, std::span(notice).first<kFrameHeaderBytes>(), FrameCheck::kTag);
          return std::vector<Bytes>{notice};
        },
        GetParam());
    EXPECT_EQ(outcome.received.code(), forge ? StatusCode::kDataLoss : StatusCode::kUnavailable);
    EXPECT_THAT(Message(outcome.received), AllOf(HasSubstr("rank 1 ("), Not(HasSubstr("reported")),
                                                 HasSubstr(forge ? "does not verify" : "closed")));
  }
}

TEST_P(TcpPathTest, EveryChangedHandshakeIsRefused) {
  const std::pair<size_t, size_t> places[] = {{0, 24}, {0, 28}, {0, 40}, {0, 63}, {1, 0}, {1, 31}};
  for (const std::pair<size_t, size_t>& place : places) {
    const size_t number = place.first, at = place.second;
    SCOPED_TRACE(StrCat("frame ", number, " octet ", at, " behind its header"));
    Logged logged;
    auto rank0 = NewKeyed(0, GetParam()), rank1 = NewKeyed(1, GetParam());
    ManInTheMiddle middle(rank0->address(), true, [&](size_t n, Bytes frame) {
      if (n != number) return std::vector<Bytes>{frame};
      const auto header = std::span(frame).first<kFrameHeaderBytes>();
      frame[kFrameHeaderBytes + at] ^= std::byte{3};
      FrameHeader changed = *DecodeFrameHeader(header);
      changed.payload_checksum = Checksum(std::span(frame).subspan(kFrameHeaderBytes));
      EncodeFrameHeader(changed, header);
      return std::vector<Bytes>{frame};
    });
    RunRanks(2, [&](int r) {
      Transport& rank = r == 0 ? *rank0 : *rank1;
      EXPECT_FALSE(rank.Connect({middle.address(), rank1->address()}, Within(0.5)).ok()) << r;
    });
  }
}

TEST(TcpKeyTest, OnlyEncryptionHidesPayloads) {
  for (const bool encrypt : {false, true}) {
    bool seen = false;
    const Bytes payload = Pattern(1200, 5);
    const Outcome outcome = Through(
        [&](size_t, const Bytes& frame) {
          seen = seen || std::search(frame.begin(), frame.end(), payload.begin(),
                                     payload.begin() + 16) != frame.end();
          return std::vector<Bytes>{frame};
        },
        encrypt);
    EXPECT_TRUE(outcome.received.ok()) << outcome.received;
    EXPECT_EQ(seen, !encrypt);
  }
}

// Frames that were sealed and then given up must leave no gap in the numbers that the peer counts.
TEST_P(TcpPathTest, AReasonIsHeardBehindAFrameThatWasHalfOut) {
  auto rank0 = NewKeyed(0, GetParam()), rank1 = NewKeyed(1, GetParam());
  RunRanks(2, [&](int r) {
    Transport& rank = r == 0 ? *rank0 : *rank1;
    EXPECT_TRUE(rank.Connect({rank0->address(), rank1->address()}, Within(kPatience)).ok());
  });
  const Bytes payload(50'000);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(rank1->PostSend(0, {}, payload).ok());
  Bytes buffer(50'000);
  const auto receive = [&] {
    const auto ticket = rank0->PostReceive(1, buffer);
    return ticket.ok() ? rank0->Wait(*ticket, Within(kPatience)).status() : ticket.status();
  };
  // There is room again, for a part of the frames that are sealed together now.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(receive(), OkStatus());
  EXPECT_TRUE(rank1->WaitAny({}, Within(0.1)).ok());
  std::thread aborting([&] { rank1->Abort("no more"); });
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = receive();
  aborting.join();
  EXPECT_STATUS(status, kUnavailable, HasSubstr("rank 1 reported: no more"));
}

// ---- without a key

// Calls body on a thread whose network has the address 10.9.8.7, which is not a loopback address.
void OffLoopback(const std::function<void()>& body) {
  bool permitted = false;
  std::thread([&] {
    permitted = unshare(CLONE_NEWNET) == 0 && std::system("ip link set lo up") == 0 &&
                std::system("ip addr add 10.9.8.7/32 dev lo") == 0;
    if (permitted) body();
  }).join();
  if (!permitted) GTEST_SKIP() << "network namespaces are not permitted";
}

// Connects two ranks at 10.9.8.7. Returns the status and the number of unauthenticated peers.
std::pair<Status, int> ConnectTwo(const std::string& transport,
                                  const std::function<void(TransportOptions*)>& tune) {
  std::vector<std::unique_ptr<Transport>> ranks;
  std::vector<TransportAddress> addresses;
  for (int r = 0; r < 2; ++r) {
    TransportOptions options;
    options.rank = r;
    options.world = 2;
    options.listen = "10.9.8.7:0";
    tune(&options);
    auto rank = (*Transports().Find(transport))->Create(options);
    if (!rank.ok()) return {rank.status(), 0};
    addresses.push_back((*rank)->address());
    ranks.push_back(std::move(*rank));
  }
  Status statuses[2];
  RunRanks(2, [&](int r) { statuses[r] = ranks[r]->Connect(addresses, Within(kPatience)); });
  EXPECT_EQ(statuses[0].code(), statuses[1].code()) << statuses[0] << statuses[1];
  return {statuses[0].ok() ? statuses[1] : statuses[0], ranks[0]->unauthenticated_peers()};
}

TEST(TcpKeyTest, NothingRunsWithoutAKeyOffLoopbackUnlessAskedByName) {
  OffLoopback([] {
    const auto none = [](TransportOptions*) {};
    const auto asked = [](TransportOptions* options) { options->unauthenticated = true; };
    const auto keyed = [](TransportOptions* options) { options->job_key = TestKey(); };
    Logged logged;
    const auto [status, unknown] = ConnectTwo("tcp", none);
    EXPECT_STATUS(status, kFailedPrecondition,
                  AllOf(HasSubstr("(10.9.8.7:"), HasSubstr("WEIR_JOB_KEY_FILE"),
                        HasSubstr("'unauthenticated'")));
    EXPECT_THAT(logged.text(), Not(HasSubstr("runs unauthenticated")));
    EXPECT_EQ(ConnectTwo("tcp", keyed), std::pair(OkStatus(), 0));
    EXPECT_EQ(ConnectTwo("auto", none), std::pair(OkStatus(), 0));  // in shared memory
    EXPECT_THAT(logged.text(), Not(HasSubstr("runs unauthenticated")));
    EXPECT_EQ(ConnectTwo("tcp", asked), std::pair(OkStatus(), 1));
    EXPECT_THAT(logged.text(), HasSubstr("rank 0 runs unauthenticated"));
    if (!Transports().Find("verbs").ok()) return;
    EXPECT_STATUS(ConnectTwo("verbs", none).first, kFailedPrecondition,
                  AllOf(HasSubstr("transport verbs at 10.9.8.7:0 reaches its peers over a network"),
                        HasSubstr("WEIR_JOB_KEY_FILE"), HasSubstr("'unauthenticated'")));
    EXPECT_STATUS(ConnectTwo("verbs", keyed).first, kUnavailable, HasSubstr("RDMA device"));
  });
}

}  // namespace
}  // namespace weir::testing
