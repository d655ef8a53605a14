// The stream of the verbs transport without a device: two ends over queues of messages that behave
// like a reliable connection, and ends that break the rules.

#if WEIR_HAVE_Verbs
#include "datapath/transport/builtin/verbs/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "datapath/base/random.h"
#include "datapath/transport/builtin/verbs/window.h"
#include "datapath/transport/mesh/hello.h"
#include "tests/support/golden.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using verbs::Immediate;
using verbs::MessageKind;
using verbs::Stream;
using Bytes = std::vector<std::byte>;

struct QueuedMessage {
  Bytes bytes;
  uint32_t immediate = 0;
};

// One end's slots and device: messages wait in `arrived` until a slot is free, as in hardware, but
// that needing to wait is counted, because credits must prevent it.
class FakePort : public verbs::MessagePort {
 public:
  FakePort(verbs::Window window, uint32_t send_slots)
      : receive_(window.slots + verbs::kSpareSlots, Bytes(window.slot_bytes)),
        send_(send_slots, Bytes(window.slot_bytes)) {
    for (uint32_t slot = 0; slot < receive_.size(); ++slot) free_.push_back(slot);
  }

  std::span<std::byte> SendSlot(uint32_t slot) override { return send_[slot]; }
  std::span<const std::byte> ReceiveSlot(uint32_t slot) override { return receive_[slot]; }
  Status Send(uint32_t slot, size_t bytes, uint32_t immediate, bool signaled) override {
    sent.push_back({Bytes(send_[slot].begin(), send_[slot].begin() + bytes), immediate});
    under_way_.push_back({slot, signaled});
    most_under_way = std::max(most_under_way, under_way_.size());
    return OkStatus();
  }
  Status Probe(uint32_t slot) override {
    ++probes;
    under_way_.push_back({slot, true});
    return OkStatus();
  }
  Status Receive(uint32_t slot) override {
    free_.push_back(slot);
    return OkStatus();
  }

  // Lets the peer's message arrive here.
  Status Arrive(Stream& stream, const QueuedMessage& message) {
    if (free_.empty()) {
      ++unready;
      return Internal("no receive is posted");
    }
    const uint32_t slot = free_.front();
    free_.pop_front();
    std::copy(message.bytes.begin(), message.bytes.end(), receive_[slot].begin());
    return stream.OnMessage(slot, message.bytes.size(), message.immediate, RealClock().Now());
  }

  // Completes what was sent, up to the last signaled message.
  void Complete(Stream& stream) {
    size_t last = under_way_.size();
    while (last > 0 && !under_way_[last - 1].second) --last;
    if (last == 0) return;
    stream.OnSent(under_way_[last - 1].first, RealClock().Now());
    under_way_.erase(under_way_.begin(), under_way_.begin() + last);
  }

  std::deque<QueuedMessage> sent;
  size_t most_under_way = 0;
  int unready = 0, probes = 0;

 private:
  std::vector<Bytes> receive_, send_;
  std::deque<uint32_t> free_;
  std::vector<std::pair<uint32_t, bool>> under_way_;
};

Stream::Options OptionsOf(int self, verbs::Window ours, verbs::Window theirs, uint32_t send_slots) {
  Stream::Options options;
  options.self = self;
  options.peer = 1 - self;
  options.address = "fake";
  options.ours = ours;
  options.theirs = theirs;
  options.send_slots = send_slots;
  return options;
}

// Ranks 0 and 1, whose slots may differ.
struct Pair {
  explicit Pair(verbs::Window w0 = {4096, 4}, verbs::Window w1 = {4096, 4}, uint32_t send_slots = 6)
      : ports{FakePort(w0, send_slots), FakePort(w1, send_slots)},
        ends{Stream(OptionsOf(0, w0, w1, send_slots), &ports[0]),
             Stream(OptionsOf(1, w1, w0, send_slots), &ports[1])} {}

