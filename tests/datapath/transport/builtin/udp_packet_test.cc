// The parts of the udp transport's links by themselves: bytes, sets of ranges, cookies, estimates.

#include "datapath/transport/builtin/udp/packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "datapath/base/random.h"
#include "datapath/transport/builtin/udp/congestion.h"
#include "datapath/transport/builtin/udp/cookie.h"
#include "datapath/transport/builtin/udp/range_set.h"
#include "tests/support/golden.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kDialer = 0xfedcba9876540000, kListener = 0x1111222233330001;

udp::Handshake SomeAnswer() {
  udp::Handshake answer;
  answer.type = udp::DatagramType::kAnswer;
  answer.connection = kDialer;
  answer.job = 0x0123456789abcdef;
  answer.rank = 0;
  answer.world = 4;
  answer.expected_peer = UINT32_MAX;
  answer.datagram_bytes = 8952;
  answer.own_connection = kListener;
  answer.window = 2 << 20;
  return answer;
}

// Bytes 1000 .. 1007 of the stream; packets 5 .. 9, 3 and 2 of the peer have come.
Bytes SomePacket() {
  const std::string_view payload = "gradient";
  udp::Packet packet;
  packet.connection = kListener;
  packet.number = 17;
  packet.window = 2098152;
  packet.offset = 1000;
  packet.ack_delay_us = 250;
  packet.ack_count = 2;
  packet.marks = 3;
  packet.acks[0] = {5, 9};
  packet.acks[1] = {2, 3};
  const size_t head = udp::PacketHeaderBytes(packet.ack_count);
  Bytes datagram(head + payload.size());
  udp::EncodePacketHeader(packet, datagram);
  std::memcpy(datagram.data() + head, payload.data(), payload.size());
  udp::Seal(datagram);
  return datagram;
}

TEST(UdpPacketTest, DatagramsHaveTheirRecordedBytesAndTheDocumentShowsThem) {
  auto golden = ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/udp_v3.hex");
  const std::string document = ReadText(WEIR_TEST_SOURCE_DIR "/../proto/WIRE.md");
  const GoldenBytes& answer = golden["answer of rank 0 to rank 1, world 4"];
  EXPECT_EQ(udp::EncodeHandshake(SomeAnswer()), answer.bytes);
  EXPECT_THAT(document, HasSubstr(answer.dump));
  const GoldenBytes& packet = golden["packet 17 with two ack ranges and 8 bytes"];
  EXPECT_EQ(SomePacket(), packet.bytes);
  EXPECT_THAT(document, HasSubstr(packet.dump));
}

TEST(UdpPacketTest, PacketsComeBackAsTheyWere) {
  const Bytes datagram = SomePacket();
  const auto prefix = udp::DecodePrefix(datagram);
  ASSERT_TRUE(prefix.ok()) << prefix.status();
  EXPECT_EQ(prefix->type, udp::DatagramType::kPacket);
  EXPECT_EQ(prefix->connection, kListener);
  udp::Packet packet;
  ASSERT_TRUE(udp::DecodePacket(datagram, &packet).ok());
  EXPECT_EQ(packet.number, 17u);
  EXPECT_EQ(packet.offset, 1000u);
  EXPECT_EQ(packet.window, 2098152u);
  EXPECT_EQ(packet.ack_delay_us, 250u);
  EXPECT_EQ(packet.marks, 3u);
  ASSERT_EQ(packet.ack_count, 2u);
  EXPECT_EQ(packet.acks[0].first, 5u);
  EXPECT_EQ(packet.acks[0].last, 9u);
  EXPECT_EQ(packet.acks[1].first, 2u);
  EXPECT_EQ(packet.acks[1].last, 3u);
  EXPECT_EQ(packet.payload.size(), 8u);
  EXPECT_FALSE(packet.ping);
  EXPECT_FALSE(packet.end);
  EXPECT_FALSE(udp::DecodeHandshake(datagram).ok());
}

