// The reliable stream of the udp transport over simulated networks: two links and a queue of
// datagrams that are lost, repeated, delayed, damaged and squeezed, on a clock that moves when
// told.

#include "datapath/transport/builtin/udp/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <string>

#include "datapath/base/random.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using udp::Link;
using Bytes = std::vector<std::byte>;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct NetworkOptions {
  uint64_t seed = 1;
  double loss = 0, repeat = 0, damage = 0;
  Duration delay = milliseconds(5);      // each way
  Duration delay_spread = Duration(0);   // uniform on top: reorders
  double bytes_per_s = 0;                // 0: unlimited
  size_t queue_bytes = 64 << 10;         // of the limited link; the rest is dropped
  size_t marked_bytes = SIZE_MAX;        // and what finds more than this waiting is marked
  size_t datagram_bytes_max = SIZE_MAX;  // longer ones vanish
  size_t buffer_bytes = 256 << 10;       // of the links
  size_t datagram_bytes = udp::kDatagramBytesMin;
};

// Both directions between ends 0 and 1.
class UdpNetwork {
 public:
  explicit UdpNetwork(const NetworkOptions& options) : options_(options), random_(options.seed) {
    for (int end = 0; end < 2; ++end) {
      Link::Options link;
      link.own_connection = 100 + end;
      link.peer_connection = 101 - end;
      link.send_bytes = link.receive_bytes = options.buffer_bytes;
      link.peer_window = options.buffer_bytes;
      link.datagram_bytes = options.datagram_bytes;
      ends.push_back(std::make_unique<Link>(link, now));
    }
  }

  // Lets everything that is due leave.
  void Flush() {
    for (int end = 0; end < 2; ++end) {
      Bytes datagram(udp::kDatagramBytesMax);
      for (int i = 0; i < 100000; ++i) {
        const size_t bytes = ends[end]->NextDatagram(now, datagram);
        if (bytes == 0) break;
        EXPECT_LE(bytes, ends[end]->datagram_bytes());
        ++sent[end];
        longest_sent = std::max(longest_sent, bytes);
        Carry(1 - end, Bytes(datagram.begin(), datagram.begin() + static_cast<ptrdiff_t>(bytes)));
      }
    }
  }

  // Moves the clock to the next thing that happens, at most to `until`. False: nothing will before.
  bool Step(TimePoint until) {
    Flush();
    TimePoint next = until;
    if (!under_way_.empty()) next = std::min(next, under_way_.begin()->first);
    for (auto& end : ends) next = std::min(next, end->NextTimer(now));
    // A link that asks for the same moment again and again would hang its thread.
    stuck_ = next <= now ? stuck_ + 1 : 0;
    if (stuck_ > 10000) ADD_FAILURE() << "time stands still";
    now = std::max(now, next);
    while (!under_way_.empty() && under_way_.begin()->first <= now) {
      const auto [end, datagram, marked] = std::move(under_way_.begin()->second);
      under_way_.erase(under_way_.begin());
      if (udp::DecodePrefix(datagram).ok()) ends[end]->OnDatagram(datagram, now, marked);
    }
    for (auto& end : ends) end->OnTimer(now);
    Flush();
    return now < until && stuck_ <= 10000;
  }

  void Run(Duration time) {
    const TimePoint until = now + time;
    while (Step(until)) {
    }
  }

  TimePoint now = TimePoint(seconds(1));
  std::vector<std::unique_ptr<Link>> ends;
  uint64_t sent[2] = {};
  size_t longest_sent = 0;
  int marks = 0;
  bool cable = true;                                // false: everything is lost
  std::function<bool(int to, const Bytes&)> drops;  // and what this says
  NetworkOptions options_;

