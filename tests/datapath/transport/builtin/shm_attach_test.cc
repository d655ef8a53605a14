// SPDX-License-Identifier: Apache-2.0
// The agreement on shared memory when the other end misbehaves. A raw peer exchanges messages with
// one Attacher, over a socket pair in place of TCP and over the rendezvous socket.

#include "datapath/transport/builtin/shm/attach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "datapath/base/byte_cursor.h"
#include "datapath/transport/mesh/hello.h"
#include "tests/support/world.h"

namespace weir::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Within;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kJob = 77;
constexpr size_t kRing = 4096;

struct OfferFields {
  uint64_t job = kJob;
  uint32_t rank = 1, world = 2, called = 0, version = kLayoutVersion;
  uint64_t ring_bytes = kRing;
};

Bytes OfferFrame(const OfferFields& fields, const Secret& proof = {}) {
  Bytes payload(64);
  ByteWriter writer(payload);
  writer.Write(fields.job);
  writer.Write(fields.rank);
  writer.Write(fields.world);
  writer.Write(fields.called);
  writer.Write(fields.version);
  writer.Write(fields.ring_bytes);
  writer.Write(proof);
  return mesh::EncodeFrame(FrameType::kHello, 1, payload);
}

Bytes VerdictFrame(uint32_t verdict, const std::string& text = "") {
  Bytes payload(sizeof verdict + text.size());
  ByteWriter writer(payload);
  writer.Write(verdict);
  writer.WriteBytes(std::as_bytes(std::span(text)));
  return mesh::EncodeFrame(FrameType::kHello, 1, payload);
}

// Rank 0 of 2 runs, and the test acts as rank 1.
struct RawPair {
  RawPair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    tcp_of_0 = mesh::UniqueFd(ends[0]);
    tcp_of_1 = mesh::UniqueFd(ends[1]);
    rendezvous = *ListenAtRendezvous(name, 16);
  }
  AttachOptions Options() {
    return {.job = kJob,
            .rank = 0,
            .world = 2,
            .ring_bytes = kRing,
            .rendezvous = &rendezvous,
            .event_fd = event_fd.get(),
            .wake = wake.get()};
  }
  StatusOr<std::vector<AttachResult>> Run(double seconds = 20) {
    Attacher attacher(Options());
    return attacher.Run({{1, "raw", tcp_of_0.get(), "", {}, {}}}, Within(seconds));
  }
  void Verdict(const Bytes& frame) { EXPECT_TRUE(mesh::WriteFrame(tcp_of_1.get(), frame)); }
  // Sends `bytes` and `descriptors` as an offer. Returns the text of the refusal, "" if accepted.
  std::string SendOffer(const Bytes& bytes, const std::vector<int>& descriptors) {
    control = *ConnectToRendezvous(name);
    EXPECT_TRUE(SendHandshake(control.get(), bytes, descriptors).ok());
    for (;;) {
      StatusOr<std::optional<HandshakeMessage>> message = ReceiveHandshake(control.get());
      if (!message.ok()) return weir::Message(message.status());
      if (!message->has_value()) {
        std::this_thread::yield();
        continue;
      }
      const auto header =
          DecodeFrameHeader(std::span<const std::byte>((*message)->bytes).first<72>());
      EXPECT_TRUE(header.ok()) << header.status();
      if (header->type == FrameType::kHello) return "";
      return mesh::PrintableText(std::span((*message)->bytes).subspan(kFrameHeaderBytes));
    }
  }

  const std::string name = NewRendezvousName();
  mesh::UniqueFd rendezvous, control, tcp_of_0, tcp_of_1;
  mesh::UniqueFd event_fd{eventfd(0, EFD_NONBLOCK)}, wake{eventfd(0, EFD_NONBLOCK)};
};

