// SPDX-License-Identifier: Apache-2.0
// Streams of segments and small exchanges. No function here waits for a send before the receives
// are posted that the peer may be waiting for. A send completes once the peer reads, and a peer
// reads whenever it waits for anything, so waits never form a cycle.

#include "datapath/collective/primitives.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "datapath/base/check.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/wire/frame.h"

namespace weir {
namespace {

// Slots distinguish the parts of one operation.
constexpr uint32_t kSmallExchangeSlot = 0xF0000000;
constexpr uint32_t kPayloadSlot = 0xE0000000;
constexpr uint32_t kLengthSlot = 0xEFFFFFFF;

// The largest packet that TCP passes down at once. It consists of whole segments and has at most
// 64 KiB: 62636 bytes at an MTU of 9000, 65160 at one of 1500.
constexpr size_t kPacketBytes = 62600;
// Segments that fill packets begin at multiples of this, as segments whose size is a power of two
// do, so that code which works on blocks of lanes finds whole blocks.
constexpr size_t kPageBytes = 4096;

size_t CeilDivide(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

Lanes FloatLanes(std::span<float> values) {
  return {std::as_writable_bytes(values), sizeof(float), AccumulateFloatLanes};
}

Partition::Partition(std::span<std::byte> bytes, const PartitionOptions& options)
    : bytes_(bytes),
      lane_bytes_(options.lane_bytes),
      parts_(options.parts),
      lanes_(bytes.size() / options.lane_bytes) {
  size_t chunk_lanes = CeilDivide(lanes_, parts_);
  if (!options.shares.empty()) {
    WEIR_CHECK(options.shares.size() == parts_);
    uint64_t shares = 0;
    chunk_lanes = 0;
    first_lanes_.push_back(0);
    for (const uint32_t share : options.shares) {
      shares += share;
      // Lanes are far fewer than 2^48.
      first_lanes_.push_back(lanes_ * shares / kShardShareTotal);
      chunk_lanes = std::max(chunk_lanes, first_lanes_.back() - first_lanes_.end()[-2]);
    }
    WEIR_CHECK(shares == kShardShareTotal);
  }
  const size_t deep_bytes = std::max(CeilDivide(chunk_lanes * lane_bytes_, options.pipeline_depth),
                                     options.pipeline_bytes_min);
  const size_t wanted_lanes = std::min(options.segment_bytes, deep_bytes) / lane_bytes_;
  segment_lanes_ =
      std::max<size_t>({wanted_lanes, CeilDivide(chunk_lanes, options.segments_max), 1});
  segments_ = std::max<size_t>(CeilDivide(chunk_lanes, segment_lanes_), 1);
  // Segments are equal, because a short last one would cost a message for few bytes.
  segment_lanes_ = std::max<size_t>(CeilDivide(chunk_lanes, segments_), 1);
  FillPackets(chunk_lanes, options.segments_max);
}

void Partition::FillPackets(size_t chunk_lanes, size_t segments_max) {
  const auto packets = [](size_t bytes) {
    return CeilDivide(kFrameHeaderBytes + bytes, kPacketBytes);
  };
  const size_t whole = (kFrameHeaderBytes + segment_bytes()) / kPacketBytes * kPacketBytes;
  if (whole < 2 * kPacketBytes) return;
  const size_t lanes = (whole - kFrameHeaderBytes) / kPageBytes * kPageBytes / lane_bytes_;
  if (lanes == 0) return;
  const size_t segments = CeilDivide(chunk_lanes, lanes);
  if (segments > segments_max) return;
  const size_t last = (chunk_lanes - (segments - 1) * lanes) * lane_bytes_;
  const size_t filled = (segments - 1) * (whole / kPacketBytes) + packets(last);
  if (filled + segments >= segments_ * packets(segment_bytes()) + segments_) return;
  segment_lanes_ = lanes;
  segments_ = segments;
}

size_t Partition::FirstLane(size_t chunk) const {
  if (!first_lanes_.empty()) return first_lanes_[chunk];
  return chunk * (lanes_ / parts_) + std::min(chunk, lanes_ % parts_);
}

std::span<std::byte> Partition::Chunk(size_t chunk) const {
  const size_t first = FirstLane(chunk);
  return bytes_.subspan(first * lane_bytes_, (FirstLane(chunk + 1) - first) * lane_bytes_);
}

std::span<std::byte> Partition::Segment(size_t chunk, size_t segment) const {
  const std::span<std::byte> all = Chunk(chunk);
  const size_t begin = std::min(all.size(), segment * segment_bytes());
  return all.subspan(begin, std::min(segment_bytes(), all.size() - begin));
}

bool Partition::Travels(size_t chunk, size_t segment) const {
  return !Segment(chunk, segment).empty() || (lanes_ == 0 && chunk == 0 && segment == 0);
}

Status SendQueue::Send(int peer, uint32_t slot, std::span<const std::byte> payload) {
  WEIR_RETURN_IF_ERROR(Drain(kPostedMax / 2));
  WEIR_ASSIGN_OR_RETURN(const Ticket ticket, group_.Send(peer, slot, payload));
  tickets_.push_back(ticket);
  return OkStatus();
}

Status SendQueue::SendLength(int peer, uint32_t slot, uint64_t length) {
  lengths_.push_back(length);
  return Send(peer, slot, std::as_bytes(std::span(&lengths_.back(), 1)));
}

Status SendQueue::Drain(size_t open) {
  while (tickets_.size() > open) {
    const Ticket oldest = tickets_.front();
    tickets_.pop_front();
    ++awaited_;
    WEIR_RETURN_IF_ERROR(group_.WaitSend(oldest));
  }
  return OkStatus();
}

ReceiveStream::ReceiveStream(Group& group, int peer, uint32_t first_slot, size_t count,
                             size_t window, BufferOf buffer_of)
    : group_(group),
      peer_(peer),
      first_slot_(first_slot),
      count_(count),
      window_(window),
      end_(count),
      buffer_of_(std::move(buffer_of)) {}

Status ReceiveStream::Post() {
  while (next_posted_ < end_ && posted_.size() < window_) {
    const size_t k = next_posted_++;
    WEIR_ASSIGN_OR_RETURN(const std::optional<std::span<std::byte>> buffer, buffer_of_(k));
    Posted posted;
    if (buffer.has_value()) {
      posted.buffer = *buffer;
      WEIR_ASSIGN_OR_RETURN(posted.ticket,
                            group_.Receive(peer_, first_slot_ + static_cast<uint32_t>(k), *buffer));
    }
    posted_.push_back(posted);
  }
  return OkStatus();
}

StatusOr<std::span<std::byte>> ReceiveStream::Next() {
  WEIR_RETURN_IF_ERROR(Post());
  WEIR_CHECK(!posted_.empty());
  const Posted next = posted_.front();
  posted_.pop_front();
  if (!next.ticket.has_value()) return next.buffer;
  WEIR_ASSIGN_OR_RETURN(const size_t bytes, group_.WaitReceive(*next.ticket));
  if (bytes != next.buffer.size()) {
    return group_.Fail(
        Internal(StrCat("rank ", group_.NameOf(peer_), " sent a message of ", bytes,
                        " bytes, rank ", group_.NameOf(group_.rank()), " expected ",
                        next.buffer.size(), ": the ranks disagree on the operation's size")));
  }
  return next.buffer;
}

std::span<std::byte> Scratch::Buffer(size_t k, size_t bytes) {
  if (storage_.empty()) storage_ = group_->scratch().Take(kWindow * segment_bytes_);
  return storage_.bytes().subspan((k % kWindow) * segment_bytes_, bytes);
}

std::vector<Scratch> ScratchFor(Group& group, size_t count, size_t segment_bytes) {
  std::vector<Scratch> scratch;
  scratch.reserve(count);
  while (scratch.size() < count) scratch.emplace_back(group, segment_bytes);
  return scratch;
}

namespace {

// One all-reduce around the ring. Message k = step * segments + segment. In step s the rank at
// place p sends chunk (p - s) and receives chunk (p - s - 1), modulo N: for s < N-1 the received
// chunk is added to the own one (reduce-scatter), afterwards it replaces it (all-gather). Message k
// + segments forwards the segment that message k brought.
class RingPass {
 public:
  RingPass(Group& group, const Lanes& lanes)
      : lanes_(lanes),
        world_(static_cast<size_t>(group.size())),
        place_(static_cast<size_t>(group.ring_place())),
        next_(group.RankAtRingPlace(static_cast<int>((place_ + 1) % world_))),
        partition_(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                 .parts = world_,
                                 .segment_bytes = group.segment_bytes(),
                                 .pipeline_depth = 4}),
        segments_(partition_.segments()),
        messages_(2 * (world_ - 1) * segments_),
        scratch_(group, partition_.segment_bytes()),
        sends_(group),
        sends_before_(messages_ + 1, 0),
        receives_(group, group.RankAtRingPlace(static_cast<int>((place_ + world_ - 1) % world_)), 0,
                  messages_, Scratch::kWindow, [this](size_t k) { return BufferOf(k); }) {}

  Status Run() {
    for (size_t k = 0; k < segments_; ++k) WEIR_RETURN_IF_ERROR(Send(k));
    for (size_t k = 0; k < messages_; ++k) {
      WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> received, receives_.Next());
      if (Reduces(k) && !received.empty()) lanes_.accumulate(Received(k), received);
      if (k + segments_ < messages_) WEIR_RETURN_IF_ERROR(Send(k + segments_));
    }
    return sends_.Drain();
  }

 private:
  bool Reduces(size_t k) const { return k < (world_ - 1) * segments_; }
  size_t ChunkAfter(size_t steps_back) const {
    return (place_ + 2 * world_ - steps_back) % world_;  // steps_back <= 2N - 2
  }
  size_t SentChunk(size_t k) const { return ChunkAfter(k / segments_); }
  size_t ReceivedChunk(size_t k) const { return ChunkAfter(k / segments_ + 1); }
  std::span<std::byte> Received(size_t k) const {
    return partition_.Segment(ReceivedChunk(k), k % segments_);
  }

  Status Send(size_t k) {
    if (partition_.Travels(SentChunk(k), k % segments_)) {
      WEIR_RETURN_IF_ERROR(sends_.Send(next_, static_cast<uint32_t>(k),
                                       partition_.Segment(SentChunk(k), k % segments_)));
    }
    sends_before_[k + 1] = sends_.posted();
    return OkStatus();
  }

  StatusOr<std::optional<std::span<std::byte>>> BufferOf(size_t k) {
    if (!partition_.Travels(ReceivedChunk(k), k % segments_)) {
      return std::optional<std::span<std::byte>>();
    }
    if (Reduces(k)) return std::optional(scratch_.Buffer(k, Received(k).size()));
    // The own partial sum of this segment left with message k - (N-1) * segments; it must be gone
    // before the total overwrites it.
    const size_t gone = sends_before_[k - (world_ - 1) * segments_ + 1];
    WEIR_CHECK(gone <= sends_.posted());
    if (sends_.awaited() < gone) WEIR_RETURN_IF_ERROR(sends_.Drain(sends_.posted() - gone));
    return std::optional(Received(k));
  }

  const Lanes& lanes_;
  const size_t world_, place_;
  const int next_;
  const Partition partition_;
  const size_t segments_, messages_;
  Scratch scratch_;
  SendQueue sends_;
  std::vector<size_t> sends_before_;  // [k]: sends posted by messages 0 .. k-1
  ReceiveStream receives_;
};

}  // namespace

Status RingAllReduce(Group& group, const Lanes& lanes) {
  if (group.size() == 1) return OkStatus();
  return RingPass(group, lanes).Run();
}

Status SmallAllGather(Group& group, std::span<const std::byte> own, std::span<std::byte> all) {
  const int world = group.size(), rank = group.rank();
  WEIR_CHECK(all.size() == own.size() * static_cast<size_t>(world));
  const auto part = [&](int peer) { return all.subspan(peer * own.size(), own.size()); };
  if (!own.empty()) std::memcpy(part(rank).data(), own.data(), own.size());
  SendQueue sends(group);
  std::vector<ReceiveStream> receives;
  receives.reserve(world);
  for (int distance = 1; distance < world; ++distance) {
    const int to = (rank + distance) % world, from = (rank + world - distance) % world;
    receives.emplace_back(group, from, kSmallExchangeSlot, 1, 1, [part, from](size_t) {
      return StatusOr<std::optional<std::span<std::byte>>>(part(from));
    });
    WEIR_RETURN_IF_ERROR(receives.back().Post());
    WEIR_RETURN_IF_ERROR(sends.Send(to, kSmallExchangeSlot, own));
  }
  for (ReceiveStream& receive : receives) WEIR_RETURN_IF_ERROR(receive.Next().status());
  return sends.Drain();
}

Status PayloadExchange(Group& group, std::span<const std::span<const std::byte>> outgoing,
                       size_t bytes_max, std::vector<std::vector<std::byte>>* incoming,
                       const std::function<Status(int rank)>& arrived) {
  const int world = group.size(), rank = group.rank();
  WEIR_CHECK(outgoing.size() == static_cast<size_t>(world));
  std::vector<std::vector<std::byte>>& received = *incoming;
  received.resize(world);
  received[rank].assign(outgoing[rank].begin(), outgoing[rank].end());
  std::vector<PayloadReceiver> receivers;  // in order of distance
  receivers.reserve(world);
  size_t rounds = 0;
  for (int distance = 1; distance < world; ++distance) {
    const int peer = (rank + world - distance) % world;
    receivers.emplace_back(group, peer, bytes_max, &received[peer]);
    WEIR_RETURN_IF_ERROR(receivers.back().Start());
    rounds = std::max(rounds, PayloadSegments(group, outgoing[peer].size()));
  }
  SendQueue sends(group);
  for (size_t k = 0; k < rounds; ++k) {
    for (int distance = 1; distance < world; ++distance) {
      const int peer = (rank + distance) % world;
      if (k >= PayloadSegments(group, outgoing[peer].size())) continue;
      WEIR_RETURN_IF_ERROR(SendPayloadSegment(group, sends, peer, outgoing[peer], k));
    }
  }
  std::vector<bool> done(world);
  int told = 0;
  const auto finish = [&](int peer) {
    done[peer] = true;
    for (; told < world && done[told]; ++told) {
      if (arrived) WEIR_RETURN_IF_ERROR(arrived(told));
    }
    return OkStatus();
  };
  WEIR_RETURN_IF_ERROR(finish(rank));
  // Segments are read in turn, in the order in which they were sent, so that no stream stalls while
  // another one is read.
  for (size_t open = receivers.size(); open > 0;) {
    for (int distance = 1; distance < world; ++distance) {
      const int peer = (rank + world - distance) % world;
      if (done[peer]) continue;
      WEIR_ASSIGN_OR_RETURN(const auto segment, receivers[distance - 1].Next());
      if (segment.has_value()) continue;
      --open;
      WEIR_RETURN_IF_ERROR(finish(peer));
    }
  }
  return sends.Drain();
}

Status PayloadAllGather(Group& group, std::span<const std::byte> own, size_t bytes_max,
                        std::vector<std::vector<std::byte>>* all) {
  const std::vector<std::span<const std::byte>> outgoing(group.size(), own);
  return PayloadExchange(group, outgoing, bytes_max, all);
}

Status BroadcastSmall(Group& group, int root, std::span<std::byte> bytes) {
  SendQueue sends(group);
  if (group.rank() != root) {
    ReceiveStream receive(group, root, kSmallExchangeSlot, 1, 1, [bytes](size_t) {
      return StatusOr<std::optional<std::span<std::byte>>>(bytes);
    });
    return receive.Next().status();
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != root) WEIR_RETURN_IF_ERROR(sends.Send(peer, kSmallExchangeSlot, bytes));
  }
  return sends.Drain();
}