TEST(UdpPacketTest, HandshakesComeBackAsTheyWere) {
  udp::Handshake hello = SomeAnswer();
  hello.type = udp::DatagramType::kHello;
  hello.cookie = 77;
  const Bytes datagram = udp::EncodeHandshake(hello);
  EXPECT_EQ(datagram.size(), udp::kDatagramBytesMin);
  const auto decoded = udp::DecodeHandshake(datagram);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->cookie, 77u);
  EXPECT_EQ(decoded->job, hello.job);
  EXPECT_EQ(decoded->own_connection, kListener);
  Bytes shorter(datagram.begin(), datagram.end() - 1);
  udp::Seal(shorter);
  EXPECT_EQ(udp::DecodeHandshake(shorter).status().code(), StatusCode::kDataLoss);

  udp::Handshake refusal = SomeAnswer();
  refusal.type = udp::DatagramType::kRefusal;
  refusal.text = std::string(5000, 'x');
  const auto cut = udp::DecodeHandshake(udp::EncodeHandshake(refusal));
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->text, std::string(udp::kRefusalTextMax, 'x'));
}

TEST(UdpPacketTest, EveryFlippedBitAndMissingByteIsFound) {
  for (const Bytes& whole : {SomePacket(), udp::EncodeHandshake(SomeAnswer())}) {
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      Bytes damaged = whole;
      damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_EQ(udp::DecodePrefix(damaged).status().code(), StatusCode::kDataLoss) << "bit " << bit;
    }
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(udp::DecodePrefix(std::span(whole).first(size)).ok()) << size << " bytes";
    }
  }
}

TEST(UdpPacketTest, RangesThatCannotBeAreRefused) {
  const auto decode = [](size_t at, uint32_t value) {
    Bytes datagram = SomePacket();
    std::memcpy(datagram.data() + at, &value, sizeof value);
    udp::Seal(datagram);
    udp::Packet packet;
    return udp::DecodePacket(datagram, &packet);
  };
  EXPECT_TRUE(decode(60, 5).ok());
  for (const auto& [at, value] :
       std::vector<std::pair<size_t, uint32_t>>{{60, 0},        // an empty range
                                                {60, 10},       // below number 1
                                                {56, 1},        // a gap before the first
                                                {64, 0},        // none before the second
                                                {64, 4},        // below number 1, by the gap
                                                {68, 4},        // and by the length
                                                {24, 0x2100},   // 33 ranges without the flag
                                                {24, 0x2101},   // and with it
                                                {24, 0x0008}})  // an unknown flag
  {
    EXPECT_EQ(decode(at, value).code(), StatusCode::kDataLoss) << at << " = " << value;
  }
}

TEST(UdpRangeSetTest, AgreesWithASetOfNumbers) {
  Random random(5);
  udp::RangeSet ranges;
  std::set<uint64_t> numbers;
  for (int round = 0; round < 4000; ++round) {
    const uint64_t begin = random.Below(200), end = begin + random.Below(20);
    if (random.Below(2) == 0) {
      ASSERT_EQ(ranges.SizeWith(begin, end + 1), [&] {
        udp::RangeSet copy = ranges;
        copy.Add(begin, end + 1);
        return copy.size();
      }());
      ranges.Add(begin, end);
      for (uint64_t i = begin; i < end; ++i) numbers.insert(i);
    } else {
      ranges.Remove(begin, end);
      for (uint64_t i = begin; i < end; ++i) numbers.erase(i);
    }
    uint64_t covered = 0, last = 0;
    for (const auto& range : ranges.ranges()) {
      ASSERT_TRUE(covered == 0 || range.begin > last) << "ranges touch";
      ASSERT_LT(range.begin, range.end);
      covered += range.end - range.begin;
      last = range.end;
    }
    ASSERT_EQ(covered, numbers.size());
    for (uint64_t i = 0; i < 220; ++i) ASSERT_EQ(ranges.Contains(i), numbers.count(i) == 1) << i;
  }
}

TEST(UdpCookieTest, HashHasThePublishedValue) {
  std::array<uint64_t, 2> key = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  Bytes input;
  for (int i = 0; i < 15; ++i) input.push_back(static_cast<std::byte>(i));
  EXPECT_EQ(udp::SipHash(key, input), 0xa129ca6149be45e5u);
}

TEST(UdpCookieTest, IsGoodForOneAddressOneHelloAndSomeSeconds) {
  const udp::CookieJar jar({1, 2}), other({1, 3});
  const auto from = mesh::ResolveAddress("10.0.0.1:29500");
  ASSERT_TRUE(from.ok());
  const TimePoint now(seconds(1000));
  udp::Handshake hello = SomeAnswer();
  hello.cookie = jar.Bake(*from, hello, now);
  EXPECT_TRUE(jar.Recognise(*from, hello, now));
  EXPECT_TRUE(jar.Recognise(*from, hello, now + seconds(9)));
  EXPECT_FALSE(jar.Recognise(*from, hello, now + seconds(21)));
  EXPECT_FALSE(other.Recognise(*from, hello, now));
  for (const char* elsewhere : {"10.0.0.2:29500", "10.0.0.1:29501"}) {
    EXPECT_FALSE(jar.Recognise(*mesh::ResolveAddress(elsewhere), hello, now)) << elsewhere;
  }
  hello.own_connection ^= 1 << 20;
  EXPECT_FALSE(jar.Recognise(*from, hello, now));
}