// Another process of this user may know the rendezvous socket and which rank is expected.
TEST(ShmAttachTest, WhereThereIsAKeyWhoAsksProvesThatItIsThePeer) {
  RawPair pair;
  mesh::UniqueFd memory;
  ASSERT_TRUE(Segment::Create(kRing, &memory).ok());
  const mesh::UniqueFd event_fd(eventfd(0, EFD_NONBLOCK));
  const auto secrets = DeriveChannel(JobKey{std::byte{1}}, Nonce(), Nonce(), {}, {});
  ASSERT_TRUE(secrets.ok());
  auto of_0 = MakeFrameChannel(*secrets, false, Protection::kAuthenticated);
  auto of_1 = MakeFrameChannel(*secrets, true, Protection::kAuthenticated);
  ASSERT_TRUE(of_0.ok() && of_1.ok());
  StatusOr<std::vector<AttachResult>> results = Unavailable("still running");
  std::thread running([&] {
    Attacher attacher(pair.Options());
    results =
        attacher.Run({{1, "raw", pair.tcp_of_0.get(), "", &*of_0, secrets->memory}}, Within(20));
  });
  const Bytes asked = OfferFrame({});
  const auto said = std::span(asked).subspan(kFrameHeaderBytes, 32);
  const std::vector<int> descriptors = {memory.get(), event_fd.get()};
  const Secret of_another = *MakeProof(secrets->to_dialer.key, "weir offer", said);
  for (const Secret& proof :
       {Secret{}, of_another, *MakeProof(secrets->memory, "weir offer", {})}) {
    EXPECT_THAT(pair.SendOffer(OfferFrame({}, proof), descriptors),
                HasSubstr("rank 1 did not prove that it is who asks"));
  }
  const Secret proof = *MakeProof(secrets->memory, "weir offer", said);
  EXPECT_EQ(pair.SendOffer(OfferFrame({}, proof), descriptors), "");
  const uint32_t attached = 1, no_staging = 0;
  for (const uint32_t& told : {attached, no_staging}) {
    pair.Verdict(mesh::EncodeFrame(FrameType::kHello, 1, std::as_bytes(std::span(&told, 1)),
                                   of_1->sealer.get()));
  }
  running.join();
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_NE((*results)[0].attachment, nullptr) << (*results)[0].why_not;
}

TEST(ShmAttachTest, AVerdictThatDoesNotVerifyIsRefused) {
  RawPair pair;
  const auto secrets = DeriveChannel(JobKey{std::byte{1}}, Nonce(), Nonce(), {}, {});
  auto of_0 = MakeFrameChannel(*secrets, false, Protection::kAuthenticated);
  Bytes verdict = VerdictFrame(0);
  EncodeFrameHeader(*DecodeFrameHeader(std::span(verdict).first<kFrameHeaderBytes>()),
                    std::span(verdict).first<kFrameHeaderBytes>(), FrameCheck::kTag);
  verdict.resize(verdict.size() + kFrameTagBytes);
  pair.Verdict(verdict);
  Attacher attacher(pair.Options());
  const auto results =
      attacher.Run({{1, "raw", pair.tcp_of_0.get(), "", &*of_0, secrets->memory}}, Within(20));
  EXPECT_EQ(results.status().code(), StatusCode::kDataLoss) << results.status();
  EXPECT_THAT(weir::Message(results.status()),
              AllOf(HasSubstr("rank 1 (raw)"), HasSubstr("does not verify")));
}

