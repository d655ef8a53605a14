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

/// What the shares of shards add up to, see Group::SetShards.
inline constexpr uint32_t kShardShareTotal = 65536;

/// How lanes are cut.
struct PartitionOptions {
  size_t lane_bytes = 4;
  size_t parts = 1;           // chunks
  size_t segment_bytes = 1;   // upper bound of a segment, raised only to respect segments_max
  size_t pipeline_depth = 1;  // segments that a chunk is cut into, unless they become too short:
  size_t pipeline_bytes_min = 128 << 10;
  size_t segments_max = 512;  // per chunk
  // Of the chunks, in 1/kShardShareTotal, together that; empty: even. Read by the constructor only.
  std::span<const uint32_t> shares = {};
};

/// Lanes cut into chunks of almost equal size, of which chunk 0 is the largest, or of `shares` of
/// them, each chunk then ending at the whole lane below what those up to it add up to; some may be
/// empty. Segments are of one size in all chunks, and of the largest chunk all are there: equal, or
/// those but the last as long as whole packets are, where that makes fewer of them. Pure
/// arithmetic, identical on all ranks.
class Partition {
 public:
  Partition(std::span<std::byte> bytes, const PartitionOptions& options);

  /// Segments of the largest chunk, at least 1; others have as many, of which the last are empty.
  size_t segments() const { return segments_; }
  /// Largest segment.
  size_t segment_bytes() const { return segment_lanes_ * lane_bytes_; }
  std::span<std::byte> Chunk(size_t chunk) const;
  std::span<std::byte> Segment(size_t chunk, size_t segment) const;
  /// False when the segment is empty and so is not sent. An operation without any lane still sends
  /// segment 0 of chunk 0: control word and flags travel with it.
  bool Travels(size_t chunk, size_t segment) const;

 private:
  size_t FirstLane(size_t chunk) const;
  /// A frame a little longer than whole packets takes one more, which costs about as much as a
  /// message: cuts segments at whole packets if there are fewer packets and messages then.
  void FillPackets(size_t chunk_lanes, size_t segments_max);

  std::span<std::byte> bytes_;
  size_t lane_bytes_;
  size_t parts_;
  size_t lanes_;
  std::vector<size_t> first_lanes_;  // of each chunk, and behind the last; empty: even
  size_t segment_lanes_;
  size_t segments_;
};

/// Sends whose completion is awaited later, oldest first. Payloads stay untouched until then.
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
  std::deque<uint64_t> lengths_;  // a deque: addresses stay
  size_t awaited_ = 0;
};

/// Receives messages 0 .. count-1 of known sizes from one peer, a few posted ahead.
class ReceiveStream {
 public:
  /// Where message k goes; nothing when message k does not travel. Called once per k, in order.
  using BufferOf = std::function<StatusOr<std::optional<std::span<std::byte>>>(size_t k)>;

  /// Message k carries slot first_slot + k. At most `window` messages are posted at a time.
  ReceiveStream(Group& group, int peer, uint32_t first_slot, size_t count, size_t window,
                BufferOf buffer_of);

  /// Posts as many receives as the window allows.
  Status Post();
  /// Until it is called again, messages from `end` on are not posted: their buffers are in use.
  /// Next is for messages below.
  void Hold(size_t end) { end_ = std::min(end, count_); }
  /// Waits for the next message; its buffer, empty when it does not travel. The buffer of the
  /// previous message is given back. kInternal naming both sides when its size is not the expected
  /// one.
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
  size_t end_;  // of what may be posted
  BufferOf buffer_of_;
  size_t next_posted_ = 0;
  std::deque<Posted> posted_;
};

/// Scratch for the receives of one ReceiveStream: kWindow buffers used in turn, borrowed from the
/// group, which outlives it, when the first is asked for. Movable.
class Scratch {
 public:
  static constexpr size_t kWindow = 4;
  Scratch(Group& group, size_t segment_bytes) : group_(&group), segment_bytes_(segment_bytes) {}
  /// Buffer for message k, shared with message k + kWindow.
  std::span<std::byte> Buffer(size_t k, size_t bytes);

 private:
  Group* group_;
  size_t segment_bytes_;
  ScratchLoan storage_;
};

/// One for each of `count` streams.
std::vector<Scratch> ScratchFor(Group& group, size_t count, size_t segment_bytes);