 private:
  void Carry(int to, Bytes datagram) {
    if (!cable || datagram.size() > options_.datagram_bytes_max) return;
    if (drops && drops(to, datagram)) return;
    if (random_.Uniform() < options_.loss) return;
    TimePoint departs = now;
    bool marked = false;
    if (options_.bytes_per_s > 0) {
      const TimePoint free = std::max(free_[to], now);
      const double waiting = ToSeconds(free - now) * options_.bytes_per_s;
      if (waiting > static_cast<double>(options_.queue_bytes)) return;
      marked = waiting > static_cast<double>(options_.marked_bytes);
      marks += marked ? 1 : 0;
      departs = free_[to] =
          free + FromSeconds(static_cast<double>(datagram.size()) / options_.bytes_per_s);
    }
    const int copies = random_.Uniform() < options_.repeat ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      Bytes copy = datagram;
      if (random_.Uniform() < options_.damage) {
        copy[random_.Below(copy.size())] ^= static_cast<std::byte>(1 + random_.Below(255));
      }
      const auto spread = FromSeconds(ToSeconds(options_.delay_spread) * random_.Uniform());
      under_way_.emplace(departs + options_.delay + spread,
                         std::tuple(to, std::move(copy), marked));
    }
  }

  Random random_;
  std::multimap<TimePoint, std::tuple<int, Bytes, bool>> under_way_;
  TimePoint free_[2] = {};
  int stuck_ = 0;
};

// Writes what fits of `bytes` from *at on.
void WriteSome(Link& link, const Bytes& bytes, size_t* at, size_t most = SIZE_MAX) {
  const iovec part = {const_cast<std::byte*>(bytes.data()) + *at,
                      std::min(bytes.size() - *at, most)};
  if (part.iov_len == 0) return;
  const ssize_t n = link.Write(std::span(&part, 1));
  if (n > 0) *at += static_cast<size_t>(n);
}

// Appends what is readable to `bytes`; the last result of Read.
ssize_t ReadSome(Link& link, Bytes* bytes, size_t most = SIZE_MAX) {
  std::byte buffer[4096];
  for (;;) {
    const iovec part = {buffer, std::min(sizeof buffer, most)};
    if (part.iov_len == 0) return -EAGAIN;
    const ssize_t n = link.Read(std::span(&part, 1));
    if (n <= 0) return n;
    bytes->insert(bytes->end(), buffer, buffer + n);
    most -= static_cast<size_t>(n);
  }
}

// Both ends send `size` bytes and the end; true when all arrived within `patience` of that clock.
bool Exchange(UdpNetwork& network, size_t size, Duration patience, uint64_t seed) {
  const Bytes bytes[2] = {Pattern(size, seed), Pattern(size, seed + 1)};
  Bytes arrived[2];
  size_t written[2] = {};
  bool ended[2] = {};
  Random random(seed);
  const TimePoint until = network.now + patience;
  for (;;) {
    for (int end = 0; end < 2; ++end) {
      Link& link = *network.ends[end];
      WriteSome(link, bytes[end], &written[end], 1 + random.Below(20000));
      if (written[end] == size) link.CloseWrite();
      ended[end] |= ReadSome(link, &arrived[end], random.Below(30000)) == 0;
    }
    const bool done =
        ended[0] && ended[1] && network.ends[0]->drained() && network.ends[1]->drained();
    if (done || !network.Step(until)) break;
  }
  EXPECT_EQ(arrived[0], bytes[1]);
  EXPECT_EQ(arrived[1], bytes[0]);
  return ended[0] && ended[1] && network.ends[0]->drained() && network.ends[1]->drained();
}

class UdpLossTest : public ::testing::TestWithParam<int> {};

TEST_P(UdpLossTest, EveryByteArrivesOnceAndInOrder) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    NetworkOptions options;
    options.seed = seed;
    options.loss = GetParam() / 100.0;
    options.repeat = options.damage = options.loss / 3;
    options.delay_spread = seed % 2 == 0 ? milliseconds(4) : Duration(0);
    UdpNetwork network(options);
    EXPECT_TRUE(Exchange(network, 300000, seconds(300), seed))
        << "seed " << seed << ", " << GetParam() << " % lost, at "
        << ToSeconds(network.now.time_since_epoch());
  }
}
INSTANTIATE_TEST_SUITE_P(Percent, UdpLossTest, ::testing::Values(0, 1, 5, 10, 20, 30));

