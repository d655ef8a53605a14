// SPDX-License-Identifier: Apache-2.0
// The messages of ranks through RDMA's connection manager, and how much memory each peer gets. No
// device is needed.

#if WEIR_HAVE_Verbs
#include "datapath/transport/builtin/verbs/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "datapath/transport/builtin/verbs/key_exchange.h"
#include "datapath/transport/builtin/verbs/stream.h"
#include "datapath/transport/builtin/verbs/window.h"
#include "tests/support/golden.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// ---- private data

verbs::Hello SomeHello() {
  return {
      .job = 0x0123456789abcdef, .rank = 1, .world = 4, .expected_peer = 0, .window = {32768, 16}};
}

JobKey Counting() {
  JobKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return key;
}

verbs::HelloNonce Filled(int value) {
  verbs::HelloNonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

verbs::Hello Keyed(uint32_t rank, int nonce) {
  verbs::Hello hello = SomeHello();
  hello.rank = rank;
  hello.expected_peer = rank == 0 ? UINT32_MAX : 0;
  hello.protection = Protection::kAuthenticated;
  hello.nonce = Filled(nonce);
  return hello;
}

// The recorded bytes were checked with Python's hmac and hashlib.
TEST(VerbsHelloTest, PrivateDataHasItsRecordedBytesAndTheDocumentShowsThem) {
  auto golden = ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/verbs_hello_v2.hex");
  const std::string document = ReadText(WEIR_TEST_SOURCE_DIR "/../proto/WIRE.md");
  const auto expect = [&](const std::string& name, std::span<const std::byte> encoded) {
    EXPECT_EQ(Bytes(encoded.begin(), encoded.end()), golden[name].bytes) << name;
    EXPECT_THAT(document, HasSubstr(golden[name].dump)) << name;
  };
  expect("request of rank 1 to rank 0, world 4, job 0x0123456789abcdef, 16 slots of 32768 octets",
         verbs::EncodeHello(SomeHello()));
  expect("the same request with a key", verbs::EncodeHello(Keyed(1, 0xd0)));
  const JobKey key = Counting();
  verbs::PendingPeers pending(key, 4);
  const auto challenge = pending.Ask(Keyed(1, 0xd0), Keyed(0, 0xa0), "10.0.0.2:9", TimePoint());
  ASSERT_TRUE(challenge.ok()) << challenge.status();
  expect("challenge of rank 0", *challenge);
  const auto challenged = verbs::TakeChallenge(key, Keyed(1, 0xd0), *challenge);
  ASSERT_TRUE(challenged.ok()) << challenged.status();
  expect("second request of rank 1", verbs::EncodeProof(Filled(0xd0), challenged->proof));
}

TEST(VerbsHelloTest, RoundTripIgnoresThePaddingOfConnectionManagers) {
  const auto encoded = verbs::EncodeHello(SomeHello());
  Bytes padded(encoded.begin(), encoded.end());
  padded.resize(196);
  const auto hello = verbs::DecodeHello(padded);
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->job, SomeHello().job);
  EXPECT_EQ(hello->rank, 1u);
  EXPECT_EQ(hello->world, 4u);
  EXPECT_EQ(hello->expected_peer, 0u);
  EXPECT_EQ(hello->window.slot_bytes, 32768u);
  EXPECT_EQ(hello->window.slots, 16u);
}

TEST(VerbsHelloTest, EveryFlippedBitAndMissingByteIsFound) {
  const auto encoded = verbs::EncodeHello(SomeHello());
  for (size_t bit = 0; bit < encoded.size() * 8; ++bit) {
    auto damaged = encoded;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(verbs::DecodeHello(damaged).status().code(), StatusCode::kDataLoss) << "bit " << bit;
  }
  for (size_t size = 0; size < encoded.size(); ++size) {
    EXPECT_EQ(verbs::DecodeHello(std::span(encoded).first(size)).status().code(),
              StatusCode::kDataLoss);
  }
}

TEST(VerbsHelloTest, WindowsOutOfBoundsAreRefused) {
  for (const verbs::Window window :
       {verbs::Window{4095, 16}, {(1 << 20) + 1, 16}, {4096, 3}, {4096, 1025}, {0, 0}}) {
    verbs::Hello hello = SomeHello();
    hello.window = window;
    EXPECT_EQ(verbs::DecodeHello(verbs::EncodeHello(hello)).status().code(), StatusCode::kDataLoss);
  }
}

TEST(VerbsHelloTest, OtherVersionsKindsAndProtectionsAreNamed) {
  const auto with = [](size_t offset, int value) {
    verbs::Request bytes = verbs::EncodeHello(SomeHello());
    bytes[offset] = static_cast<std::byte>(value);
    const uint32_t checksum = Checksum(std::span(bytes).first(52));
    std::memcpy(bytes.data() + 52, &checksum, sizeof checksum);
    return weir::Message(verbs::DecodeHello(bytes).status());
  };
  EXPECT_EQ(with(8, 9), "");
  EXPECT_EQ(with(4, 1), "hello: expected version 2, found 1");
  EXPECT_EQ(with(6, 2), "hello: expected kind 1, found 2");
  EXPECT_EQ(with(34, 3), "hello: protection: expected 0..2, found 3");
}