TEST(ShmAttachTest, BadOffersAreRefusedWithTheReasonAndAGoodOneStillSucceeds) {
  RawPair pair;
  mesh::UniqueFd memory, other;
  ASSERT_TRUE(Segment::Create(kRing, &memory).ok());
  const mesh::UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096 + 2 * kRing), 0);
  const mesh::UniqueFd event_fd(eventfd(0, EFD_NONBLOCK));
  Bytes damaged = OfferFrame({});
  damaged.back() ^= std::byte{1};
  const mesh::UniqueFd short_staging(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(short_staging.get(), 4096), 0);
  const mesh::UniqueFd unsealed_staging(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed_staging.get(), kStagingBytes), 0);
  const std::vector<int> good = {memory.get(), event_fd.get()};
  struct Case {
    Bytes bytes;
    std::vector<int> descriptors;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {Bytes(10), good, "a message of 10 bytes"},
      {Bytes(200), good, "magic"},
      {damaged, good, "a corrupt message"},
      {OfferFrame({.job = 1}), good, "found job 1"},
      {OfferFrame({.world = 3}), good, "of 3"},
      {OfferFrame({.called = 4}), good, "found job 77, rank 4"},
      {OfferFrame({.version = 9}), good,
       StrCat("memory layout: expected ", kLayoutVersion, ", found 9")},
      {OfferFrame({.rank = 5}), good, "rank 5 is not awaited"},
      {OfferFrame({.ring_bytes = 8192}), good, "expected 20480 bytes, found 12288"},
      {OfferFrame({}), {memory.get()}, "expected a hello with memory and an eventfd"},
      {OfferFrame({}), {}, "expected a hello with memory and an eventfd"},
      {OfferFrame({}), {unsealed.get(), event_fd.get()}, "sealed"},
      {OfferFrame({}), {event_fd.get(), event_fd.get()}, "shared memory"},
      {OfferFrame({}), {memory.get(), memory.get()}, "expected an eventfd"},
      {OfferFrame({}),
       {memory.get(), event_fd.get(), short_staging.get()},
       StrCat("expected ", kStagingBytes, " bytes, found 4096")},
      {OfferFrame({}), {memory.get(), event_fd.get(), unsealed_staging.get()}, "sealed"},
      {OfferFrame({}), {memory.get(), event_fd.get(), event_fd.get()}, "shared memory"},
      {OfferFrame({}),
       {memory.get(), event_fd.get(), event_fd.get(), event_fd.get()},
       "expected a hello with"},
      {mesh::EncodeFrame(FrameType::kHello, 1, Bytes(31)), good, "truncated"},
  };
  std::thread raw([&] {
    for (const Case& bad : cases) {
      EXPECT_THAT(pair.SendOffer(bad.bytes, bad.descriptors), HasSubstr(bad.expected));
    }
    EXPECT_EQ(pair.SendOffer(OfferFrame({}), good), "");
    pair.Verdict(VerdictFrame(1));
    pair.Verdict(VerdictFrame(0));  // there are no staging buffers
  });
  auto results = pair.Run();
  raw.join();
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_NE((*results)[0].attachment, nullptr);
  EXPECT_TRUE((*results)[0].attachment->segment);
  EXPECT_FALSE((*results)[0].attachment->created);
}

// The peer's messages about staging buffers after the pair is attached, with or without a buffer of
// its own.
TEST(ShmAttachTest, StagingBuffersAreUsedWhereBothSayThatTheyReachAll) {
  const std::string reason = "rank 7 is missing";
  struct Case {
    Bytes said;
    bool own = true, offered = true;
    StatusCode code = StatusCode::kOk;
    std::string expected = "";
    bool all = false;
  };
  const std::vector<Case> cases = {
      {.said = VerdictFrame(1), .all = true},
      {.said = VerdictFrame(0)},
      {.said = VerdictFrame(0), .own = false},
      {.said = VerdictFrame(0), .offered = false},
      {.said = VerdictFrame(1), .offered = false},  // the claim is not believed
      {.said = VerdictFrame(2), .code = StatusCode::kDataLoss, .expected = "found 2"},
      {.said = mesh::EncodeFrame(FrameType::kHello, 1, {}),
       .code = StatusCode::kDataLoss,
       .expected = "truncated"},
      {.said = Bytes(72), .code = StatusCode::kDataLoss, .expected = "malformed"},
      {.said = mesh::EncodeFrame(FrameType::kAbort, 1, std::as_bytes(std::span(reason))),
       .code = StatusCode::kUnavailable,
       .expected = "rank 1 reported: rank 7 is missing"},
      {.said = {}, .code = StatusCode::kUnavailable, .expected = "rank 1 (raw) closed"},
  };
  for (const Case& c : cases) {
    RawPair pair;
    mesh::UniqueFd memory, staging, own_staging;
    ASSERT_TRUE(Segment::Create(kRing, &memory).ok());
    const auto kRead = SealedMemory::Peers::kRead;
    ASSERT_TRUE(SealedMemory::Create(kStagingBytes, kRead, &staging).ok());
    ASSERT_TRUE(SealedMemory::Create(kStagingBytes, kRead, &own_staging).ok());
    AttachOptions options = pair.Options();
    if (c.own) options.staging = own_staging.get();
    const mesh::UniqueFd event_fd(eventfd(0, EFD_NONBLOCK));
    std::thread raw([&] {
      std::vector<int> descriptors = {memory.get(), event_fd.get()};
      if (c.offered) descriptors.push_back(staging.get());
      EXPECT_EQ(pair.SendOffer(OfferFrame({}), descriptors), "");
      pair.Verdict(VerdictFrame(1));
      if (c.said.empty()) {
        pair.tcp_of_1 = mesh::UniqueFd();
      } else {
        pair.Verdict(c.said);
      }
    });
    Attacher attacher(options);
    const auto results = attacher.Run({{1, "raw", pair.tcp_of_0.get(), ""}}, Within(20));
    raw.join();
    EXPECT_EQ(results.status().code(), c.code) << results.status();
    EXPECT_THAT(weir::Message(results.status()), HasSubstr(c.expected));
    EXPECT_EQ(results.ok() && attacher.all_staging(), c.all) << c.expected;
    if (!results.ok()) continue;
    EXPECT_EQ(static_cast<bool>((*results)[0].attachment->staging), c.offered);
  }
}