  // Everything that can move without another post.
  Status Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int end : {0, 1}) {
        WEIR_RETURN_IF_ERROR(ends[end].Drive(RealClock().Now(), &moved, &bytes_sent));
        ports[end].Complete(ends[end]);
        while (!ports[end].sent.empty()) {
          moved = true;
          const QueuedMessage message = ports[end].sent.front();
          ports[end].sent.pop_front();
          WEIR_RETURN_IF_ERROR(ports[1 - end].Arrive(ends[1 - end], message));
        }
      }
    }
    return OkStatus();
  }

  mesh::Operation* PostSend(int end, std::span<const std::byte> payload) {
    operations.emplace_back();
    operations.back().send = true;
    operations.back().payload = payload;
    ends[end].PostSend(&operations.back());
    return &operations.back();
  }
  mesh::Operation* PostReceive(int end, std::span<std::byte> buffer) {
    operations.emplace_back();
    operations.back().buffer = buffer;
    ends[end].PostReceive(&operations.back());
    return &operations.back();
  }

  FakePort ports[2];
  Stream ends[2];
  std::deque<mesh::Operation> operations;
  std::atomic<uint64_t> bytes_sent = 0;
};

TEST(VerbsStreamTest, FramesOfEverySizeArriveWholeWithinTheWindow) {
  for (const verbs::Window theirs : {verbs::Window{4096, 4}, {8192, 7}, {16384, 5}}) {
    Pair pair({8192, 4}, theirs, 9);
    std::vector<Bytes> out, in;
    std::vector<mesh::Operation*> operations;
    const size_t sizes[] = {0, 1, 4023, 4024, 4025, 8119, 8120, 8121, 100000, 0, 8192, 300};
    for (const size_t size : sizes) {
      out.push_back(Pattern(size, size + 1));
      in.emplace_back(size);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      for (int end : {0, 1}) operations.push_back(pair.PostSend(end, out[i]));
    }
    ASSERT_TRUE(pair.Settle().ok());  // nobody receives yet: all that fits waits in slots
    for (int end : {0, 1}) {
      EXPECT_LT(pair.ports[end].most_under_way, 9u);
      std::vector<mesh::Operation*> receives;
      for (Bytes& buffer : in) receives.push_back(pair.PostReceive(end, buffer));
      const Status settled = pair.Settle();
      ASSERT_TRUE(settled.ok()) << settled;
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_TRUE(receives[i]->done) << "message " << i << " to rank " << end;
        EXPECT_EQ(receives[i]->header.payload_bytes, sizes[i]);
        EXPECT_EQ(in[i], out[i]) << "message " << i;
        std::fill(in[i].begin(), in[i].end(), std::byte{});
      }
    }
    for (const mesh::Operation* operation : operations) EXPECT_TRUE(operation->done);
    EXPECT_EQ(pair.ports[0].unready + pair.ports[1].unready, 0);
  }
}

TEST(VerbsStreamTest, ReceiverThatAsksLateHoldsTheSender) {
  Pair pair;
  const Bytes out = Pattern(100 * 4096, 3);
  Bytes in(out.size());
  const mesh::Operation* const send = pair.PostSend(0, out);
  ASSERT_TRUE(pair.Settle().ok());
  EXPECT_FALSE(send->done);
  EXPECT_EQ(pair.bytes_sent.load(), verbs::kSpillBytesMax + 4 * 4096u);  // and rank 1's window
  const mesh::Operation* const receive = pair.PostReceive(1, in);
  ASSERT_TRUE(pair.Settle().ok());
  EXPECT_TRUE(send->done && receive->done);
  EXPECT_EQ(in, out);
  EXPECT_EQ(pair.bytes_sent.load(), kFrameHeaderBytes + out.size());
  EXPECT_EQ(pair.ends[1].bytes_received(), kFrameHeaderBytes + out.size());
}

