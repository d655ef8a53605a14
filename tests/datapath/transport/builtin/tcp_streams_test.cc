// SPDX-License-Identifier: Apache-2.0
// How the bytes of a pair of ranks travel over TCP: several connections, sends without a copy,
// pacing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "datapath/base/random.h"
#include "datapath/transport/builtin/tcp/striped_stream.h"
#include "datapath/transport/mesh/connection.h"
#include "tests/datapath/transport/builtin/raw_peer.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using mesh::UniqueFd;
using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr size_t kPiece = tcp::StripedStream::kPieceBytes;

const TransportFactory& StreamingTcp() { return **Transports().Find("tcp"); }

// Two ends of `count` stream sockets.
struct Lanes {
  std::vector<UniqueFd> ends[2];
  explicit Lanes(int count) {
    for (int i = 0; i < count; ++i) {
      int fds[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      for (int end : {0, 1}) ends[end].emplace_back(fds[end]);
    }
  }
  tcp::StripedStream Stream(int end) {
    std::vector<std::unique_ptr<tcp::SocketStream>> lanes;
    for (UniqueFd& fd : ends[end]) {
      lanes.push_back(std::make_unique<tcp::SocketStream>(std::move(fd), 0));
    }
    return tcp::StripedStream(std::move(lanes));
  }
};

iovec Part(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

ssize_t WriteTo(mesh::ByteStream& stream, std::span<const std::byte> bytes) {
  const iovec part = Part(bytes);
  return stream.Write(std::span(&part, 1));
}

ssize_t ReadFrom(mesh::ByteStream& stream, std::span<std::byte> bytes) {
  const iovec part = Part(bytes);
  return stream.Read(std::span(&part, 1));
}

// A connection from `from` to 127.0.0.1, watched at the end that accepted it.
class WatchedConnection {
 public:
  explicit WatchedConnection(const char* from, int receive_buffer_bytes = 0) {
    TransportOptions options;
    options.receive_buffer_bytes = receive_buffer_bytes;
    TransportAddress bound;
    const auto listener = mesh::Listen(options, 1, &bound);
    EXPECT_TRUE(listener.ok()) << listener.status();
    dialer_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto source = mesh::ResolveAddress(StrCat(from, ":0")), to = mesh::ResolveAddress(bound);
    EXPECT_EQ(bind(dialer_.get(), source->get(), source->size), 0);
    EXPECT_EQ(connect(dialer_.get(), to->get(), to->size), 0);
    pollfd waits = {listener->get(), POLLIN, 0};
    EXPECT_EQ(poll(&waits, 1, 10'000), 1);
    stream_ = std::make_unique<tcp::SocketStream>(
        UniqueFd(accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)), 0);
    EXPECT_TRUE(stream_->Register(*events_, 0).ok());
    (void)TellsWithin(std::chrono::milliseconds(0));  // that there is room
  }
  mesh::ByteStream& stream() { return *stream_; }
  void Send(size_t bytes) {
    const Bytes some(bytes);
    EXPECT_EQ(send(dialer_.get(), some.data(), bytes, 0), static_cast<ssize_t>(bytes));
  }
  void Hangup() { dialer_ = UniqueFd(); }
  bool TellsWithin(Duration timeout) {
    const TimePoint end = RealClock().Now() + timeout;
    for (;;) {  // there are events of other kinds
      const auto news = events_->Wait(std::max(end - RealClock().Now(), Duration(0)));
      EXPECT_TRUE(news.ok());
      for (const mesh::Event& event : *news) {
        if ((event.bits & EPOLLIN) != 0) return true;
      }
      if (RealClock().Now() >= end) return false;
    }
  }
  /// How many bytes there were.
  size_t ReadAll() {
    Bytes buffer(1 << 20);
    size_t bytes = 0;
    ssize_t n;
    while ((n = ReadFrom(*stream_, buffer)) > 0) bytes += static_cast<size_t>(n);
    return bytes;
  }

 private:
  UniqueFd dialer_;
  std::unique_ptr<tcp::SocketStream> stream_;
  std::unique_ptr<mesh::EventSet> events_ = *mesh::MakeEventSet();
};

constexpr Duration kSoon = std::chrono::milliseconds(50), kSurely = std::chrono::seconds(10);

TEST(SocketStreamTest, OfALongPayloadFromAnotherHostItTellsWhenItIsThere) {
  WatchedConnection connection("127.0.0.2");
  connection.stream().Expect(100'000);
  connection.Send(50'000);
  EXPECT_FALSE(connection.TellsWithin(kSoon));
  connection.Send(50'000);
  EXPECT_TRUE(connection.TellsWithin(kSurely));
  connection.ReadAll();

  connection.Send(10);
  EXPECT_FALSE(connection.TellsWithin(kSoon));
  connection.stream().Expect(1);  // what is there already counts
  EXPECT_TRUE(connection.TellsWithin(kSurely));
  connection.ReadAll();
  connection.Send(1);
  EXPECT_TRUE(connection.TellsWithin(kSurely));
  connection.ReadAll();

  connection.stream().Expect(100'000);
  connection.Send(10);
  connection.Hangup();
  EXPECT_TRUE(connection.TellsWithin(kSurely));
}

// A payload larger than a socket's buffer must not wait for bytes for which there is no room.
TEST(SocketStreamTest, WhatASocketCannotHoldIsToldOfEarlier) {
  for (const int buffer_bytes : {0, 32768}) {
    WatchedConnection connection("127.0.0.2", buffer_bytes);
    connection.stream().Expect(size_t{64} << 20);
    constexpr size_t kSent = 8 << 20;
    std::thread sender([&] { connection.Send(kSent); });
    size_t read = 0;
    while (read < kSent - (256 << 10) && connection.TellsWithin(kSurely)) {
      read += connection.ReadAll();
    }
    connection.stream().Expect(1);
    while (read < kSent && connection.TellsWithin(kSurely)) read += connection.ReadAll();
    EXPECT_EQ(read, kSent) << buffer_bytes;
    connection.ReadAll();
    sender.join();
  }
}

TEST(SocketStreamTest, WithinAHostItTellsOfEveryByte) {
  WatchedConnection connection("127.0.0.1");
  connection.stream().Expect(100'000);
  connection.Send(10);
  EXPECT_TRUE(connection.TellsWithin(kSurely));
}

TEST(StripedStreamTest, PieceByPieceGoesToOneConnectionAfterTheOther) {
  Lanes lanes(3);
  tcp::StripedStream stream = lanes.Stream(0);
  const Bytes sent = Pattern(4 * kPiece + 17, 1);
  Bytes lane[3];
  Bytes buffer(1 << 16);
  for (size_t at = 0; at < sent.size();) {
    const ssize_t n = WriteTo(stream, std::span(sent).subspan(at));
    if (n > 0) at += static_cast<size_t>(n);
    size_t drained = 0;
    for (int i = 0; i < 3; ++i) {
      ssize_t got;
      while ((got = recv(lanes.ends[1][i].get(), buffer.data(), buffer.size(), 0)) > 0) {
        lane[i].insert(lane[i].end(), buffer.begin(), buffer.begin() + got);
        drained += static_cast<size_t>(got);
      }
    }
    ASSERT_TRUE(n > 0 || drained > 0) << n;
  }
  const auto pieces = [&](std::initializer_list<size_t> numbers) {
    Bytes all;
    for (const size_t i : numbers) {
      const auto begin = sent.begin() + static_cast<ptrdiff_t>(i * kPiece);
      all.insert(all.end(), begin,
                 begin + static_cast<ptrdiff_t>(std::min(kPiece, sent.size() - i * kPiece)));
    }
    return all;
  };
  EXPECT_EQ(lane[0], pieces({0, 3}));
  EXPECT_EQ(lane[1], pieces({1, 4}));
  EXPECT_EQ(lane[2], pieces({2}));
}

TEST(StripedStreamTest, WhateverTheSizesBytesComeInOrder) {
  constexpr uint64_t kSeed = 5;
  Lanes lanes(4);
  tcp::StripedStream writer = lanes.Stream(0), reader = lanes.Stream(1);
  const Bytes sent = Pattern(3 << 20, kSeed);
  Bytes received;
  Random random(kSeed);
  size_t at = 0;
  for (int idle = 0; received.size() < sent.size() && idle < 4;) {
    const size_t size = std::min<size_t>(1 + random.Below(600000), sent.size() - at);
    const size_t cut = size / 3;  // two parts, as a header and its payload
    const iovec parts[] = {Part(std::span(sent).subspan(at, cut)),
                           Part(std::span(sent).subspan(at + cut, size - cut))};
    const ssize_t wrote = size == 0 ? -EAGAIN : writer.Write(parts);
    if (wrote > 0) at += static_cast<size_t>(wrote);
    Bytes buffer(1 + random.Below(600000));
    const ssize_t read = ReadFrom(reader, buffer);
    if (read > 0) received.insert(received.end(), buffer.begin(), buffer.begin() + read);
    idle = wrote > 0 || read > 0 ? 0 : idle + 1;
  }
  EXPECT_EQ(received, sent);
}

TEST(StripedStreamTest, EndsWhereTheConnectionOfTheNextByteEnds) {
  Lanes lanes(2);
  tcp::StripedStream reader = lanes.Stream(1);
  const Bytes sent = Pattern(kPiece, 3), later = Pattern(10, 4);
  for (size_t at = 0; at < sent.size();) {
    const ssize_t n = send(lanes.ends[0][0].get(), sent.data() + at, sent.size() - at, 0);
    ASSERT_GT(n, 0);
    at += static_cast<size_t>(n);
  }
  ASSERT_EQ(send(lanes.ends[0][1].get(), later.data(), later.size(), 0), 10);
  lanes.ends[0][1] = UniqueFd();
  // One end has come, but the other connection may bring more.
  EXPECT_EQ(reader.OnEvents(EPOLLRDHUP) & EPOLLRDHUP, 0u);
  Bytes buffer(2 * kPiece);
  EXPECT_EQ(ReadFrom(reader, buffer), static_cast<ssize_t>(kPiece + 10));
  EXPECT_TRUE(reader.Readable());  // the end follows, and no other event reports it
  EXPECT_EQ(ReadFrom(reader, buffer), 0);
  lanes.ends[0][0] = UniqueFd();
  EXPECT_NE(reader.OnEvents(EPOLLRDHUP) & EPOLLRDHUP, 0u);
}

// ---- several connections between transports

TransportOptions WithConnections(int rank, int world, int connections) {
  TransportOptions options;
  options.job = 91;
  options.rank = rank;
  options.world = world;
  options.connections = connections;
  return options;
}

TEST(TcpConnectionsTest, CountsOutOfRangeAreRefused) {
  for (const int count : {0, -1, kConnectionsMax + 1}) {
    const Status status = StreamingTcp().Create(WithConnections(0, 2, count)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("connections: expected 1..16"),
                                       HasSubstr(StrCat("found ", count))));
  }
}

TEST(TcpConnectionsTest, RanksThatDisagreeLearnBothCounts) {
  auto rank0 = StreamingTcp().Create(WithConnections(0, 2, 2));
  auto rank1 = StreamingTcp().Create(WithConnections(1, 2, 1));
  ASSERT_TRUE(rank0.ok() && rank1.ok());
  const std::vector<TransportAddress> addresses = {(*rank0)->address(), (*rank1)->address()};
  std::thread accepting([&] { EXPECT_FALSE((*rank0)->Connect(addresses, Within(2)).ok()); });
  const Status status = (*rank1)->Connect(addresses, Within(kPatience));
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 0"), HasSubstr("expected 2, found 1")));
  (*rank0)->Interrupt();
  accepting.join();
}

// A rank whose first connections are complete dials the second connection to a rank whose first
// ones are not.
TEST(TcpConnectionsTest, WhoIsEarlyForTheNextConnectionIsKeptWaiting) {
  auto rank0 = StreamingTcp().Create(WithConnections(0, 3, 2));
  ASSERT_TRUE(rank0.ok());
  Status status = Unavailable("still connecting");
  std::thread connecting([&] {
    status = (*rank0)->Connect({(*rank0)->address(), "raw", "raw"}, Within(kPatience));
  });
  const auto hello = [](uint32_t rank, uint16_t connection) {
    return mesh::Hello{
        .job = 91, .rank = rank, .world = 3, .connections = 2, .connection = connection};
  };
  RawPeer first2((*rank0)->address()), second2((*rank0)->address());
  EXPECT_TRUE(first2.Introduce(hello(2, 0)).ok());
  EXPECT_TRUE(second2.Send(mesh::EncodeHello(hello(2, 1))));
  RawPeer first1((*rank0)->address()), second1((*rank0)->address());
  EXPECT_TRUE(first1.Introduce(hello(1, 0)).ok());
  std::string answer;
  const StatusOr<FrameHeader> header = second2.ReadFrame(&answer);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->type, FrameType::kHello);
  EXPECT_EQ(answer.size(), 64u);
  EXPECT_TRUE(second1.Introduce(hello(1, 1)).ok());
  connecting.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(TcpConnectionsTest, OneThatIsCutFailsTheRankAndNamesThePeer) {
  auto rank0 = StreamingTcp().Create(WithConnections(0, 2, 2));
  ASSERT_TRUE(rank0.ok());
  Status status;
  std::thread connecting([&] {
    status = (*rank0)->Connect({(*rank0)->address(), "raw"}, Within(kPatience));
  });
  RawPeer lanes[] = {RawPeer((*rank0)->address()), RawPeer((*rank0)->address())};
  for (uint16_t i : {0, 1}) {
    EXPECT_TRUE(
        lanes[i]
            .Introduce({.job = 91, .rank = 1, .world = 2, .connections = 2, .connection = i})
            .ok());
  }
  connecting.join();
  ASSERT_TRUE(status.ok()) << status;
  lanes[1].Reset();  // not the one whose turn it is
  Bytes buffer(8);
  const StatusOr<Ticket> ticket = (*rank0)->PostReceive(1, buffer);
  ASSERT_TRUE(ticket.ok());
  const Status failure = (*rank0)->Wait(*ticket, Within(kPatience)).status();
  // The stream is cut, and no more bytes of the other connection are delivered.
  lanes[0].Close();
  EXPECT_EQ(failure.code(), StatusCode::kUnavailable) << failure;
  EXPECT_THAT(Message(failure), HasSubstr("rank 1"));
}

// ---- pacing

TEST(TcpPacingTest, NoMoreLeavesThanWasAsked) {
  constexpr size_t kBytes = 4 << 20;
  constexpr double kRate = 16 << 20;
  for (const int connections : {1, 2}) {
    TransportOptions options = WithConnections(0, 2, connections);
    options.pacing_bytes_per_s = static_cast<uint64_t>(kRate);
    auto world = ConnectWorld(StreamingTcp(), 2, options);
    ASSERT_TRUE(world.ok()) << world.status();
    const TimePoint start = RealClock().Now();
    RunRanks(2, [&](int rank) {
      Bytes bytes(kBytes);
      const auto ticket =
          rank == 0 ? (*world)[0]->PostSend(1, {}, bytes) : (*world)[1]->PostReceive(0, bytes);
      ASSERT_TRUE(ticket.ok());
      EXPECT_TRUE((*world)[rank]->Wait(*ticket, Within(kPatience)).ok());
    });
    // Sending takes a quarter of a second or, on a slow host, longer. The kernel sends a first
    // burst at once.
    EXPECT_GT(ToSeconds(RealClock().Now() - start), kBytes / kRate / 2);
  }
}

// ---- sends without a copy

// A stream that takes all bytes and retains them until the test releases them.
class KeepingStream : public mesh::ByteStream {
 public:
  size_t kept = 0;
  ssize_t Write(std::span<const iovec> parts) override {
    size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    kept += bytes;
    return static_cast<ssize_t>(bytes);
  }
  ssize_t Read(std::span<const iovec> /*parts*/) override { return -EAGAIN; }
  size_t Retained() override { return kept; }
  void CloseWrite() override {}
  Status Register(mesh::EventSet& /*events*/, uint32_t /*index*/) override { return OkStatus(); }
  PathSample Sample(int /*peer*/) const override { return {}; }
};

TEST(ZeroCopyTest, ASendIsOverWhenTheKernelNoLongerReadsItsBytes) {
  KeepingStream stream;
  mesh::Connection connection(0, 1, "nowhere", stream);
  const Bytes payload(1000);
  mesh::Operation ops[2];
  for (mesh::Operation& op : ops) {
    op.send = true;
    op.header.type = FrameType::kData;
    op.payload = payload;
    connection.PostSend(&op);
  }
  bool progress = false;
  std::atomic<uint64_t> sent = 0;
  const auto drive = [&] { return connection.Drive(RealClock().Now(), &progress, &sent).ok(); };
  constexpr size_t kFrame = kFrameHeaderBytes + 1000;
  ASSERT_TRUE(drive());
  EXPECT_EQ(sent, 2 * kFrame);
  EXPECT_FALSE(ops[0].done || ops[1].done);
  EXPECT_FALSE(connection.flushed());
  stream.kept = kFrame + 1;
  ASSERT_TRUE(drive());
  EXPECT_FALSE(ops[0].done);
  stream.kept = kFrame;
  ASSERT_TRUE(drive());
  EXPECT_TRUE(ops[0].done);
  EXPECT_FALSE(ops[1].done);
  stream.kept = 0;
  ASSERT_TRUE(drive());
  EXPECT_TRUE(ops[1].done);
  EXPECT_TRUE(connection.flushed());
}

// A connected pair of TCP sockets on loopback.
struct LoopbackPair {
  UniqueFd ends[2];
  LoopbackPair() {
    TransportOptions options;
    TransportAddress address;
    StatusOr<UniqueFd> listener = mesh::Listen(options, 1, &address);
    EXPECT_TRUE(listener.ok()) << listener.status();
    bool in_progress = false;
    StatusOr<UniqueFd> dialed =
        mesh::StartDial(*mesh::ResolveAddress(address), options, &in_progress);
    EXPECT_TRUE(dialed.ok()) << dialed.status();
    pollfd waiting = {listener->get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, static_cast<int>(kPatience * 1000)), 1);
    ends[0] = std::move(*dialed);
    ends[1] = UniqueFd(accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    EXPECT_TRUE(ends[1]);
  }
};

TEST(ZeroCopyTest, ReportsReleaseTheBytesAndNoErrorIsSeenInThem) {
  LoopbackPair pair;
  const int fd = pair.ends[0].get(), other = pair.ends[1].get();
  tcp::SocketStream stream(std::move(pair.ends[0]), 4096);
  const Bytes small = Pattern(4095, 1), large = Pattern(16384, 2);
  EXPECT_EQ(WriteTo(stream, small), 4095);
  EXPECT_EQ(stream.Retained(), 0u);
  EXPECT_EQ(stream.OnEvents(EPOLLERR), uint32_t{EPOLLERR});  // none of ours so far
  EXPECT_EQ(WriteTo(stream, large), 16384);
  EXPECT_EQ(WriteTo(stream, small), 4095);  // behind them, so not released before them
  Bytes received;
  while (received.size() < large.size() + 2 * small.size()) {
    pollfd waiting = {other, POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, static_cast<int>(kPatience * 1000)), 1);
    Bytes buffer(65536);
    const ssize_t n = recv(other, buffer.data(), buffer.size(), 0);
    ASSERT_GT(n, 0);
    received.insert(received.end(), buffer.begin(), buffer.begin() + n);
  }
  EXPECT_TRUE(std::equal(large.begin(), large.end(), received.begin() + 4095));
  pollfd waiting = {fd, 0, 0};
  ASSERT_EQ(poll(&waiting, 1, static_cast<int>(kPatience * 1000)), 1);
  EXPECT_EQ(stream.OnEvents(EPOLLERR | EPOLLOUT), uint32_t{EPOLLIN | EPOLLOUT});
  EXPECT_EQ(stream.OnEvents(EPOLLERR | EPOLLHUP), uint32_t{EPOLLERR | EPOLLHUP});
  EXPECT_EQ(stream.Retained(), 0u);
}

// Over loopback the kernel copies after all and reports it, so there is only one attempt.
TEST(ZeroCopyTest, StopsWhereTheKernelCopiesAllTheSame) {
  LoopbackPair pair;
  const int fd = pair.ends[0].get();
  tcp::ZeroCopy zero_copy(fd, 4096);
  ASSERT_TRUE(zero_copy.Wants(4096));
  EXPECT_FALSE(zero_copy.Wants(4095));
  const Bytes payload(16384);
  ASSERT_EQ(send(fd, payload.data(), payload.size(), MSG_ZEROCOPY), 16384);
  zero_copy.Wrote(16384, true);
  pollfd waiting = {fd, 0, 0};
  ASSERT_EQ(poll(&waiting, 1, static_cast<int>(kPatience * 1000)), 1);
  EXPECT_EQ(zero_copy.Retained(), 0u);
  EXPECT_FALSE(zero_copy.on());
  EXPECT_FALSE(zero_copy.Wants(1 << 20));
  EXPECT_FALSE(tcp::ZeroCopy(fd, 0).Wants(1 << 20));
}

}  // namespace
}  // namespace weir::testing
