// SPDX-License-Identifier: Apache-2.0
// The tcp transport with peers that send arbitrary bytes before and after the handshake.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "datapath/base/log.h"
#include "datapath/base/random.h"
#include "tests/datapath/transport/builtin/raw_peer.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kJob = 77;
// A raw peer that dials 127.0.0.2 has the address 127.0.0.1, so it counts as on another host.
std::unique_ptr<Transport> NewTcp(int rank, int world, const char* listen = "127.0.0.2:0") {
  TransportOptions options;
  options.job = kJob;
  options.rank = rank;
  options.world = world;
  options.listen = listen;
  auto transport = (*Transports().Find("tcp"))->Create(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return std::move(*transport);
}

// Rank 0 of two, connected to a raw rank 1.
struct HalfRawWorld {
  std::unique_ptr<Transport> rank0;
  RawPeer raw;
  Status status;

  explicit HalfRawWorld(const char* listen = "127.0.0.2:0")
      : rank0(NewTcp(0, 2, listen)), raw(rank0->address()) {
    std::thread connecting([this] {
      status = rank0->Connect({rank0->address(), "raw"}, Within(kPatience));
    });
    const StatusOr<FrameHeader> answer = raw.Introduce({kJob, 1, 2, 0});
    EXPECT_TRUE(answer.ok()) << answer.status();
    connecting.join();
    EXPECT_TRUE(status.ok()) << status;
  }

  Status Receive(std::span<std::byte> buffer, double seconds = kPatience) {
    const StatusOr<Ticket> ticket = rank0->PostReceive(1, buffer);
    return ticket.ok() ? rank0->Wait(*ticket, Within(seconds)).status() : ticket.status();
  }
};

// ---- before the handshake

class TcpStrangerTest : public ::testing::Test {
 protected:
  // Lets `stranger` connect to rank 0 of two while it waits for rank 1, then lets the true rank 1
  // connect.
  template <typename Stranger>
  void WithStranger(Stranger stranger) {
    SetLog(true);
    auto rank0 = NewTcp(0, 2), rank1 = NewTcp(1, 2);
    const std::vector<TransportAddress> addresses = {rank0->address(), rank1->address()};
    Status status0;
    std::thread connecting([&] { status0 = rank0->Connect(addresses, Within(kPatience)); });
    {
      RawPeer raw(rank0->address());
      EXPECT_TRUE(raw.connected());
      stranger(raw);
    }
    const Status status1 = rank1->Connect(addresses, Within(kPatience));
    connecting.join();
    EXPECT_TRUE(status0.ok()) << status0;
    EXPECT_TRUE(status1.ok()) << status1;
    SetLog(false);
  }

  void ExpectRefused(const mesh::Hello& hello, const std::string& reason) {
    WithStranger([&](RawPeer& raw) {
      std::string text;
      const auto answer = raw.Introduce(hello, &text);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->type, FrameType::kAbort);
      EXPECT_THAT(text, HasSubstr(reason));
    });
  }

  void ExpectBytesRefused(const Bytes& bytes, const std::string& reason) {
    WithStranger([&](RawPeer& raw) {
      ASSERT_TRUE(raw.Send(bytes));
      std::string text;
      const auto answer = raw.ReadFrame(&text);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->type, FrameType::kAbort);
      EXPECT_THAT(text, HasSubstr(reason));
    });
  }

 private:
  static void SetLog(bool quiet) {
    if (quiet) {
      SetLogSink([](LogLevel, std::string_view, std::string_view) {});
    } else {
      SetLogSink({});
    }
  }
};