/// Sums `lanes` over all ranks, in place: reduce-scatter and all-gather around the group's ring.
/// Each element is summed in the order of the ring after its owner, on every rank the same bits.
/// Scratch: four segments. 2(N-1) sequential messages, 2(N-1)/N of the lanes out of every rank.
/// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009; segments of a
/// chunk are forwarded as soon as they are reduced.
Status RingAllReduce(Group& group, const Lanes& lanes);

/// Copies every rank's `own` (equal sizes, any small size) into `all`, rank order, world *
/// own.size() bytes. One message from every rank to every other, so one latency and (N-1) *
/// own.size() bytes.
Status SmallAllGather(Group& group, std::span<const std::byte> own, std::span<std::byte> all);

/// Sends outgoing[r] (world entries, of any sizes up to bytes_max; 0: kFramePayloadBytesMax) to
/// rank r and fills `incoming` with what every rank sent, the own one included: a direct exchange
/// between all pairs, in which empty payloads travel, too. `arrived`, where set, is called once for
/// each rank in rank order as soon as its payload and those before are complete; an error of it is
/// returned. One latency; every payload crosses each NIC once.
Status PayloadExchange(Group& group, std::span<const std::span<const std::byte>> outgoing,
                       size_t bytes_max, std::vector<std::vector<std::byte>>* incoming,
                       const std::function<Status(int rank)>& arrived = {});

/// Fills `all` with every rank's `own`, of any sizes up to bytes_max (0: kFramePayloadBytesMax), in
/// rank order: a direct exchange between all pairs. One latency, N-1 copies of the own payload out
/// of every rank.
Status PayloadAllGather(Group& group, std::span<const std::byte> own, size_t bytes_max,
                        std::vector<std::vector<std::byte>>* all);

/// Copies `bytes` of rank `root` (equal sizes) to all other ranks by direct messages.
Status BroadcastSmall(Group& group, int root, std::span<std::byte> bytes);

/// Returns when every rank has called it: an all-gather of nothing.
Status Barrier(Group& group);

/// Messages of a payload of any size: one when it is shorter than a segment of `group`; otherwise
/// the first segment, the length, and the other segments. Segments are counted without the length.
size_t PayloadSegments(const Group& group, size_t payload_bytes);

/// Sends segment k of `payload`; every peer gets the segments in ascending order.
Status SendPayloadSegment(Group& group, SendQueue& sends, int peer,
                          std::span<const std::byte> payload, size_t k);

/// The other side of SendPayloadSegment.
class PayloadReceiver {
 public:
  /// `out` receives the payload, at most `bytes_max` bytes (0: kFramePayloadBytesMax).
  PayloadReceiver(Group& group, int peer, size_t bytes_max, std::vector<std::byte>* out);
  /// Posts the first receive.
  Status Start();
  /// Waits for the next segment, which it returns: nothing after the last. Segments returned stay
  /// in place: the length is known, and `out` has its final size, before the first one is handed
  /// out. kDataLoss naming the peer when the payload is longer than the bound.
  StatusOr<std::optional<std::span<const std::byte>>> Next();
  /// Valid after the first Next.
  size_t payload_bytes() const { return out_->size(); }

 private:
  StatusOr<std::span<const std::byte>> AwaitFirst();

  Group& group_;
  int peer_;
  size_t bytes_max_;
  std::vector<std::byte>* out_;
  ScratchLoan first_bytes_;  // how long the payload is, and so `out`, is known when they are there
  Ticket first_ = 0;
  size_t segments_ = 0, taken_ = 0;    // segments_ 0: not yet known
  std::optional<ReceiveStream> rest_;  // segments 1 and later
};

/// Rank `root` hands `payload` to all ranks along a binomial tree, segment by segment; the others
/// get it in `received`, bounded by `bytes_max` (0: kFramePayloadBytesMax). ceil(log2 N) latencies
/// and ceil(log2 N) copies out of the root. Source: Thakur, Rabenseifner, Gropp, "Optimization of
/// collective communication operations in MPICH", IJHPCA 2005, section 4.2; segments added.
Status BinomialBroadcast(Group& group, int root, std::span<const std::byte> payload,
                         size_t bytes_max, std::vector<std::byte>* received);

}  // namespace weir