// A collective may send hundreds of small segments before it receives: sockets take them.
TEST(VerbsStreamTest, SmallFramesThatNobodyAsksForYetAreTakenUpToABound) {
  Pair pair;
  constexpr size_t kFrames = 8000;
  std::vector<Bytes> out, in(kFrames, Bytes(3));
  std::vector<const mesh::Operation*> sends, receives;
  for (size_t i = 0; i < kFrames; ++i) out.push_back(Pattern(3, i));
  for (const Bytes& payload : out) sends.push_back(pair.PostSend(0, payload));
  ASSERT_TRUE(pair.Settle().ok());
  const auto done = static_cast<size_t>(
      std::count_if(sends.begin(), sends.end(), [](const auto* send) { return send->done; }));
  constexpr size_t kFrameBytes = kFrameHeaderBytes + 3;
  EXPECT_GT(done * kFrameBytes, verbs::kSpillBytesMax - kFrameBytes);
  EXPECT_LE(done * kFrameBytes, verbs::kSpillBytesMax + 4 * kFrameBytes);
  for (Bytes& buffer : in) receives.push_back(pair.PostReceive(1, buffer));
  ASSERT_TRUE(pair.Settle().ok());
  for (const auto* receive : receives) ASSERT_TRUE(receive->done);
  EXPECT_EQ(in, out);
  // And again: what was taken out has made room.
  const mesh::Operation* const last = pair.PostSend(0, out[0]);
  ASSERT_TRUE(pair.Settle().ok());
  EXPECT_TRUE(last->done);
  EXPECT_EQ(pair.ports[1].unready, 0);
}

// Random traffic in both directions, driven in random order: no receive is ever missing, whatever
// the slots, and the credits never run dry for good.
TEST(VerbsStreamTest, CreditsNeverRunOutNorOverrun) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const auto window = [&] {
      return verbs::Window{4096, 4 + static_cast<uint32_t>(random.Below(13))};
    };
    Pair pair(window(), window(), 6 + static_cast<uint32_t>(random.Below(12)));
    std::deque<Bytes> out, in;
    std::vector<const mesh::Operation*> all;
    int left[2][2] = {{60, 60}, {60, 60}};
    size_t sizes[2][60];
    for (int end : {0, 1}) {
      for (size_t& size : sizes[end]) size = random.Below(12000);
    }
    for (int posted = 0; posted < 240;) {
      const auto end = static_cast<int>(random.Below(2));
      const auto sends = static_cast<int>(random.Below(2));
      if (left[end][sends] > 0) {
        const size_t size = sizes[sends ? end : 1 - end][60 - left[end][sends]];
        if (sends) {
          out.push_back(Pattern(size, posted));
          all.push_back(pair.PostSend(end, out.back()));
        } else {
          in.emplace_back(size);
          all.push_back(pair.PostReceive(end, in.back()));
        }
        --left[end][sends];
        ++posted;
      }
      bool moved = false;
      if (random.Below(3) == 0) {
        ASSERT_TRUE(pair.ends[end].Drive(RealClock().Now(), &moved, &pair.bytes_sent).ok());
      }
      if (random.Below(3) == 0) pair.ports[end].Complete(pair.ends[end]);
      while (random.Below(2) == 0 && !pair.ports[end].sent.empty()) {
        const QueuedMessage message = pair.ports[end].sent.front();
        pair.ports[end].sent.pop_front();
        const Status status = pair.ports[1 - end].Arrive(pair.ends[1 - end], message);
        ASSERT_TRUE(status.ok()) << status;
      }
    }
    const Status settled = pair.Settle();
    ASSERT_TRUE(settled.ok()) << settled;
    for (const mesh::Operation* operation : all) ASSERT_TRUE(operation->done);
    EXPECT_EQ(pair.ports[0].unready + pair.ports[1].unready, 0);
  }
}