Status Barrier(Group& group) { return SmallAllGather(group, {}, {}); }

size_t PayloadSegments(const Group& group, size_t payload_bytes) {
  return std::max<size_t>(CeilDivide(payload_bytes, group.segment_bytes()), 1);
}

// Slot kPayloadSlot + k is segment k, kLengthSlot the length.
Status SendPayloadSegment(Group& group, SendQueue& sends, int peer,
                          std::span<const std::byte> payload, size_t k) {
  const size_t full = group.segment_bytes(), begin = k * full;
  const auto segment = payload.subspan(begin, std::min(full, payload.size() - begin));
  WEIR_RETURN_IF_ERROR(sends.Send(peer, kPayloadSlot + static_cast<uint32_t>(k), segment));
  if (k > 0 || segment.size() < full) return OkStatus();
  return sends.SendLength(peer, kLengthSlot, payload.size());
}

PayloadReceiver::PayloadReceiver(Group& group, int peer, size_t bytes_max,
                                 std::vector<std::byte>* out)
    : group_(group),
      peer_(peer),
      bytes_max_(bytes_max == 0 ? kFramePayloadBytesMax : bytes_max),
      out_(out) {}

Status PayloadReceiver::Start() {
  first_bytes_ = group_.scratch().Take(std::min(group_.segment_bytes(), bytes_max_));
  WEIR_ASSIGN_OR_RETURN(first_, group_.Receive(peer_, kPayloadSlot, first_bytes_.bytes()));
  return OkStatus();
}

