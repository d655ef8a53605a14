// What only the udp transport has, over real sockets: paths that lose and reorder, strangers'
// datagrams, ranks that compute while others send.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <deque>
#include <thread>

#include "datapath/base/random.h"
#include "datapath/transport/builtin/udp/packet.h"
#include "datapath/transport/builtin/udp/socket.h"
#include "tests/datapath/transport/conformance.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const TransportFactory& Udp() { return **Transports().Find("udp"); }

// A loopback socket of the test's own, with a receive time-out.
class PlainUdpSocket {
 public:
  PlainUdpSocket() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const auto any = mesh::ResolveAddress("127.0.0.1:0");
    const timeval patience = {2, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const int buffer = 4 << 20;
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    bound_ = any.ok() && bind(fd_.get(), any->get(), any->size) == 0;
  }
  bool bound() const { return bound_; }
  int fd() const { return fd_.get(); }
  TransportAddress address() const { return mesh::LocalEndpoint(fd_.get()); }
  void SendTo(const mesh::SocketAddress& to, std::span<const std::byte> bytes) {
    (void)sendto(fd_.get(), bytes.data(), bytes.size(), 0, to.get(), to.size);
  }
  // The next datagram; empty after the time-out, or at once when there is none.
  Bytes Take(bool wait = true, mesh::SocketAddress* from = nullptr) {
    Bytes bytes(65536);
    mesh::SocketAddress sender;
    sender.size = sizeof sender.storage;
    ssize_t n;
    do {
      n = recvfrom(fd_.get(), bytes.data(), bytes.size(), wait ? 0 : MSG_DONTWAIT,
                   reinterpret_cast<sockaddr*>(&sender.storage), &sender.size);
    } while (n < 0 && errno == EINTR);  // with a time-out the kernel does not restart it
    if (n > 0 && from != nullptr) *from = sender;
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }

 private:
  mesh::UniqueFd fd_;
  bool bound_ = false;
};

struct RelayOptions {
  uint64_t seed = 1;
  double loss = 0;
  double hold = 0;  // is overtaken by the next few
};

// Stands between the rank that asks and the rank that listens at `target`.
class LossyRelay {
 public:
  LossyRelay(const TransportAddress& target, const RelayOptions& options)
      : target_(*mesh::ResolveAddress(target)),
        options_(options),
        random_(options.seed),
        stop_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { Run(); }) {}
  ~LossyRelay() {
    const uint64_t one = 1;
    EXPECT_EQ(write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }
  TransportAddress address() const { return outer_.address(); }
  uint64_t lost() const { return lost_; }

 private:
  void Run() {
    for (;;) {
      pollfd polled[] = {
          {stop_.get(), POLLIN, 0}, {outer_.fd(), POLLIN, 0}, {inner_.fd(), POLLIN, 0}};
      poll(polled, std::size(polled), held_.empty() ? -1 : 1);
      if (polled[0].revents != 0) return;
      bool any = false;
      for (;;) {
        Bytes bytes = outer_.Take(false, &asker_);
        if (bytes.empty()) break;
        any = true;
        Carry(true, std::move(bytes));
      }
      for (;;) {
        Bytes bytes = inner_.Take(false);
        if (bytes.empty()) break;
        any = true;
        Carry(false, std::move(bytes));
      }
      if (!any) Release(0);
    }
  }
  void Carry(bool inwards, Bytes bytes) {
    if (random_.Uniform() < options_.loss) {
      ++lost_;
      return;
    }
    if (random_.Uniform() < options_.hold) {
      held_.push_back({inwards, std::move(bytes)});
      Release(4);
      return;
    }
    Forward(inwards, bytes);
  }
  void Release(size_t keep) {
    while (held_.size() > keep) {
      Forward(held_.front().first, held_.front().second);
      held_.pop_front();
    }
  }
  void Forward(bool inwards, const Bytes& bytes) {
    if (inwards) {
      inner_.SendTo(target_, bytes);
    } else {
      outer_.SendTo(asker_, bytes);
    }
  }

  const mesh::SocketAddress target_;
  const RelayOptions options_;
  Random random_;
  PlainUdpSocket outer_, inner_;  // towards the asker, towards the target
  mesh::SocketAddress asker_;
  std::deque<std::pair<bool, Bytes>> held_;
  std::atomic<uint64_t> lost_ = 0;
  const mesh::UniqueFd stop_;
  std::thread thread_;
};