TEST_F(TcpStrangerTest, AnotherJobIsRefused) {
  ExpectRefused({78, 1, 2, 0}, "job: expected 77, found 78");
}
TEST_F(TcpStrangerTest, AnotherWorldIsRefused) {
  ExpectRefused({kJob, 1, 3, 0}, "world: expected 2, found 3");
}
TEST_F(TcpStrangerTest, WrongNumberIsRefused) {
  ExpectRefused({kJob, 1, 2, 5}, "called rank: expected 0, found 5");
}
TEST_F(TcpStrangerTest, ImpossibleRankIsRefused) {
  ExpectRefused({kJob, 2, 2, 0}, "found 2");
  ExpectRefused({kJob, 0, 2, 0}, "found 0");
}
TEST_F(TcpStrangerTest, GarbageIsRefused) {
  ExpectBytesRefused(Bytes(kFrameHeaderBytes, std::byte{'G'}), "frame magic");
}
TEST_F(TcpStrangerTest, AnotherProtocolVersionIsRefused) {
  Bytes bytes = mesh::EncodeHello({kJob, 1, 2, 0});
  bytes[4] = std::byte{9};
  ExpectBytesRefused(bytes, "frame version: expected 3, found 9");
}
TEST_F(TcpStrangerTest, DataBeforeHelloIsRefused) {
  ExpectBytesRefused(DataFrame(1, Bytes(8)), "data frame before its hello");
}
TEST_F(TcpStrangerTest, HelloOfWrongSizeIsRefused) {
  ExpectBytesRefused(mesh::EncodeFrame(FrameType::kHello, 1, Bytes(23)),
                     "expected 64 bytes, 16, 32 or 48 more, found 23");
  ExpectBytesRefused(mesh::EncodeFrame(FrameType::kHello, 1, Bytes(3000)), "found 3000");
}
TEST_F(TcpStrangerTest, CorruptHelloIsRefused) {
  Bytes bytes = mesh::EncodeHello({kJob, 1, 2, 0});
  bytes.back() ^= std::byte{1};
  ExpectBytesRefused(bytes, "corrupt handshake payload");
}
TEST_F(TcpStrangerTest, SilentAndVanishingStrangersDoNoHarm) {
  WithStranger([](RawPeer&) {});
  WithStranger([](RawPeer& raw) { raw.Send(Bytes(10)); });
  WithStranger([](RawPeer& raw) { raw.Reset(); });
}

TEST_F(TcpStrangerTest, SecondLivingRankOfTheSameNumberIsRefused) {
  auto rank0 = NewTcp(0, 3), rank2 = NewTcp(2, 3);
  SetLogSink([](LogLevel, std::string_view, std::string_view) {});
  Status status;
  std::thread connecting([&] {
    status = rank0->Connect({rank0->address(), "raw", rank2->address()}, Within(0.5));
  });
  RawPeer first(rank0->address()), second(rank0->address());
  EXPECT_EQ(first.Introduce({kJob, 1, 3, 0})->type, FrameType::kHello);
  std::string text;
  EXPECT_EQ(second.Introduce({kJob, 1, 3, 0}, &text)->type, FrameType::kAbort);
  EXPECT_THAT(text, HasSubstr("rank 1 is already connected from 127.0.0.1:"));
  connecting.join();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 2 ("), HasSubstr("already connected")));
  SetLogSink({});
}

TEST_F(TcpStrangerTest, RestartedRankReplacesItsDeadConnection) {
  auto rank0 = NewTcp(0, 3);
  Status status;
  std::thread connecting([&] {
    status = rank0->Connect({rank0->address(), "raw", "raw"}, Within(kPatience));
  });
  RawPeer first(rank0->address());
  EXPECT_EQ(first.Introduce({kJob, 1, 3, 0})->type, FrameType::kHello);
  first.Close();
  RawPeer second(rank0->address()), third(rank0->address());
  EXPECT_EQ(second.Introduce({kJob, 1, 3, 0})->type, FrameType::kHello);
  EXPECT_EQ(third.Introduce({kJob, 2, 3, 0})->type, FrameType::kHello);
  connecting.join();
  EXPECT_TRUE(status.ok()) << status;
}

// ---- after the handshake

TEST(TcpHostilePeerTest, MalformedHeaderIsDataLossThatNamesThePeer) {
  constexpr uint64_t kSeed = 4711;
  Random random(kSeed);
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " mutation " << i);
    HalfRawWorld world;
    Bytes frame = DataFrame(1, Bytes(16));
    frame[random.Below(kFrameHeaderBytes)] ^= static_cast<std::byte>(1 + random.Below(255));
    ASSERT_TRUE(world.raw.Send(frame));
    Bytes buffer(1024);
    const Status status = world.Receive(buffer);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_THAT(Message(status), HasSubstr("rank 1 (raw) sent a malformed frame"));
  }
}

TEST(TcpHostilePeerTest, EveryTruncationEndsInAClosedConnection) {
  const Bytes frame = DataFrame(1, Bytes(20000));
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{71}, size_t{72}, size_t{73}, size_t{9000}, frame.size() - 1}) {
    HalfRawWorld world;
    ASSERT_TRUE(world.raw.Send(std::span(frame).first(size)));
    world.raw.Close();
    Bytes buffer(20000);
    const Status status = world.Receive(buffer);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), HasSubstr("rank 1 (raw) closed the connection"));
  }
}