// ---- proofs

// A dialer and an acceptor, each with its key.
struct Meeting {
  explicit Meeting(const JobKey& of_dialer = Counting()) : dialers_key(of_dialer) {}

  StatusOr<verbs::Challenge> Ask(TimePoint now = {}, int nonce = 0xa0) {
    return pending.Ask(said, Keyed(0, nonce), "10.0.0.2:9", now);
  }
  StatusOr<verbs::Challenged> Take(std::span<const std::byte> challenge) const {
    return verbs::TakeChallenge(dialers_key, said, challenge);
  }
  verbs::Request Proof(const Secret& proof) const { return verbs::EncodeProof(said.nonce, proof); }

  const JobKey key = Counting(), dialers_key;
  verbs::Hello said = Keyed(1, 0xd0);
  verbs::PendingPeers pending{key, 4};
};

constexpr char kStranger[] = "does not hold the job's key (it claims to be rank 1)";

TEST(VerbsProofTest, WhoHoldsTheKeyGetsAChannelThatFitsTheOther) {
  Meeting meeting;
  auto challenged = meeting.Take(*meeting.Ask());
  ASSERT_TRUE(challenged.ok()) << challenged.status();
  EXPECT_FALSE(challenged->is_stranger);
  EXPECT_EQ(challenged->acceptor.window.slots, 16u);
  auto proven = meeting.pending.Check(meeting.Proof(challenged->proof));
  ASSERT_TRUE(proven.ok()) << proven.status();
  EXPECT_EQ(proven->hello.rank, 1u);
  Bytes header(kFrameHeaderBytes), payload(40);
  FrameTag tag;
  for (const auto& [from, to] : {std::pair(&challenged->channel, &proven->channel),
                                 std::pair(&proven->channel, &challenged->channel)}) {
    from->sealer->Seal(header, payload, {}, &tag);
    to->opener->Begin(header);
    to->opener->Update(payload);
    EXPECT_TRUE(to->opener->Finish(tag));
  }
}

TEST(VerbsProofTest, UnlikeKeysAreFoundOnBothSides) {
  JobKey other = Counting();
  other[31] ^= std::byte{1};
  Meeting meeting(other);
  const auto challenged = meeting.Take(*meeting.Ask());
  ASSERT_TRUE(challenged.ok()) << challenged.status();
  EXPECT_TRUE(challenged->is_stranger);
  EXPECT_FALSE(challenged->channel.sealer || challenged->channel.opener);
  const Status refused = meeting.pending.Check(meeting.Proof(challenged->proof)).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  EXPECT_EQ(weir::Message(refused), kStranger);
}

// The checksum of the changed hello is corrected, because it does not stop an attacker.
TEST(VerbsProofTest, WhateverIsChangedOnTheWayIsFound) {
  const auto seal = [](auto* bytes) {
    const uint32_t checksum = Checksum(std::span(*bytes).first(52));
    std::memcpy(bytes->data() + 52, &checksum, sizeof checksum);
  };
  for (size_t bit = 0; bit < verbs::kChallengeBytes * 8; ++bit) {
    SCOPED_TRACE(StrCat("bit ", bit));
    const auto flip = static_cast<std::byte>(1 << bit % 8);
    {
      Meeting meeting;
      verbs::Challenge challenge = *meeting.Ask();
      challenge[bit / 8] ^= flip;
      if (bit / 8 < 52) seal(&challenge);
      const auto challenged = meeting.Take(challenge);
      EXPECT_TRUE(!challenged.ok() || challenged->is_stranger);
    }
    if (bit / 8 >= verbs::kRequestBytes) continue;
    {
      Meeting meeting;
      verbs::Request request = verbs::EncodeHello(meeting.said);
      request[bit / 8] ^= flip;
      if (bit / 8 < 52) seal(&request);
      const auto heard = verbs::DecodeHello(request);
      if (heard.ok()) {
        const auto challenge = meeting.pending.Ask(*heard, Keyed(0, 0xa0), "", TimePoint());
        EXPECT_TRUE(meeting.Take(*challenge)->is_stranger);
      }
    }
    Meeting meeting;
    verbs::Request proof = meeting.Proof(meeting.Take(*meeting.Ask())->proof);
    proof[bit / 8] ^= flip;
    EXPECT_FALSE(verbs::IsProof(proof) && meeting.pending.Check(proof).ok());
  }
}