// ---- estimates

TEST(UdpRttTest, FollowsTheRecurrence) {
  udp::RttEstimator rtt;
  EXPECT_EQ(rtt.ProbeTimeout(), seconds(1));
  rtt.OnSample(milliseconds(100), milliseconds(50));  // the first is taken as it is
  EXPECT_EQ(rtt.smoothed(), milliseconds(100));
  EXPECT_EQ(rtt.deviation(), milliseconds(50));
  rtt.OnSample(milliseconds(190), milliseconds(10));
  EXPECT_EQ(rtt.deviation(), (3 * Duration(milliseconds(50)) + milliseconds(80)) / 4);
  EXPECT_EQ(rtt.smoothed(), milliseconds(110));
  EXPECT_EQ(rtt.least(), milliseconds(100));
  rtt.OnSample(milliseconds(100), milliseconds(90));  // the delay cannot have been that long
  EXPECT_EQ(rtt.smoothed(), (7 * Duration(milliseconds(110)) + milliseconds(100)) / 8);
}

TEST(UdpCongestionTest, DoublesThenGrowsByOneDatagramARoundTripAndHalvesOnce) {
  udp::CongestionWindow window(1200);
  EXPECT_EQ(window.bytes(), 12000u);
  TimePoint now(seconds(10));
  window.OnAcked(12000, now, true);
  EXPECT_EQ(window.bytes(), 24000u);
  window.OnAcked(12000, now, false);  // the application was what limited
  EXPECT_EQ(window.bytes(), 24000u);
  window.OnLost(now, now + milliseconds(10));
  EXPECT_EQ(window.bytes(), 12000u);
  window.OnLost(now + milliseconds(5), now + milliseconds(20));  // of the same round trip
  EXPECT_EQ(window.bytes(), 12000u);
  window.OnAcked(12000, now + milliseconds(5), true);  // sent before
  EXPECT_EQ(window.bytes(), 12000u);
  now += milliseconds(30);
  window.OnAcked(12000, now, true);
  EXPECT_EQ(window.bytes(), 13200u);
  for (int i = 0; i < 10; ++i) {
    now += milliseconds(10);
    window.OnLost(now, now);
  }
  EXPECT_EQ(window.bytes(), 2400u);
}

TEST(UdpCongestionTest, SlowStartEndsWhereAQueueShows) {
  for (const int queue_ms : {2, 6}) {
    udp::CongestionWindow window(1200);
    TimePoint now(seconds(10));
    for (int round = 0; round < 3; ++round) {
      const TimePoint sent = now;
      now += milliseconds(20 + (round == 2 ? queue_ms : 0));
      for (int i = 0; i < 10; ++i) window.OnRoundTrip(now - sent, sent, now);
    }
    EXPECT_EQ(window.slow_start(), queue_ms == 2) << queue_ms << " ms";
    EXPECT_EQ(window.bytes(), 12000u);
  }
}

TEST(UdpPacerTest, SpreadsTheWindowOverTheRoundTrip) {
  udp::CongestionWindow window(1200);
  udp::RttEstimator rtt;
  udp::Pacer pacer;
  TimePoint now(seconds(10));
  pacer.SetRate(window, rtt, 1200);
  for (int i = 0; i < 1000; ++i) pacer.OnSent(1200);
  EXPECT_LE(pacer.ReadyAt(now), now);  // no round trip was measured
  rtt.OnSample(milliseconds(100), Duration(0));
  udp::Pacer paced;
  paced.SetRate(window, rtt, 1200);
  size_t sent = 0;
  for (const TimePoint end = now + seconds(1); now < end;) {
    const TimePoint ready = paced.ReadyAt(now);
    if (ready > now) {
      now = ready;
      continue;
    }
    paced.OnSent(1200);
    sent += 1200;
  }
  // Twice the window per round trip in slow start, and the first burst.
  EXPECT_NEAR(static_cast<double>(sent), 2 * 12000 * 10 + 16 * 1200, 2 * 1200);
}

}  // namespace
}  // namespace weir::testing
