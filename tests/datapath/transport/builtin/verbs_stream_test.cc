// SPDX-License-Identifier: Apache-2.0
// The stream of the verbs transport without a device: two ends over queues of messages that behave
// like a reliable connection, and ends that break the rules.

#if WEIR_HAVE_Verbs
#include "datapath/transport/builtin/verbs/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>

#include "datapath/base/random.h"
#include "datapath/transport/mesh/hello.h"
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

// One end's slots and device. Messages wait in `arrived` until a slot is free, as in hardware. Such
// waits are counted, because credits must prevent them.
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

FrameChannel ChannelOf(int self, Protection protection) {
  if (protection == Protection::kChecked) return {};
  const auto secrets = DeriveChannel(JobKey{std::byte{1}}, Nonce(), Nonce(), {}, {});
  auto channel = MakeFrameChannel(*secrets, self == 1, protection);
  EXPECT_TRUE(channel.ok()) << channel.status();
  return std::move(*channel);
}

// Ranks 0 and 1, whose slots may differ.
struct Pair {
  explicit Pair(verbs::Window w0 = {4096, 4}, verbs::Window w1 = {4096, 4}, uint32_t send_slots = 6,
                Protection protection = Protection::kChecked)
      : ports{FakePort(w0, send_slots), FakePort(w1, send_slots)},
        ends{Stream(OptionsOf(0, w0, w1, send_slots), &ports[0], ChannelOf(0, protection)),
             Stream(OptionsOf(1, w1, w0, send_slots), &ports[1], ChannelOf(1, protection))} {}
  explicit Pair(Protection protection) : Pair({4096, 4}, {4096, 4}, 6, protection) {}