StatusOr<std::unique_ptr<Transport>> CreateUdp(TransportOptions options, int rank, int world) {
  options.rank = rank;
  options.world = world;
  return Udp().Create(options);
}

// Two ranks with a relay between them.
struct RelayedPair {
  explicit RelayedPair(const RelayOptions& relay_options) {
    const TransportOptions options = FreshJob();
    for (int rank = 0; rank < 2; ++rank) {
      auto made = CreateUdp(options, rank, 2);
      EXPECT_TRUE(made.ok()) << made.status();
      if (!made.ok()) return;
      world.push_back(std::move(*made));
    }
    relay = std::make_unique<LossyRelay>(world[0]->address(), relay_options);
    RunRanks(2, [&](int rank) {
      const TransportAddress lower = rank == 0 ? world[0]->address() : relay->address();
      const Status status = world[rank]->Connect({lower, world[1]->address()}, Within(kPatience));
      EXPECT_TRUE(status.ok()) << status;
      connected += status.ok() ? 1 : 0;
    });
  }
  std::unique_ptr<LossyRelay> relay;  // outlives the ranks: they say goodbye through it
  World world;
  std::atomic<int> connected = 0;
};

TEST(UdpTest, LossAndReorderingOnTheWayAreMended) {
  for (const double loss : {0.01, 0.1}) {
    constexpr size_t kSize = 400000;
    const Bytes sent[2] = {Pattern(kSize, 1), Pattern(kSize, 2)};
    Bytes received[2] = {Bytes(kSize), Bytes(kSize)};
    RelayedPair pair({.seed = 3, .loss = loss, .hold = 0.05});
    ASSERT_EQ(pair.connected, 2);
    RunRanks(2, [&](int rank) {
      Transport& own = *pair.world[rank];
      for (int round = 0; round < 2; ++round) {
        const auto send = own.PostSend(1 - rank, {}, sent[rank]);
        const auto receive = own.PostReceive(1 - rank, received[rank]);
        Done(own, receive);
        Done(own, send);
        EXPECT_EQ(received[rank], sent[1 - rank]);
      }
    });
    EXPECT_GT(pair.relay->lost(), 0u);
    const std::vector<PathSample> samples = pair.world[0]->Samples();
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_EQ(samples[0].medium, "udp");
    EXPECT_GT(samples[0].retransmits, 0u);
    EXPECT_GT(samples[0].rtt_s, 0);
    EXPECT_GT(samples[0].rtt_min_s, 0);
    EXPECT_GT(samples[0].delivery_rate_bytes_per_s, 0);
    EXPECT_GE(samples[0].congestion_window_bytes, 2400u);
    EXPECT_GE(samples[0].bytes_acked, kSize);
    EXPECT_GE(samples[0].bytes_received, 2 * kSize);
  }
}

TEST(UdpTest, FarewellsArriveOverALossyPath) {
  const Bytes words = Pattern(50000, 1);
  Bytes buffer(50000);
  RelayedPair pair({.seed = 5, .loss = 0.2});
  ASSERT_EQ(pair.connected, 2);
  Done(*pair.world[1], pair.world[1]->PostSend(0, {}, words));
  pair.world[1].reset();  // while rank 0 does something else
  Done(*pair.world[0], pair.world[0]->PostReceive(1, buffer));
  EXPECT_EQ(buffer, words);
  EXPECT_STATUS(Failure(*pair.world[0], pair.world[0]->PostReceive(1, buffer)), kUnavailable,
                AllOf(HasSubstr("rank 1 ("), HasSubstr("closed the connection")));
}

TEST(UdpTest, ARankThatComputesStillAcknowledges) {
  const Bytes bytes = Pattern(1 << 20, 1);
  Bytes buffer(1 << 20);
  StatusOr<World> world = ConnectWorld(Udp(), 2, FreshJob());
  ASSERT_TRUE(world.ok()) << world.status();
  const auto receive = (*world)[0]->PostReceive(1, buffer);
  ASSERT_TRUE(receive.ok());
  Done(*(*world)[1], (*world)[1]->PostSend(0, {}, bytes));
  const TimePoint give_up = Within(kPatience);
  while ((*world)[1]->Samples()[0].bytes_acked < bytes.size() && RealClock().Now() < give_up) {
    std::this_thread::yield();  // rank 0 calls nothing meanwhile
  }
  EXPECT_GE((*world)[1]->Samples()[0].bytes_acked, bytes.size());
  Done(*(*world)[0], receive);
  EXPECT_EQ(buffer, bytes);
}