TEST(VerbsProofTest, AProofServesOnceAndOnlyItsOwnChallenge) {
  Meeting meeting;
  const verbs::Challenge challenge = *meeting.Ask();
  const verbs::Request proof = meeting.Proof(meeting.Take(challenge)->proof);
  EXPECT_TRUE(meeting.pending.Check(proof).ok());
  EXPECT_EQ(meeting.pending.Check(proof).status().code(), StatusCode::kNotFound);
  // A stranger replays a hello and a proof that it recorded earlier.
  ASSERT_TRUE(meeting.Ask({}, 0xa1).ok());
  const Status replayed = meeting.pending.Check(proof).status();
  EXPECT_EQ(replayed.code(), StatusCode::kFailedPrecondition) << replayed;
  EXPECT_EQ(weir::Message(replayed), kStranger);
}

TEST(VerbsProofTest, TheAcceptorsOwnProofSentBackIsRefused) {
  Meeting meeting;
  const auto challenge = verbs::DecodeChallenge(*meeting.Ask());
  ASSERT_TRUE(challenge.ok()) << challenge.status();
  EXPECT_EQ(weir::Message(meeting.pending.Check(meeting.Proof(challenge->proof)).status()),
            kStranger);
}

// The connection manager repeats requests whose answers were lost.
TEST(VerbsProofTest, AHelloThatComesTwiceGetsTheSameChallenge) {
  Meeting meeting;
  EXPECT_EQ(*meeting.Ask({}, 0xa0), *meeting.Ask({}, 0xa1));
}

TEST(VerbsProofTest, WhoGivesNoProofIsForgottenAndNamed) {
  Meeting meeting;
  const TimePoint now = RealClock().Now();
  const auto later = [&](int ms) { return now + std::chrono::milliseconds(ms); };
  const verbs::Request proof = meeting.Proof(meeting.Take(*meeting.Ask(now))->proof);
  EXPECT_TRUE(meeting.pending.Expire(later(29'999)).empty());
  EXPECT_EQ(meeting.pending.Expire(later(30'000)),
            std::vector<std::string>{"10.0.0.2:9: no proof within 30 s (it claims to be rank 1)"});
  EXPECT_EQ(meeting.pending.Check(proof).status().code(), StatusCode::kNotFound);
  // A dialer that was refused has already been reported.
  ASSERT_TRUE(meeting.Ask(now).ok());
  EXPECT_FALSE(meeting.pending.Check(meeting.Proof({})).ok());
  EXPECT_TRUE(meeting.pending.Expire(later(30'000)).empty());
  EXPECT_EQ(meeting.pending.Check(meeting.Proof({})).status().code(), StatusCode::kNotFound);
}

TEST(VerbsProofTest, TheOneThatWaitsLongestMakesRoom) {
  Meeting meeting;
  const verbs::Request first = meeting.Proof(meeting.Take(*meeting.Ask())->proof);
  for (const int nonce : {1, 2, 3, 4}) {
    meeting.said.nonce = Filled(nonce);
    ASSERT_TRUE(meeting.Ask().ok());
  }
  EXPECT_EQ(meeting.pending.Check(first).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(meeting.pending.Check(meeting.Proof(meeting.Take(*meeting.Ask())->proof)).ok());
}

// ---- how much memory

constexpr verbs::DeviceLimits kLargeDevice = {.completions_max = 4 << 20,
                                              .work_requests_max = 32768};

TEST(VerbsWindowTest, PoolStaysBelowTheDefaultLimitOfLockedMemory) {
  for (const int peers : {1, 3, 7, 15, 63}) {
    const auto plan = verbs::PlanFlow(peers, {}, kLargeDevice);
    ASSERT_TRUE(plan.ok());
    EXPECT_LE(plan->PeerBytes() * peers, 6u << 20) << peers;
    EXPECT_GE(plan->PeerBytes() * peers, peers == 1 ? 1u << 20 : 2u << 20) << peers;
    EXPECT_GE(plan->receive.slots, verbs::kSlotsMin);
    EXPECT_GE(plan->send_slots, verbs::kSendSlotsMin);
  }
}

TEST(VerbsWindowTest, WishesAndDeviceLimitsAreKept) {
  TransportOptions options;
  options.receive_buffer_bytes = 4 << 20;
  options.send_buffer_bytes = 1 << 20;
  const auto wished = verbs::PlanFlow(1, options, kLargeDevice);
  ASSERT_TRUE(wished.ok());
  EXPECT_EQ(wished->receive.slots * wished->receive.slot_bytes, 4u << 20);
  EXPECT_EQ((wished->send_slots - verbs::kReservedSendSlots) * wished->receive.slot_bytes,
            1u << 20);
  for (const uint32_t completions : {16u, 20u, 100u}) {
    const auto small = verbs::PlanFlow(1, options, {completions, 64});
    ASSERT_TRUE(small.ok()) << small.status();
    EXPECT_LE(small->PeerCompletions(), completions);
    EXPECT_LE(small->receive_slots(), 64u);
  }
  const auto none = verbs::PlanFlow(2, options, {16, 64});
  EXPECT_EQ(none.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(weir::Message(none.status()), HasSubstr("2 peers need 30 completion entries"));
}

}  // namespace
}  // namespace weir::testing
#endif  // WEIR_HAVE_Verbs