TEST(TcpHostilePeerTest, FrameOneByteAtATimeArrives) {
  HalfRawWorld world;
  Bytes payload(200);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i);
  std::thread sender([&] {
    for (const std::byte byte : DataFrame(1, payload)) EXPECT_TRUE(world.raw.Send({&byte, 1}));
  });
  Bytes buffer(200);
  EXPECT_TRUE(world.Receive(buffer).ok());
  EXPECT_EQ(buffer, payload);
  sender.join();
}

TEST(TcpHostilePeerTest, LyingFramesAreNamed) {
  FrameHeader oversize;
  oversize.source_rank = 1;
  oversize.payload_bytes = kFramePayloadBytesMax;
  Bytes claim(kFrameHeaderBytes);
  EncodeFrameHeader(oversize,
                    std::span<std::byte, kFrameHeaderBytes>(claim.data(), kFrameHeaderBytes));
  Bytes after_shutdown_notice = mesh::EncodeFrame(FrameType::kAbort, 1, {});
  const Bytes more = DataFrame(1, Bytes(4));
  after_shutdown_notice.insert(after_shutdown_notice.end(), more.begin(), more.end());
  Bytes corrupt_abort = mesh::EncodeFrame(FrameType::kAbort, 1, Bytes(10));
  corrupt_abort.back() ^= std::byte{1};
  const std::vector<std::pair<Bytes, std::string>> cases = {
      {claim, "1073741824 bytes"},
      {DataFrame(0, Bytes(4)), "claims to be from rank 0"},
      {mesh::EncodeHello({kJob, 1, 2, 0}), "a second hello"},
      {after_shutdown_notice, "a frame after its shutdown notice"},
      {corrupt_abort, "a corrupt abort frame"},
      {mesh::EncodeFrame(FrameType::kAbort, 1, Bytes(5000)), "abort text of 5000 bytes"},
  };
  for (const auto& [bytes, expected] : cases) {
    HalfRawWorld world;
    ASSERT_TRUE(world.raw.Send(bytes));
    Bytes buffer(64);
    const Status status = world.Receive(buffer);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1 (raw) sent "), HasSubstr(expected)));
  }
}

// This holds for all addresses, because there may be a proxy even between two processes of one
// host.
TEST(TcpHostilePeerTest, EveryPayloadHasAChecksum) {
  for (const char* listen : {"127.0.0.2:0", "127.0.0.1:0"}) {
    HalfRawWorld world(listen);
    const Bytes payload(3000, std::byte{7});
    FrameHeader header;
    header.flags = kFlagNonFinite;
    const StatusOr<Ticket> sent = world.rank0->PostSend(1, header, payload);
    EXPECT_TRUE(world.rank0->Wait(*sent, Within(kPatience)).ok());
    const StatusOr<FrameHeader> data = world.raw.ReadFrame();
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->flags, kFlagNonFinite);
    EXPECT_EQ(data->payload_checksum, Checksum(payload));
  }
}

TEST(TcpHostilePeerTest, AFrameThatSaysItHasNoChecksumIsCheckedAllTheSame) {
  for (const char* listen : {"127.0.0.2:0", "127.0.0.1:0"}) {
    HalfRawWorld world(listen);
    FrameHeader header;
    header.source_rank = 1;
    header.flags = 2;  // once meant that there is none
    header.payload_bytes = 3000;
    Bytes frame(kFrameHeaderBytes);
    EncodeFrameHeader(header,
                      std::span<std::byte, kFrameHeaderBytes>(frame.data(), kFrameHeaderBytes));
    frame.insert(frame.end(), 3000, std::byte{7});
    ASSERT_TRUE(world.raw.Send(frame));
    Bytes buffer(3000);
    const Status status = world.Receive(buffer);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_THAT(Message(status), HasSubstr("rank 1 (raw) sent a corrupt payload"));
  }
}

TEST(TcpHostilePeerTest, SurplusDataIsLeftInTheSocketNotInOurMemory) {
  HalfRawWorld world;
  const Bytes frame = DataFrame(1, Bytes(1 << 20));
  std::thread sender([&] {
    for (int i = 0; i < 64 && world.raw.Send(frame); ++i) {
    }
  });
  Bytes buffer(1 << 20);
  EXPECT_TRUE(world.Receive(buffer).ok());
  EXPECT_LT(world.rank0->Samples()[0].bytes_received, 40u << 20);
  world.rank0.reset();  // the sender's next byte meets a closed socket
  sender.join();
}