StatusOr<std::span<const std::byte>> PayloadReceiver::AwaitFirst() {
  const size_t full = group_.segment_bytes();
  WEIR_ASSIGN_OR_RETURN(const size_t bytes, group_.WaitReceive(first_));
  uint64_t length = bytes;
  if (bytes == full) {
    WEIR_ASSIGN_OR_RETURN(
        const Ticket ticket,
        group_.Receive(peer_, kLengthSlot, std::as_writable_bytes(std::span(&length, 1))));
    WEIR_ASSIGN_OR_RETURN(const size_t length_bytes, group_.WaitReceive(ticket));
    if (length_bytes != sizeof length || length < bytes || length > bytes_max_) {
      return group_.Fail(DataLoss(
          StrCat("rank ", group_.NameOf(peer_), " announced a payload of ", length, " bytes in ",
                 length_bytes, " bytes, expected 8 bytes and ", bytes, " to ", bytes_max_)));
    }
  }
  const std::span<const std::byte> first = first_bytes_.bytes().first(bytes);
  out_->reserve(length);
  out_->assign(first.begin(), first.end());
  out_->resize(length);
  first_bytes_.Release();
  segments_ = PayloadSegments(group_, length);
  rest_.emplace(group_, peer_, kPayloadSlot + 1, segments_ - 1, Scratch::kWindow,
                [=, this](size_t k) {
                  const size_t begin = (k + 1) * full;
                  return StatusOr<std::optional<std::span<std::byte>>>(
                      std::span(*out_).subspan(begin, std::min(full, out_->size() - begin)));
                });
  WEIR_RETURN_IF_ERROR(rest_->Post());
  return std::span<const std::byte>(*out_).first(bytes);
}