TEST(UdpLinkTest, ACleanPathRepeatsNothing) {
  UdpNetwork network({});
  EXPECT_TRUE(Exchange(network, 1 << 20, seconds(30), 3));
  for (const auto& end : network.ends) EXPECT_EQ(end->Sample(0).retransmits, 0u);
}

TEST(UdpLinkTest, ReorderingAloneIsSoonNotTakenForLoss) {
  NetworkOptions options;
  options.delay_spread = milliseconds(5);
  UdpNetwork network(options);
  uint64_t repeated[2] = {};
  for (int half = 0; half < 2; ++half) {
    const Bytes bytes = Pattern(2 << 20, half);
    Bytes arrived;
    size_t written = 0;
    const TimePoint until = network.now + seconds(60);
    while (arrived.size() < bytes.size() && network.Step(until)) {
      WriteSome(*network.ends[0], bytes, &written);
      ReadSome(*network.ends[1], &arrived);
    }
    EXPECT_EQ(arrived, bytes);
    repeated[half] = network.ends[0]->Sample(0).retransmits;
  }
  EXPECT_GT(repeated[0], 0u);
  EXPECT_LT(repeated[1] - repeated[0], 20u) << "of some 1800 packets, after " << repeated[0];
}

TEST(UdpLinkTest, FillsABottleneckWithoutDrowningIt) {
  NetworkOptions options;
  options.bytes_per_s = 12.5e6;  // 100 Mbit/s
  options.delay = milliseconds(10);
  options.queue_bytes = 128 << 10;
  options.buffer_bytes = 2 << 20;
  UdpNetwork network(options);
  const Bytes bytes = Pattern(12 << 20, 1);
  Bytes arrived;
  size_t written = 0;
  const TimePoint start = network.now, until = start + seconds(60);
  WriteSome(*network.ends[0], bytes, &written);
  while (arrived.size() < bytes.size() && network.Step(until)) {
    WriteSome(*network.ends[0], bytes, &written);
    ReadSome(*network.ends[1], &arrived);
  }
  EXPECT_EQ(arrived, bytes);
  const double rate = static_cast<double>(bytes.size()) / ToSeconds(network.now - start);
  // Slow start overshoots this queue by far; from half of the window on it grows one datagram a
  // turn.
  EXPECT_GT(rate, 0.4 * options.bytes_per_s);
  const PathSample sample = network.ends[0]->Sample(7);
  EXPECT_EQ(sample.peer, 7);
  EXPECT_EQ(sample.medium, "udp");
  EXPECT_FALSE(sample.application_limited);
  EXPECT_NEAR(sample.delivery_rate_bytes_per_s, options.bytes_per_s, 0.3 * options.bytes_per_s);
  EXPECT_GE(sample.rtt_min_s, 0.02);
  EXPECT_LT(sample.rtt_min_s, 0.022);
  EXPECT_LT(sample.rtt_s, 0.04);
  EXPECT_GT(sample.rtt_deviation_s, 0);
  EXPECT_GT(sample.congestion_window_bytes, 100000u);
  EXPECT_LT(sample.congestion_window_bytes, 500000u);
  EXPECT_GT(sample.retransmits, 0u);
  EXPECT_LT(sample.retransmits, 600u);  // of some 10000
}