TEST(TcpHostilePeerTest, ResetIsADeath) {
  HalfRawWorld world;
  world.raw.Reset();
  Bytes buffer(8);
  const Status status = world.Receive(buffer);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), HasSubstr("rank 1 (raw) closed the connection"));
}

TEST(TcpHostilePeerTest, DataBeforeShutdownNoticeAndResetIsStillDelivered) {
  HalfRawWorld world;
  const Bytes payload(3000, std::byte{7});
  Bytes bytes = DataFrame(1, payload);
  const Bytes shutdown_notice = mesh::EncodeFrame(FrameType::kAbort, 1, {});
  bytes.insert(bytes.end(), shutdown_notice.begin(), shutdown_notice.end());
  // Unread input makes the close below a reset.
  const Bytes unread(10);
  const StatusOr<Ticket> sent = world.rank0->PostSend(1, {}, unread);
  EXPECT_TRUE(world.rank0->Wait(*sent, Within(kPatience)).ok());
  ASSERT_TRUE(world.raw.Send(bytes));
  world.raw.Close();
  Bytes buffer(3000);
  EXPECT_TRUE(world.Receive(buffer).ok());
  EXPECT_EQ(buffer, payload);
  EXPECT_EQ(world.Receive(buffer).code(), StatusCode::kUnavailable);
}

TEST(TcpHostilePeerTest, ReasonBehindUnreadDataIsFound) {
  HalfRawWorld world;
  Bytes bytes = DataFrame(1, Bytes(40000));  // no receive will be posted for it
  const std::string reason = "out of memory";
  const Bytes abort = mesh::EncodeFrame(FrameType::kAbort, 1, std::as_bytes(std::span(reason)));
  bytes.insert(bytes.end(), abort.begin(), abort.end());
  ASSERT_TRUE(world.raw.Send(bytes));
  world.raw.Close();
  const Bytes payload(64 << 20);
  const StatusOr<Ticket> sent = world.rank0->PostSend(1, {}, payload);
  const Status status =
      sent.ok() ? world.rank0->Wait(*sent, Within(kPatience)).status() : sent.status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), HasSubstr("rank 1 reported: out of memory"));
}

TEST(TcpHostilePeerTest, ReasonOfAPeerIsMadePrintable) {
  HalfRawWorld world;
  const std::string reason = "first\nsecond\x1b[31m\xff end";
  ASSERT_TRUE(
      world.raw.Send(mesh::EncodeFrame(FrameType::kAbort, 1, std::as_bytes(std::span(reason)))));
  Bytes buffer(8);
  EXPECT_THAT(Message(world.Receive(buffer)), HasSubstr("reported: first?second?[31m? end"));
}

TEST(TcpHostilePeerTest, PeerThatNeverReadsEndsInADeadline) {
  HalfRawWorld world;
  const Bytes payload(64 << 20);
  const StatusOr<Ticket> sent = world.rank0->PostSend(1, {}, payload);
  ASSERT_TRUE(sent.ok()) << sent.status();
  const Status status = world.rank0->Wait(*sent, Within(0.2)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status), HasSubstr("rank 1 (raw) takes no more data"));
  // The shutdown notice cannot be sent either, but closing ends within its bound.
  const TimePoint start = RealClock().Now();
  world.rank0.reset();
  EXPECT_LT(ToSeconds(RealClock().Now() - start), 5);
}

// An abort waits for 0.2 s at most until a peer has taken it. On a busy machine a peer may not run
// for as long, so it gets a few attempts.
TEST(TcpHostilePeerTest, AbortReachesAPeerInTheMiddleOfAFrame) {
  bool told = false;
  for (int attempt = 0; attempt < 10 && !told; ++attempt) {
    HalfRawWorld world;
    const Bytes payload(8 << 20);
    const StatusOr<Ticket> sent = world.rank0->PostSend(1, {}, payload);
    ASSERT_TRUE(sent.ok());
    std::thread reader([&] {
      const auto frame = world.raw.ReadFrame();
      if (!frame.ok()) return;
      EXPECT_EQ(frame->payload_bytes, payload.size());
      std::string text;
      const auto last = world.raw.ReadFrame(&text);
      if (!last.ok()) return;
      EXPECT_EQ(last->type, FrameType::kAbort);
      EXPECT_EQ(text, "plan mismatch");
      told = true;
    });
    world.rank0->Abort("plan mismatch");
    reader.join();
  }
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace weir::testing