TEST(SealedMemoryTest, WhoGetsItToReadCannotMapItForWriting) {
  mesh::UniqueFd fd;
  auto made = SealedMemory::Create(8192, SealedMemory::Peers::kRead, &fd);
  ASSERT_TRUE(made.ok()) << made.status();
  made->bytes()[8191] = std::byte{7};
  const auto read = SealedMemory::Map(fd.get(), 8192, SealedMemory::Peers::kRead);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->bytes()[8191], std::byte{7});
  EXPECT_EQ(SealedMemory::Map(fd.get(), 8192, SealedMemory::Peers::kReadAndWrite).status().code(),
            StatusCode::kUnavailable);
  EXPECT_NE(ftruncate(fd.get(), 4096), 0);
  EXPECT_NE(ftruncate(fd.get(), 16384), 0);
  made->bytes()[0] = std::byte{9};  // the process that made it can still write
  EXPECT_EQ(read->bytes()[0], std::byte{9});
}

TEST(ShmAttachTest, APairThatFailsStaysOnTcpOnBothEnds) {
  RawPair pair;
  pair.Verdict(VerdictFrame(0, "memfd: not\npermitted"));
  auto results = pair.Run();
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].attachment, nullptr);
  EXPECT_THAT((*results)[0].why_not, HasSubstr("memfd: not?permitted"));
}

TEST(ShmAttachTest, TheDialerOfAMissingRendezvousSocketSaysSo) {
  RawPair pair;
  AttachOptions options = pair.Options();
  options.rank = 1;
  Attacher attacher(options);
  auto results = attacher.Run({{0, "raw", pair.tcp_of_0.get(), NewRendezvousName()}}, Within(20));
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT((*results)[0].why_not, HasSubstr("cannot reach its unix socket"));
  mesh::HandshakeReader verdict;
  const auto complete = verdict.Read(pair.tcp_of_1.get());
  ASSERT_TRUE(complete.ok() && *complete);
  EXPECT_EQ(verdict.payload()[0], std::byte{0});
  EXPECT_THAT(verdict.text(), HasSubstr("cannot reach its unix socket"));
}

TEST(ShmAttachTest, FailuresOfThePeerAreNamed) {
  const std::string reason = "rank 7 is missing";
  const std::vector<std::tuple<Bytes, StatusCode, std::string>> cases = {
      {VerdictFrame(1), StatusCode::kDataLoss, "verdict 1 on shared memory that was never offered"},
      {VerdictFrame(2), StatusCode::kDataLoss, "verdict 2"},
      {mesh::EncodeFrame(FrameType::kHello, 1, {}), StatusCode::kDataLoss, "truncated"},
      {Bytes(72), StatusCode::kDataLoss, "malformed"},
      {mesh::EncodeFrame(FrameType::kAbort, 1, std::as_bytes(std::span(reason))),
       StatusCode::kUnavailable, "rank 1 reported: rank 7 is missing"},
      {mesh::EncodeFrame(FrameType::kAbort, 1, {}), StatusCode::kUnavailable,
       "rank 1 (raw) closed the connection"},
  };
  for (const auto& [bytes, code, expected] : cases) {
    RawPair pair;
    pair.Verdict(bytes);
    const Status status = pair.Run().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(weir::Message(status), AllOf(HasSubstr("rank 1"), HasSubstr(expected)));
  }
  RawPair closed;
  closed.tcp_of_1 = mesh::UniqueFd();
  EXPECT_THAT(weir::Message(closed.Run().status()), HasSubstr("rank 1 (raw) closed"));
  RawPair silent;
  const Status status = silent.Run(0.05).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(weir::Message(status), HasSubstr("rank 1 (raw)"));
  RawPair interrupted;
  const uint64_t one = 1;
  ASSERT_EQ(write(interrupted.wake.get(), &one, sizeof one), 8);
  EXPECT_EQ(interrupted.Run().status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace weir::shm
