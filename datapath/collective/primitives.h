// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps that several collectives share: partitions of a span of lanes, streams of segments to
// and from one peer, and small whole-group exchanges. Everything here runs on a Group after Begin.
//
// Terms: a *chunk* is the part of the lanes that one rank is responsible for, a *segment* is the
// part of a chunk that travels in one message.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/group.h"

namespace weir {

/// float32 lanes over `values` that add as IEEE floats.
Lanes FloatLanes(std::span<float> values);

/// The sum of all shares of shards, see Group::SetShards.
inline constexpr uint32_t kShardShareTotal = 65536;

/// How a Partition cuts lanes.
struct PartitionOptions {
  size_t lane_bytes = 4;
  size_t parts = 1;           // chunks
  size_t segment_bytes = 1;   // upper bound of a segment, raised only to respect segments_max
  size_t pipeline_depth = 1;  // segments of a chunk, fewer if they would be shorter than the next
  size_t pipeline_bytes_min = 128 << 10;
  size_t segments_max = 512;  // per chunk
  // The chunks' shares in 1/kShardShareTotal, with that sum; empty: even. Read by the constructor
  // only.
  std::span<const uint32_t> shares = {};
};

/// Lanes cut into chunks. Without `shares` the chunks have almost equal sizes, and chunk 0 is the
/// largest. With them, each chunk ends at the last whole lane within the sum of the shares up to
/// it; chunks may be empty. Each chunk is cut into segments of one size, the same for all chunks:
/// equal parts of the largest chunk, or multiples of a packet's size where that makes fewer
/// packets. Pure arithmetic, identical on all ranks.
class Partition {
 public:
  Partition(std::span<std::byte> bytes, const PartitionOptions& options);

  /// The number of segments of every chunk, at least 1. In chunks other than the largest one the
  /// last segments may be empty.
  size_t segments() const { return segments_; }
  /// The size of the largest segment.
  size_t segment_bytes() const { return segment_lanes_ * lane_bytes_; }
  std::span<std::byte> Chunk(size_t chunk) const;
  std::span<std::byte> Segment(size_t chunk, size_t segment) const;
  /// False when the segment is empty and therefore not sent. An operation without any lane still
  /// sends segment 0 of chunk 0, because the control word and flags travel with it.
  bool Travels(size_t chunk, size_t segment) const;

 private:
  size_t FirstLane(size_t chunk) const;
  /// Cuts segments at whole packets if that makes fewer packets and messages. A frame that is a
  /// little longer than whole packets needs one packet more, which costs about as much as a
  /// message.
  void FillPackets(size_t chunk_lanes, size_t segments_max);

  std::span<std::byte> bytes_;
  size_t lane_bytes_;
  size_t parts_;
  size_t lanes_;
  std::vector<size_t> first_lanes_;  // of each chunk, and behind the last; empty: even
  size_t segment_lanes_;
  size_t segments_;
};

/// Sends whose completion is awaited later, oldest first. The caller keeps payloads unchanged until
/// then.
class SendQueue {
 public:
  explicit SendQueue(Group& group) : group_(group) {}
  /// Waits for the oldest send when more than kPostedMax / 2 are open.
  Status Send(int peer, uint32_t slot, std::span<const std::byte> payload);
  /// Sends eight bytes that the queue keeps.
  Status SendLength(int peer, uint32_t slot, uint64_t length);
  /// Waits until at most `open` sends are open.
  Status Drain(size_t open = 0);
  /// Sends awaited so far.
  size_t awaited() const { return awaited_; }
  size_t posted() const { return awaited_ + tickets_.size(); }
  size_t open() const { return tickets_.size(); }

 private:
  Group& group_;
  std::deque<Ticket> tickets_;
  std::deque<uint64_t> lengths_;  // a deque, because the addresses must not change
  size_t awaited_ = 0;
};

/// Receives messages 0 .. count-1 of known sizes from one peer, with a few receives posted ahead.
class ReceiveStream {
 public:
  /// Returns the buffer for message k, or none when message k is not sent. Called once per k, in
  /// order.
  using BufferOf = std::function<StatusOr<std::optional<std::span<std::byte>>>(size_t k)>;

  /// Message k carries slot first_slot + k. At most `window` messages are posted at a time.
  ReceiveStream(Group& group, int peer, uint32_t first_slot, size_t count, size_t window,
                BufferOf buffer_of);

  /// Posts as many receives as the window allows.
  Status Post();
  /// Messages from `end` on are not posted until Hold is called again, because their buffers are in
  /// use. Until then, Next may be called for the messages below `end`.
  void Hold(size_t end) { end_ = std::min(end, count_); }
  /// Waits for the next message and returns its buffer, which is empty when the message is not
  /// sent. The buffer of the previous message may be reused from then on. kInternal, naming both
  /// sides, when the size is not the expected one.
  StatusOr<std::span<std::byte>> Next();