TEST(VerbsStreamTest, ShutdownNoticeNeedsNoCreditAndWhatWasSentIsStillDelivered) {
  Pair pair;
  const Bytes out = Pattern(verbs::kSpillBytesMax + 4 * 4096 - kFrameHeaderBytes, 5);
  Bytes in(out.size()), more(1);
  const mesh::Operation* const send = pair.PostSend(0, out);  // all that rank 1 takes
  ASSERT_TRUE(pair.Settle().ok());
  EXPECT_TRUE(send->done);
  ASSERT_TRUE(pair.ends[0].QueueShutdownNotice("").ok());
  EXPECT_FALSE(pair.ends[0].flushed());
  pair.ports[0].Complete(pair.ends[0]);
  EXPECT_TRUE(pair.ends[0].flushed());
  EXPECT_EQ(pair.ends[0].bytes_acked(), 2 * kFrameHeaderBytes + out.size());
  ASSERT_TRUE(pair.ports[1].Arrive(pair.ends[1], pair.ports[0].sent.back()).ok());
  EXPECT_TRUE(pair.ends[1].departed());
  EXPECT_TRUE(pair.ends[1].OnEnd("disconnected").ok());
  const mesh::Operation* const receive = pair.PostReceive(1, in);
  EXPECT_FALSE(pair.ends[1].CannotFinish(*receive));
  bool moved = false;
  ASSERT_TRUE(pair.ends[1].Drive(RealClock().Now(), &moved, &pair.bytes_sent).ok());
  EXPECT_TRUE(receive->done);
  EXPECT_EQ(in, out);
  EXPECT_TRUE(pair.ends[1].CannotFinish(*pair.PostReceive(1, more)));
  EXPECT_TRUE(pair.ends[1].CannotFinish(*pair.PostSend(1, more)));
}

TEST(VerbsStreamTest, ReasonIsToldBeforeTheFramesThatNobodyAskedFor) {
  Pair pair;
  const Bytes out(50000);
  pair.PostSend(0, out);
  ASSERT_TRUE(pair.Settle().ok());
  ASSERT_TRUE(pair.ends[0].QueueShutdownNotice(std::string(3000, 'x')).ok());
  const Status status = pair.ports[1].Arrive(pair.ends[1], pair.ports[0].sent.back());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(weir::Message(status), "rank 0 reported: " + std::string(2048, 'x'));
}

TEST(VerbsStreamTest, DeathIsNoShutdownNotice) {
  Pair pair;
  const Status status = pair.ends[0].OnEnd("transport retry counter exceeded");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(weir::Message(status),
            "rank 1 (fake) closed the connection (transport retry counter exceeded)");
}

TEST(VerbsStreamTest, SilentPeerIsProbedOncePerInterval) {
  Pair pair;
  const TimePoint now = RealClock().Now();
  const auto later = [&](int s) { return now + std::chrono::seconds(s); };
  const Duration silence = std::chrono::seconds(10);
  const auto probe = [&](int s) { return pair.ends[0].ProbeIfSilent(later(s), silence).ok(); };
  EXPECT_TRUE(probe(5));
  EXPECT_EQ(pair.ports[0].probes, 0);
  EXPECT_TRUE(probe(11) && probe(12));
  EXPECT_EQ(pair.ports[0].probes, 1);
  EXPECT_FALSE(pair.ends[0].flushed());
  pair.ports[0].Complete(pair.ends[0]);
  EXPECT_TRUE(pair.ends[0].flushed());
  EXPECT_TRUE(probe(22));
  EXPECT_EQ(pair.ports[0].probes, 2);
}

// ---- peers that break the rules

QueuedMessage DataFrame(size_t payload, size_t cut_to = SIZE_MAX, uint16_t source = 1) {
  QueuedMessage message;
  message.bytes = mesh::EncodeFrame(FrameType::kData, source, Bytes(payload, std::byte{7}));
  message.bytes.resize(std::min(message.bytes.size(), cut_to));
  message.immediate = Immediate(MessageKind::kData, 0);
  return message;
}

// What rank 0 says to messages of rank 1.
Status Answer(const std::vector<QueuedMessage>& messages) {
  Pair pair;
  static Bytes buffer(20000);
  pair.PostReceive(0, buffer);
  bool moved = false;
  for (const QueuedMessage& message : messages) {
    WEIR_RETURN_IF_ERROR(pair.ports[0].Arrive(pair.ends[0], message));
    WEIR_RETURN_IF_ERROR(pair.ends[0].Drive(RealClock().Now(), &moved, &pair.bytes_sent));
  }
  return OkStatus();
}