TEST(UdpLinkTest, MarksKeepTheQueueShortWithoutALoss) {
  NetworkOptions options;
  options.bytes_per_s = 12.5e6;
  options.delay = milliseconds(10);
  options.queue_bytes = 8 << 20;  // nothing is dropped
  options.buffer_bytes = 2 << 20;
  double rtt_s[2] = {};
  for (const bool marks : {false, true}) {
    options.marked_bytes = marks ? 64 << 10 : SIZE_MAX;
    UdpNetwork network(options);
    const Bytes bytes = Pattern(24 << 20, 1);
    Bytes arrived;
    size_t written = 0;
    const TimePoint start = network.now, until = start + seconds(60);
    while (arrived.size() < bytes.size() && network.Step(until)) {
      WriteSome(*network.ends[0], bytes, &written);
      ReadSome(*network.ends[1], &arrived);
    }
    EXPECT_EQ(arrived, bytes);
    EXPECT_EQ(network.marks > 0, marks);
    const PathSample sample = network.ends[0]->Sample(0);
    EXPECT_EQ(sample.retransmits, 0u);
    rtt_s[marks] = sample.rtt_s;
    const double rate = static_cast<double>(bytes.size()) / ToSeconds(network.now - start);
    EXPECT_GT(rate, 0.6 * options.bytes_per_s) << "marked " << network.marks;
  }
  EXPECT_LT(rtt_s[1], rtt_s[0] / 2);  // without marks the window is what fills the queue
  EXPECT_LT(rtt_s[1], 0.04);
}

TEST(UdpLinkTest, ASlowReaderHoldsTheSender) {
  NetworkOptions options;
  options.loss = 0.05;
  UdpNetwork network(options);
  const Bytes bytes = Pattern(2 << 20, 1);
  size_t written = 0;
  for (int i = 0; i < 200; ++i) {
    WriteSome(*network.ends[0], bytes, &written);
    network.Run(milliseconds(20));
  }
  EXPECT_EQ(written, 2 * options.buffer_bytes);  // both ends full
  const uint64_t before = network.sent[0];
  network.Run(seconds(20));
  EXPECT_LT(network.sent[0] - before, 100u);  // signs of life
  Bytes arrived;
  const TimePoint start = network.now;
  while (arrived.size() < bytes.size() && network.Step(start + seconds(60))) {
    ReadSome(*network.ends[1], &arrived, 40000);
    WriteSome(*network.ends[0], bytes, &written);
  }
  EXPECT_EQ(arrived, bytes);
}

TEST(UdpLinkTest, ALostLargerWindowIsToldAgain) {
  UdpNetwork network({});
  const Bytes bytes = Pattern(1 << 20, 1);
  size_t written = 0;
  for (int i = 0; i < 100; ++i) {
    WriteSome(*network.ends[0], bytes, &written);
    network.Run(milliseconds(20));
  }
  int dropped = 0;
  network.drops = [&](int to, const Bytes&) { return to == 0 && dropped++ < 3; };
  Bytes arrived;
  ReadSome(*network.ends[1], &arrived);
  const TimePoint start = network.now;
  while (arrived.size() == 256 << 10 && network.Step(start + seconds(10))) {
    ReadSome(*network.ends[1], &arrived);
  }
  EXPECT_GT(arrived.size(), 256u << 10);
  EXPECT_GE(dropped, 3);
  EXPECT_LT(ToSeconds(network.now - start), 0.5);
}

TEST(UdpLinkTest, ALostTailIsRepeatedSoon) {
  UdpNetwork network({});
  Bytes arrived;
  size_t written = 0;
  const Bytes warm_up = Pattern(100000, 1);
  while (arrived.size() < warm_up.size()) {
    WriteSome(*network.ends[0], warm_up, &written);
    network.Step(network.now + seconds(1));
    ReadSome(*network.ends[1], &arrived);
  }
  network.Run(milliseconds(500));
  bool lost = false;
  network.drops = [&](int to, const Bytes&) { return to == 1 && !std::exchange(lost, true); };
  arrived.clear();
  written = 0;
  const Bytes word = Pattern(10, 2);
  WriteSome(*network.ends[0], word, &written);
  const TimePoint start = network.now;
  while (arrived.empty() && network.Step(start + seconds(5))) ReadSome(*network.ends[1], &arrived);
  EXPECT_EQ(arrived, word);
  EXPECT_TRUE(lost);
  EXPECT_LT(ToSeconds(network.now - start), 0.1);  // TCP takes 200 ms at least
}