 private:
  struct Posted {
    std::optional<Ticket> ticket;
    std::span<std::byte> buffer;
  };
  Group& group_;
  int peer_;
  uint32_t first_slot_;
  size_t count_, window_;
  size_t end_;  // messages from here on must not be posted yet
  BufferOf buffer_of_;
  size_t next_posted_ = 0;
  std::deque<Posted> posted_;
};

/// Scratch for the receives of one ReceiveStream: kWindow buffers that are used in turn. They are
/// taken from the pool of the group, which outlives this, when the first one is asked for. Movable.
class Scratch {
 public:
  static constexpr size_t kWindow = 4;
  Scratch(Group& group, size_t segment_bytes) : group_(&group), segment_bytes_(segment_bytes) {}
  /// The buffer for message k. Message k + kWindow uses the same one.
  std::span<std::byte> Buffer(size_t k, size_t bytes);

 private:
  Group* group_;
  size_t segment_bytes_;
  ScratchBuffer storage_;
};

/// One Scratch for each of `count` streams.
std::vector<Scratch> ScratchFor(Group& group, size_t count, size_t segment_bytes);

/// Sums `lanes` over all ranks, in place: reduce-scatter and all-gather around the group's ring.
/// Each element is summed in the order of the ring, beginning after its owner, so that every rank
/// gets the same bits. Needs four segments of scratch. Takes 2(N-1) sequential messages; every rank
/// sends 2(N-1)/N of the lanes.
/// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009; segments of a
/// chunk are forwarded as soon as they are reduced.
Status RingAllReduce(Group& group, const Lanes& lanes);

/// Copies every rank's `own` (equal, small sizes) into `all`, in rank order; `all` has world *
/// own.size() bytes. Every rank sends one message to every other, which takes one latency and (N-1)
/// * own.size() bytes.
Status SmallAllGather(Group& group, std::span<const std::byte> own, std::span<std::byte> all);

/// Sends outgoing[r] (world entries, of any sizes up to bytes_max; 0: kFramePayloadBytesMax) to
/// rank r and fills `incoming` with what every rank sent, this one included. It is a direct
/// exchange between all pairs, in which empty payloads are sent, too. `arrived`, if set, is called
/// once for each rank, in rank order, as soon as that rank's payload and those before it are
/// complete; its error is returned. Takes one latency; every payload crosses each NIC once.
Status PayloadExchange(Group& group, std::span<const std::span<const std::byte>> outgoing,
                       size_t bytes_max, std::vector<std::vector<std::byte>>* incoming,
                       const std::function<Status(int rank)>& arrived = {});

/// Fills `all` with every rank's `own`, of any sizes up to bytes_max (0: kFramePayloadBytesMax), in
/// rank order, by a direct exchange between all pairs. Takes one latency; every rank sends its
/// payload N-1 times.
Status PayloadAllGather(Group& group, std::span<const std::byte> own, size_t bytes_max,
                        std::vector<std::vector<std::byte>>* all);

/// Copies `bytes` of rank `root` (equal sizes) to all other ranks by direct messages.
Status BroadcastSmall(Group& group, int root, std::span<std::byte> bytes);

/// Returns when every rank has called it: an all-gather of nothing.
Status Barrier(Group& group);

/// The number of segments of a payload of any size. A payload shorter than a segment of `group` is
/// one message. A longer one is sent as its first segment, its length, and the other segments; the
/// message with the length is not counted.
size_t PayloadSegments(const Group& group, size_t payload_bytes);

/// Sends segment k of `payload`. Send the segments to each peer in ascending order.
Status SendPayloadSegment(Group& group, SendQueue& sends, int peer,
                          std::span<const std::byte> payload, size_t k);

/// The other side of SendPayloadSegment.
class PayloadReceiver {
 public:
  /// `out` receives the payload, at most `bytes_max` bytes (0: kFramePayloadBytesMax).
  PayloadReceiver(Group& group, int peer, size_t bytes_max, std::vector<std::byte>* out);
  /// Posts the first receive.
  Status Start();
  /// Waits for the next segment and returns it, or nothing after the last one. Returned segments do
  /// not move, because `out` has its final size before the first one is returned. kDataLoss, naming
  /// the peer, when the payload is longer than the bound.
  StatusOr<std::optional<std::span<const std::byte>>> Next();
  /// Valid after the first Next.
  size_t payload_bytes() const { return out_->size(); }

 private:
  StatusOr<std::span<const std::byte>> AwaitFirst();

  Group& group_;
  int peer_;
  size_t bytes_max_;
  std::vector<std::byte>* out_;
  ScratchBuffer
      first_bytes_;  // the first segment, which arrives before the payload's length is known
  Ticket first_ = 0;
  size_t segments_ = 0, taken_ = 0;    // segments_ 0: not yet known
  std::optional<ReceiveStream> rest_;  // segments 1 and later
};

/// Sends `payload` of rank `root` to all ranks along a binomial tree, segment by segment. The
/// others get it in `received`; it is bounded by `bytes_max` (0: kFramePayloadBytesMax). Takes
/// ceil(log2 N) latencies, and the root sends ceil(log2 N) copies. Source: Thakur, Rabenseifner,
/// Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005, section 4.2;
/// segments added.
Status BinomialBroadcast(Group& group, int root, std::span<const std::byte> payload,
                         size_t bytes_max, std::vector<std::byte>* received);

}  // namespace weir