TEST(UdpTest, StrangersDatagramsChangeNothing) {
  StatusOr<World> world = ConnectWorld(Udp(), 2, FreshJob());
  ASSERT_TRUE(world.ok()) << world.status();
  const auto target = mesh::ResolveAddress((*world)[0]->address());
  ASSERT_TRUE(target.ok());
  PlainUdpSocket stranger;
  ASSERT_TRUE(stranger.bound());
  Random random(9);
  std::atomic<bool> stop = false;
  std::thread noise([&] {
    while (!stop) {
      Bytes bytes = Pattern(1 + random.Below(2000), random.Next());
      stranger.SendTo(*target, bytes);
      udp::Packet packet;  // well-formed, of a connection that there is not
      packet.connection = random.Next() & ~uint64_t{0xffff};
      packet.connection |= 1;
      packet.number = 1 + random.Below(100);
      packet.end = true;
      Bytes datagram(udp::PacketHeaderBytes(0));
      udp::EncodePacketHeader(packet, datagram);
      udp::Seal(datagram);
      stranger.SendTo(*target, datagram);
    }
  });
  const Bytes bytes = Pattern(100000, 1);
  RunRanks(2, [&](int rank) {
    Bytes buffer(bytes.size());
    for (int round = 0; round < 50; ++round) {
      if (rank == 1) {
        Done(*(*world)[1], (*world)[1]->PostSend(0, {}, bytes));
      } else {
        Done(*(*world)[0], (*world)[0]->PostReceive(1, buffer));
        EXPECT_EQ(buffer, bytes);
      }
    }
  });
  stop = true;
  noise.join();
}

TEST(UdpTest, AnUnprovenAddressGetsACookieAndNothingLonger) {
  auto rank0 = CreateUdp(FreshJob(), 0, 2);
  ASSERT_TRUE(rank0.ok()) << rank0.status();
  const auto target = mesh::ResolveAddress((*rank0)->address());
  Status status;
  std::thread connecting([&] {
    status = (*rank0)->Connect({(*rank0)->address(), "127.0.0.1:1"}, Within(kPatience));
  });
  PlainUdpSocket stranger;
  udp::Handshake hello;
  hello.job = 1;
  hello.rank = 1;
  hello.world = 2;
  hello.datagram_bytes = udp::kDatagramBytesMin;
  hello.own_connection = 0x1230000;
  stranger.SendTo(*target, udp::EncodeHandshake(hello));
  const auto retry = udp::DecodeHandshake(stranger.Take());
  EXPECT_TRUE(retry.ok()) << retry.status();
  if (retry.ok()) {
    EXPECT_EQ(retry->type, udp::DatagramType::kRetry);
    EXPECT_EQ(retry->connection, hello.own_connection);
    EXPECT_EQ(retry->own_connection, 0u);  // nothing is kept yet
    PlainUdpSocket other;                  // a cookie is good for one address only
    hello.cookie = retry->cookie;
    other.SendTo(*target, udp::EncodeHandshake(hello));
    const auto again = udp::DecodeHandshake(other.Take());
    EXPECT_TRUE(again.ok() && again->type == udp::DatagramType::kRetry);
    stranger.SendTo(*target, udp::EncodeHandshake(hello));
    const auto refusal = udp::DecodeHandshake(stranger.Take());
    EXPECT_TRUE(refusal.ok() && refusal->type == udp::DatagramType::kRefusal);
    EXPECT_THAT(refusal.ok() ? refusal->text : "", HasSubstr("job: expected"));
  }
  (*rank0)->Interrupt();
  connecting.join();
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
}

TEST(UdpTest, AConnectOverALossyPathSucceeds) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    RelayedPair pair({.seed = seed, .loss = 0.2});
    EXPECT_EQ(pair.connected, 2) << "seed " << seed;
  }
}