StatusOr<std::optional<std::span<const std::byte>>> PayloadReceiver::Next() {
  if (taken_++ == 0) {
    WEIR_ASSIGN_OR_RETURN(const std::span<const std::byte> first, AwaitFirst());
    return std::optional(first);
  }
  if (taken_ > segments_) return std::optional<std::span<const std::byte>>();
  WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> next, rest_->Next());
  return std::optional<std::span<const std::byte>>(next);
}

Status BinomialBroadcast(Group& group, int root, std::span<const std::byte> payload,
                         size_t bytes_max, std::vector<std::byte>* received) {
  const int world = group.size();
  const int position = (group.rank() - root + world) % world;  // the root has position 0
  std::vector<int> children;
  // Position v > 0 receives from v without its highest bit, in round bit_width(v) - 1; then it
  // sends.
  const int heard = std::bit_width(static_cast<unsigned>(position));
  for (int round = heard; (1 << round) < world; ++round) {
    const int child = position + (1 << round);
    if (child < world) children.push_back((child + root) % world);
  }
  SendQueue sends(group);
  const auto forward = [&](std::span<const std::byte> whole, size_t k) {
    for (const int child : children) {
      WEIR_RETURN_IF_ERROR(SendPayloadSegment(group, sends, child, whole, k));
    }
    return OkStatus();
  };
  if (position == 0) {
    for (size_t k = 0; k < PayloadSegments(group, payload.size()); ++k) {
      WEIR_RETURN_IF_ERROR(forward(payload, k));
    }
    return sends.Drain();
  }
  const int parent = (position - (1 << (heard - 1)) + root) % world;
  PayloadReceiver receiver(group, parent, bytes_max, received);
  WEIR_RETURN_IF_ERROR(receiver.Start());
  for (size_t k = 0;; ++k) {
    WEIR_ASSIGN_OR_RETURN(const auto segment, receiver.Next());
    if (!segment.has_value()) return sends.Drain();
    WEIR_RETURN_IF_ERROR(forward(*received, k));
  }
}

}  // namespace weir