TEST(UdpLinkTest, APeerThatAppearsLateIsMeasuredAtOnce) {
  UdpNetwork network({});
  network.ends[0]->Ping();
  network.cable = false;
  network.Run(milliseconds(3500));  // into the first of 2 s of back-off
  network.cable = true;
  EXPECT_EQ(network.ends[0]->Sample(0).rtt_s, 0);
  network.ends[1]->Ping();
  network.Run(milliseconds(30));
  EXPECT_NEAR(network.ends[0]->Sample(0).rtt_s, 0.01, 0.002);
}

TEST(UdpLinkTest, APathThatSwallowsLongDatagramsGetsShortOnes) {
  NetworkOptions options;
  options.datagram_bytes = 8952;
  options.datagram_bytes_max = 1400;
  UdpNetwork network(options);
  EXPECT_TRUE(Exchange(network, 100000, seconds(60), 1));
  EXPECT_EQ(network.longest_sent, 8952u);
  EXPECT_EQ(network.ends[0]->datagram_bytes(), udp::kDatagramBytesMin);
}

TEST(UdpLinkTest, TellingTheMtuShortensAtOnce) {
  NetworkOptions options;
  options.datagram_bytes = 8952;
  UdpNetwork network(options);
  network.ends[0]->OnTooLong(1472);
  EXPECT_EQ(network.ends[0]->datagram_bytes(), 1472u);
  network.ends[0]->OnTooLong(100);  // no path is that narrow
  EXPECT_EQ(network.ends[0]->datagram_bytes(), udp::kDatagramBytesMin);
  network.ends[0]->OnTooLong(9000);
  EXPECT_EQ(network.ends[0]->datagram_bytes(), udp::kDatagramBytesMin);
}

TEST(UdpLinkTest, SilenceEndsIt) {
  UdpNetwork network({});
  network.Run(seconds(100));  // idle, but alive
  EXPECT_FALSE(network.ends[0]->hung_up());
  network.cable = false;
  network.Run(seconds(30));
  EXPECT_FALSE(network.ends[0]->hung_up());
  network.Run(seconds(15));
  EXPECT_TRUE(network.ends[0]->hung_up());
  std::byte byte{};
  const iovec part = {&byte, 1};
  EXPECT_EQ(network.ends[0]->Read(std::span(&part, 1)), -ETIMEDOUT);
  EXPECT_EQ(network.ends[0]->Write(std::span(&part, 1)), -ETIMEDOUT);
  EXPECT_TRUE(network.ends[0]->drained());
}

TEST(UdpLinkTest, ACutLinkStillDeliversWhatCame) {
  UdpNetwork network({});
  size_t written = 0;
  const Bytes word = Pattern(1000, 1);
  WriteSome(*network.ends[0], word, &written);
  network.Run(milliseconds(100));
  network.ends[1]->Cut(ECONNREFUSED);
  EXPECT_TRUE(network.ends[1]->hung_up());
  EXPECT_TRUE(network.ends[1]->cut());
  Bytes arrived;
  EXPECT_EQ(ReadSome(*network.ends[1], &arrived), -ECONNREFUSED);
  EXPECT_EQ(arrived, word);
}

TEST(UdpLinkTest, AfterTheEndACutMeansNothing) {
  UdpNetwork network({});
  EXPECT_TRUE(Exchange(network, 1000, seconds(10), 1));
  network.ends[0]->Cut(ECONNREFUSED);
  EXPECT_FALSE(network.ends[0]->cut());
  Bytes arrived;
  EXPECT_EQ(ReadSome(*network.ends[0], &arrived), 0);
}

// ---- datagrams that no link sends