TEST(UdpTest, TheKernelsBatchesAreUsedWhereItHasThem) {
  TransportAddress address;
  auto socket = udp::DatagramSocket::Bind({}, &address);
  ASSERT_TRUE(socket.ok()) << socket.status();
  const auto self = mesh::ResolveAddress(address);
  Bytes batch = Pattern(10 * 1200 + 7, 1);
  ASSERT_EQ(socket->Send(*self, batch, 1200), udp::DatagramSocket::Outcome::kSent);
  Bytes received;
  std::vector<size_t> sizes;
  const TimePoint give_up = Within(kPatience);
  while (received.size() < batch.size() && RealClock().Now() < give_up) {
    socket->Receive(
        [&](const mesh::SocketAddress& from, std::span<std::byte> datagram, bool marked) {
          EXPECT_TRUE(udp::SameAddress(from, *self));
          EXPECT_FALSE(marked);
          received.insert(received.end(), datagram.begin(), datagram.end());
          sizes.push_back(datagram.size());
        });
  }
  EXPECT_EQ(received, batch);
  ASSERT_EQ(sizes.size(), 11u);
  EXPECT_EQ(sizes.front(), 1200u);
  EXPECT_EQ(sizes.back(), 7u);
  EXPECT_EQ(socket->Send(*self, Bytes(65600), 65600), udp::DatagramSocket::Outcome::kTooLong);
}

// What a router would do to a datagram that says that it understands marks.
TEST(UdpTest, MarksOfTheNetworkAreSeen) {
  for (const std::string host : {"127.0.0.1", "[::1]"}) {
    TransportOptions options;
    options.listen = host + ":0";
    TransportAddress address, other_address;
    auto socket = udp::DatagramSocket::Bind(options, &address);
    if (!socket.ok()) continue;  // no IPv6 here
    auto other = udp::DatagramSocket::Bind(options, &other_address);
    ASSERT_TRUE(other.ok()) << other.status();
    const bool six = other->family() == AF_INET6;
    const auto to = mesh::ResolveAddress(address);
    std::vector<bool> marks;
    for (const int code : {2, 3, 1}) {
      ASSERT_EQ(setsockopt(other->fd(), six ? int{IPPROTO_IPV6} : int{IPPROTO_IP},
                           six ? IPV6_TCLASS : IP_TOS, &code, sizeof code),
                0);
      ASSERT_EQ(other->Send(*to, Bytes(100), 100), udp::DatagramSocket::Outcome::kSent);
      const TimePoint give_up = Within(kPatience);
      const size_t before = marks.size();
      while (marks.size() == before && RealClock().Now() < give_up) {
        socket->Receive([&](const mesh::SocketAddress&, std::span<std::byte>, bool marked) {
          marks.push_back(marked);
        });
      }
    }
    EXPECT_EQ(marks, (std::vector<bool>{false, true, false})) << host;
  }
}

TEST(UdpTest, UnknownCongestionControlIsRefused) {
  TransportOptions options;
  options.congestion_control = "cubic";
  EXPECT_STATUS(Udp().Create(options).status(), kInvalidArgument,
                AllOf(HasSubstr("'cubic'"), HasSubstr("newreno")));
}

TEST(UdpTest, AnotherIpVersionIsNamed) {
  auto rank1 = CreateUdp(FreshJob(), 1, 2);
  ASSERT_TRUE(rank1.ok());
  EXPECT_STATUS((*rank1)->Connect({"[::1]:5", (*rank1)->address()}, Within(1)), kInvalidArgument,
                AllOf(HasSubstr("[::1]:5"), HasSubstr("rank 0")));
}

TEST(UdpTest, RunsOverIpv6) {
  TransportOptions options = FreshJob();
  options.listen = "[::1]:0";
  {
    options.world = 1;
    if (!Udp().Create(options).ok()) GTEST_SKIP() << "this host has no ::1";
  }
  StatusOr<World> world = ConnectWorld(Udp(), 2, options);
  ASSERT_TRUE(world.ok()) << world.status();
  const Bytes bytes = Pattern(100000, 1);
  Bytes buffer(bytes.size());
  Done(*(*world)[0], (*world)[0]->PostSend(1, {}, bytes));
  Done(*(*world)[1], (*world)[1]->PostReceive(0, buffer));
  EXPECT_EQ(buffer, bytes);
}

}  // namespace
}  // namespace weir::testing