  // Moves everything that can move without another post.
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

class VerbsStreamTest : public ::testing::TestWithParam<Protection> {
 protected:
  static size_t Trailer() { return GetParam() == Protection::kChecked ? 0 : kFrameTagBytes; }
};
INSTANTIATE_TEST_SUITE_P(EveryProtection, VerbsStreamTest,
                         ::testing::Values(Protection::kChecked, Protection::kAuthenticated,
                                           Protection::kEncrypted));

TEST_P(VerbsStreamTest, FramesOfEverySizeArriveWholeWithinTheWindow) {
  for (const verbs::Window theirs : {verbs::Window{4096, 4}, {8192, 7}, {16384, 5}}) {
    Pair pair({8192, 4}, theirs, 9, GetParam());
    std::vector<Bytes> out, in;
    std::vector<mesh::Operation*> operations;
    // Where messages have 4096 or 8192 octets, some of these end in the middle of a tag.
    const size_t sizes[] = {0,    1,    4008, 4009, 4023, 4024, 4025,   8104,
                            8105, 8119, 8120, 8121, 0,    8192, 100000, 300};
    for (const size_t size : sizes) {
      out.push_back(Pattern(size, size + 1));
      in.emplace_back(size);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      for (int end : {0, 1}) operations.push_back(pair.PostSend(end, out[i]));
    }
    ASSERT_TRUE(pair.Settle().ok());  // no receive is posted yet, so all that fits waits in slots
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

TEST_P(VerbsStreamTest, ReceiverThatAsksLateHoldsTheSender) {
  Pair pair(GetParam());
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
  EXPECT_EQ(pair.bytes_sent.load(), kFrameHeaderBytes + out.size() + Trailer());
  EXPECT_EQ(pair.ends[1].bytes_received(), kFrameHeaderBytes + out.size() + Trailer());
}

// A collective may send hundreds of small segments before it receives, as sockets permit.
TEST_P(VerbsStreamTest, SmallFramesThatNobodyAsksForYetAreTakenUpToABound) {
  Pair pair(GetParam());
  constexpr size_t kFrames = 8000;
  std::vector<Bytes> out, in(kFrames, Bytes(3));
  std::vector<const mesh::Operation*> sends, receives;
  for (size_t i = 0; i < kFrames; ++i) out.push_back(Pattern(3, i));
  for (const Bytes& payload : out) sends.push_back(pair.PostSend(0, payload));
  ASSERT_TRUE(pair.Settle().ok());
  const auto done = static_cast<size_t>(
      std::count_if(sends.begin(), sends.end(), [](const auto* send) { return send->done; }));
  const size_t frame_bytes = kFrameHeaderBytes + 3 + Trailer();
  EXPECT_GT(done * frame_bytes, verbs::kSpillBytesMax - frame_bytes);
  EXPECT_LE(done * frame_bytes, verbs::kSpillBytesMax + 4 * frame_bytes);
  for (Bytes& buffer : in) receives.push_back(pair.PostReceive(1, buffer));
  ASSERT_TRUE(pair.Settle().ok());
  for (const auto* receive : receives) ASSERT_TRUE(receive->done);
  EXPECT_EQ(in, out);
  // It works again, because taking frames has made room.
  const mesh::Operation* const last = pair.PostSend(0, out[0]);
  ASSERT_TRUE(pair.Settle().ok());
  EXPECT_TRUE(last->done);
  EXPECT_EQ(pair.ports[1].unready, 0);
}

// Random traffic in both directions, driven in random order: no receive is ever missing, whatever
// the slots, and the credits never run dry for good.
TEST_P(VerbsStreamTest, CreditsNeverRunOutNorOverrun) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const auto window = [&] {
      return verbs::Window{4096, 4 + static_cast<uint32_t>(random.Below(13))};
    };
    Pair pair(window(), window(), 6 + static_cast<uint32_t>(random.Below(12)), GetParam());
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

TEST_P(VerbsStreamTest, ShutdownNoticeNeedsNoCreditAndWhatWasSentIsStillDelivered) {
  Pair pair(GetParam());
  const Bytes out = Pattern(verbs::kSpillBytesMax + 4 * 4096 - kFrameHeaderBytes - Trailer(), 5);
  Bytes in(out.size()), more(1);
  const mesh::Operation* const send = pair.PostSend(0, out);  // all that rank 1 takes
  ASSERT_TRUE(pair.Settle().ok());
  EXPECT_TRUE(send->done);
  ASSERT_TRUE(pair.ends[0].QueueShutdownNotice("").ok());
  EXPECT_FALSE(pair.ends[0].flushed());
  pair.ports[0].Complete(pair.ends[0]);
  EXPECT_TRUE(pair.ends[0].flushed());
  EXPECT_EQ(pair.ends[0].bytes_acked(), 2 * (kFrameHeaderBytes + Trailer()) + out.size());
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

TEST_P(VerbsStreamTest, ReasonIsToldBeforeTheFramesThatNobodyAskedFor) {
  Pair pair(GetParam());
  const Bytes out(50000);
  pair.PostSend(0, out);
  ASSERT_TRUE(pair.Settle().ok());
  ASSERT_TRUE(pair.ends[0].QueueShutdownNotice(std::string(3000, 'x')).ok());
  const Status status = pair.ports[1].Arrive(pair.ends[1], pair.ports[0].sent.back());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(weir::Message(status), "rank 0 reported: " + std::string(2048, 'x'));
}

TEST_P(VerbsStreamTest, DeathIsNoShutdownNotice) {
  Pair pair(GetParam());
  const Status status = pair.ends[0].OnEnd("transport retry counter exceeded");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(weir::Message(status),
            "rank 1 (fake) closed the connection (transport retry counter exceeded)");
}

TEST_P(VerbsStreamTest, SilentPeerIsProbedOncePerInterval) {
  Pair pair(GetParam());
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

// ---- on the path of peers that have a key

// Returns what rank 1 receives when rank 0 sends three frames of `size` bytes and leaves in order,
// and `meddle` changes the messages on their way. The last one is the shutdown notice.
Status Through(Protection protection, size_t size,
               const std::function<void(std::deque<QueuedMessage>*)>& meddle) {
  Pair pair({4096, 64}, {4096, 64}, 66, protection);
  const Bytes out = Pattern(3 * size, 5);
  Bytes in(3 * size);
  bool moved = false;
  for (size_t i = 0; i < 3; ++i) pair.PostSend(0, std::span(out).subspan(i * size, size));
  WEIR_RETURN_IF_ERROR(pair.ends[0].Drive(RealClock().Now(), &moved, &pair.bytes_sent));
  WEIR_RETURN_IF_ERROR(pair.ends[0].QueueShutdownNotice(""));
  meddle(&pair.ports[0].sent);
  std::vector<const mesh::Operation*> receives;
  for (size_t i = 0; i < 3; ++i) {
    receives.push_back(pair.PostReceive(1, std::span(in).subspan(i * size, size)));
  }
  for (const QueuedMessage& message : pair.ports[0].sent) {
    WEIR_RETURN_IF_ERROR(pair.ports[1].Arrive(pair.ends[1], message));
    WEIR_RETURN_IF_ERROR(pair.ends[1].Drive(RealClock().Now(), &moved, &pair.bytes_sent));
  }
  for (size_t i = 0; i < 3; ++i) {
    if (!receives[i]->done) return Internal(StrCat("frame ", i, " never came"));
    const Bytes sent(out.begin() + i * size, out.begin() + (i + 1) * size);
    const Bytes got(in.begin() + i * size, in.begin() + (i + 1) * size);
    if (got != sent) return Internal(StrCat("frame ", i, " is another one"));
  }
  return OkStatus();
}

using Messages = std::deque<QueuedMessage>;
class VerbsPathTest : public ::testing::TestWithParam<Protection> {};
INSTANTIATE_TEST_SUITE_P(AuthenticatedAndEncrypted, VerbsPathTest,
                         ::testing::Values(Protection::kAuthenticated, Protection::kEncrypted));

void ExpectFound(const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  EXPECT_THAT(weir::Message(status), HasSubstr("rank 0 (fake) sent "));
}

TEST_P(VerbsPathTest, WhoOnlyPassesOnIsNotNoticed) {
  for (const size_t size : {0, 400, 4010, 9000}) {
    EXPECT_EQ(Through(GetParam(), size, [](Messages*) {}), OkStatus()) << size;
  }
}

TEST_P(VerbsPathTest, EveryFlippedBitOfAFrameIsFound) {
  const size_t octets = kFrameHeaderBytes + 40 + kFrameTagBytes;
  for (size_t bit = 0; bit < octets * 8; ++bit) {
    for (const size_t victim : {size_t{1}, size_t{3}}) {  // the second frame, the shutdown notice
      if (victim == 3 && bit / 8 >= octets - 40) break;
      SCOPED_TRACE(StrCat("bit ", bit, " of message ", victim));
      ExpectFound(Through(GetParam(), 40, [&](Messages* sent) {
        ASSERT_EQ(sent->size(), 4u);
        sent->at(victim).bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      }));
    }
  }
}

TEST_P(VerbsPathTest, WhateverIsDoneToAFrameItIsNotDelivered) {
  const std::pair<const char*, std::function<void(Messages*)>> attacks[] = {
      {"repeats it", [](Messages* sent) { sent->insert(sent->begin() + 1, sent->at(1)); }},
      {"leaves it out", [](Messages* sent) { sent->erase(sent->begin() + 1); }},
      {"leaves the last one out", [](Messages* sent) { sent->erase(sent->begin() + 2); }},
      {"exchanges it with the next", [](Messages* sent) { std::swap(sent->at(1), sent->at(2)); }},
      {"cuts its end off", [](Messages* sent) { sent->at(1).bytes.resize(100); }},
      {"shortens it",
       [](Messages* sent) {
         Bytes& bytes = sent->at(1).bytes;
         const uint32_t size = 396;
         std::memcpy(&bytes[56], &size, sizeof size);
         bytes.erase(bytes.begin() + 100, bytes.begin() + 104);
       }},
      {"has checksums in place of the tag",
       [](Messages* sent) {
         sent->at(1).bytes = mesh::EncodeFrame(FrameType::kData, 0, Bytes(400));
       }},
      {"tells of a departure before it",
       [](Messages* sent) {
         sent->insert(sent->begin() + 1,
                      {mesh::EncodeAbort(0, ""), Immediate(MessageKind::kShutdownNotice, 0)});
       }},
      {"lets the true notice come before it",
       [](Messages* sent) { std::swap(sent->at(2), sent->at(3)); }},
  };
  for (const auto& [name, meddle] : attacks) {
    SCOPED_TRACE(name);
    ExpectFound(Through(GetParam(), 400, meddle));
  }
}

// The tag of a frame that is sent in several messages covers all of them.
TEST_P(VerbsPathTest, PiecesOfALongFrameCannotBeExchanged) {
  ExpectFound(Through(GetParam(), 12000, [](Messages* sent) {
    ASSERT_EQ(sent->size(), 3 * 3 + 1u);
    std::swap(sent->at(4).bytes, sent->at(1).bytes);
  }));
}

TEST(VerbsSecrecyTest, OnlyEncryptionHidesPayloads) {
  for (const Protection protection : {Protection::kAuthenticated, Protection::kEncrypted}) {
    bool seen = false;
    const Bytes start = Pattern(3 * 400, 5);
    EXPECT_EQ(Through(protection, 400,
                      [&](Messages* sent) {
                        const Bytes& bytes = sent->front().bytes;
                        seen = std::search(bytes.begin(), bytes.end(), start.begin(),
                                           start.begin() + 16) != bytes.end();
                      }),
              OkStatus());
    EXPECT_EQ(seen, protection == Protection::kAuthenticated);
  }
}

// The frame that the notice cuts has used up its number.
TEST_P(VerbsPathTest, AReasonIsHeardBehindAFrameThatWasHalfOut) {
  for (const bool asked : {false, true}) {
    Pair pair(GetParam());
    const Bytes first(10), out(100 * 4096);
    Bytes in(out.size());
    pair.PostSend(0, first);
    pair.PostSend(0, out);
    if (asked) pair.PostReceive(1, std::span(in).first(10));
    if (asked) pair.PostReceive(1, in);
    bool moved = false;
    ASSERT_TRUE(pair.ends[0].Drive(RealClock().Now(), &moved, &pair.bytes_sent).ok());
    ASSERT_TRUE(pair.ends[0].QueueShutdownNotice("no more").ok());
    Status status;
    for (const QueuedMessage& message : pair.ports[0].sent) {
      ASSERT_TRUE(status.ok()) << status;
      status = pair.ports[1].Arrive(pair.ends[1], message);
      if (status.ok()) status = pair.ends[1].Drive(RealClock().Now(), &moved, &pair.bytes_sent);
    }
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_EQ(weir::Message(status), "rank 0 reported: no more");
  }
}

// ---- peers that break the rules

QueuedMessage DataFrame(size_t payload, size_t cut_to = SIZE_MAX, uint16_t source = 1) {
  QueuedMessage message;
  message.bytes = mesh::EncodeFrame(FrameType::kData, source, Bytes(payload, std::byte{7}));
  message.bytes.resize(std::min(message.bytes.size(), cut_to));
  message.immediate = Immediate(MessageKind::kData, 0);
  return message;
}

// Returns rank 0's reaction to messages of rank 1.
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

TEST(VerbsRulesTest, BrokenMessagesNameTheSender) {
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

TEST(VerbsRulesTest, MessagesBeyondTheWindowNameTheSender) {
  Pair pair;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pair.ports[0].Arrive(pair.ends[0], DataFrame(1)).ok());
  }
  const Status status = pair.ports[0].Arrive(pair.ends[0], DataFrame(1));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(weir::Message(status), HasSubstr("rank 1 (fake) sent more than the 4 messages"));
}

}  // namespace
}  // namespace weir::testing
#endif  // WEIR_HAVE_Verbs