TEST(VerbsStreamTest, BrokenMessagesNameTheSender) {
  QueuedMessage no_shutdown_notice = {mesh::EncodeFrame(FrameType::kAbort, 1, {}),
                                      Immediate(MessageKind::kData, 0)};
  QueuedMessage hello = {mesh::EncodeFrame(FrameType::kHello, 1, {}),
                         Immediate(MessageKind::kData, 0)};
  QueuedMessage shutdown_notice = no_shutdown_notice;
  shutdown_notice.immediate = Immediate(MessageKind::kShutdownNotice, 0);
  QueuedMessage torn_shutdown_notice = shutdown_notice, false_shutdown_notice = DataFrame(5),
                flipped = DataFrame(100);
  torn_shutdown_notice.bytes.resize(71);
  false_shutdown_notice.immediate = Immediate(MessageKind::kShutdownNotice, 0);
  flipped.bytes.back() ^= std::byte{1};
  QueuedMessage flipped_header = DataFrame(100);
  flipped_header.bytes[12] ^= std::byte{1};
  const QueuedMessage generous = {{}, Immediate(MessageKind::kCredits, 1)};
  const QueuedMessage full_credits = {Bytes(3), Immediate(MessageKind::kCredits, 0)};
  const QueuedMessage unknown = {{}, 77u << 16};
  const QueuedMessage short_piece = {Bytes(10), Immediate(MessageKind::kData, 0)};
  const struct {
    std::vector<QueuedMessage> messages;
    const char* text;
  } cases[] = {
      {{generous}, "credits for 5 slots; it has 4"},
      {{full_credits}, "credits with 3 bytes"},
      {{unknown}, "a message of unknown kind 77"},
      {{DataFrame(0, 71)}, "the beginning of a frame in 71 bytes"},
      {{DataFrame(100, 171)}, "a piece of 171 bytes in a frame of 100; expected 172"},
      {{DataFrame(9000, 4095)}, "a piece of 4095 bytes in a frame of 9000; expected 4096"},
      {{DataFrame(9000, 4096), short_piece}, "a piece of 10 bytes in a frame of 9000"},
      {{DataFrame(10, SIZE_MAX, 3)}, "a frame that claims to be from rank 3"},
      {{flipped}, "a corrupt payload"},
      {{flipped_header}, "a malformed frame"},
      {{no_shutdown_notice}, "an abort frame among its data"},
      {{hello}, "a second hello"},
      {{torn_shutdown_notice}, "the beginning of a frame in 71 bytes"},
      {{false_shutdown_notice}, "a corrupt abort frame"},
      {{shutdown_notice, DataFrame(1)}, "a message after its shutdown notice"},
  };
  for (const auto& [messages, text] : cases) {
    SCOPED_TRACE(text);
    const Status status = Answer(messages);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_THAT(weir::Message(status), AllOf(HasSubstr("rank 1 (fake) sent "), HasSubstr(text)));
  }
  EXPECT_TRUE(Answer({DataFrame(10), shutdown_notice}).ok());
}

TEST(VerbsStreamTest, MessagesBeyondTheWindowNameTheSender) {
  Pair pair;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pair.ports[0].Arrive(pair.ends[0], DataFrame(1)).ok());
  }
  const Status status = pair.ports[0].Arrive(pair.ends[0], DataFrame(1));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(weir::Message(status), HasSubstr("rank 1 (fake) sent more than the 4 messages"));
}

// ---- private data

verbs::Hello SomeHello() {
  return {
      .job = 0x0123456789abcdef, .rank = 1, .world = 4, .expected_peer = 0, .window = {32768, 16}};
}

TEST(VerbsHelloTest, PrivateDataHasItsRecordedBytesAndTheDocumentShowsThem) {
  auto golden = ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/verbs_hello_v1.hex");
  const GoldenBytes& recorded = golden
      ["request of rank 1 to rank 0, world 4, job 0x0123456789abcdef, 16 slots of 32768 octets"];
  const auto encoded = verbs::EncodeHello(SomeHello());
  EXPECT_EQ(Bytes(encoded.begin(), encoded.end()), recorded.bytes);
  EXPECT_THAT(ReadText(WEIR_TEST_SOURCE_DIR "/../proto/WIRE.md"), HasSubstr(recorded.dump));
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