class UdpHostileTest : public ::testing::Test {
 protected:
  UdpHostileTest() { network_.ends[0]->Ping(); }
  udp::Packet Fresh() {
    udp::Packet packet;
    packet.connection = 101;
    packet.number = ++number_;
    packet.window = 256 << 10;
    return packet;
  }
  // True when end 1 took it.
  bool Arrive(const udp::Packet& packet, size_t payload = 0) {
    Bytes datagram(udp::PacketHeaderBytes(packet.ack_count) + payload);
    udp::EncodePacketHeader(packet, datagram);
    udp::Seal(datagram);
    return udp::DecodePrefix(datagram).ok() && network_.ends[1]->OnDatagram(datagram, network_.now);
  }
  Link& target() { return *network_.ends[1]; }

  UdpNetwork network_{NetworkOptions{}};
  uint64_t number_ = 0;
};

TEST_F(UdpHostileTest, AnotherConnectionAndRepeatedNumbersAreIgnored) {
  udp::Packet packet = Fresh();
  packet.connection = 999;
  EXPECT_FALSE(Arrive(packet, 10));
  EXPECT_FALSE(target().readable());
  EXPECT_FALSE(target().confirmed());
  packet.connection = 101;
  EXPECT_TRUE(Arrive(packet, 10));
  EXPECT_FALSE(Arrive(packet, 10));
  Bytes arrived;
  ReadSome(target(), &arrived);
  EXPECT_EQ(arrived.size(), 10u);
  EXPECT_EQ(target().ignored(), 2u);
}

TEST_F(UdpHostileTest, BytesBeyondTheWindowAreNotTaken) {
  udp::Packet packet = Fresh();
  packet.offset = (256 << 10) - 9;
  EXPECT_FALSE(Arrive(packet, 10));
  packet.offset -= 1;
  EXPECT_TRUE(Arrive(packet, 10));
  packet = Fresh();
  packet.offset = uint64_t{1} << 62;
  EXPECT_FALSE(Arrive(packet, 10));
}

TEST_F(UdpHostileTest, GapsAreBounded) {
  size_t taken = 0;
  for (uint64_t i = 1; i < 5000; ++i) {
    udp::Packet packet = Fresh();
    packet.offset = i * 2;
    taken += Arrive(packet, 1) ? 1 : 0;
  }
  EXPECT_EQ(taken, udp::Receiver::kGapsMax);
  for (uint64_t at = 0; at < 20000; at += 1000) {  // and what fills them is still welcome
    udp::Packet packet = Fresh();
    packet.offset = at;
    EXPECT_TRUE(Arrive(packet, 1000));
  }
  Bytes arrived;
  ReadSome(target(), &arrived);
  EXPECT_EQ(arrived.size(), 20000u);
}

TEST_F(UdpHostileTest, TheEndStaysWhereItWas) {
  udp::Packet packet = Fresh();
  packet.end = true;
  packet.offset = 5;
  EXPECT_TRUE(Arrive(packet, 5));
  packet = Fresh();
  packet.end = true;
  EXPECT_FALSE(Arrive(packet, 5));  // earlier
  packet = Fresh();
  packet.offset = 5;
  EXPECT_FALSE(Arrive(packet, 6));  // behind
  packet = Fresh();
  EXPECT_TRUE(Arrive(packet, 5));
  EXPECT_TRUE(target().hung_up());
  EXPECT_FALSE(target().cut());
}

TEST_F(UdpHostileTest, AcknowledgingWhatWasNeverSentChangesNothing) {
  size_t written = 0;
  const Bytes bytes = Pattern(1000, 1);
  WriteSome(target(), bytes, &written);
  Bytes out(udp::kDatagramBytesMax);
  EXPECT_GT(target().NextDatagram(network_.now, out), 1000u);
  udp::Packet packet = Fresh();
  packet.ack_count = 1;
  packet.acks[0] = {1, 1000000};
  Arrive(packet);
  EXPECT_EQ(target().Sample(0).bytes_acked, 0u);
  packet = Fresh();
  packet.ack_count = 1;
  packet.acks[0] = {1, 1};
  EXPECT_TRUE(Arrive(packet));
  EXPECT_EQ(target().Sample(0).bytes_acked, 1000u);
}

}  // namespace
}  // namespace weir::testing
