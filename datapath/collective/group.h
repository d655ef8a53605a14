#pragma once
// A Group is the set of ranks that run one operation together. It stamps every frame with the
// operation's identity, checks the same on arrival, and carries the control word and flags along.

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/scratch_pool.h"
#include "datapath/base/status.h"
#include "datapath/transport/transport.h"
#include "datapath/wire/frame.h"

namespace weir {

class LaneOffload;

/// The identity of one operation, equal on every rank.
struct OperationId {
  uint64_t plan_version = 0;
  uint64_t op_sequence = 0;
  uint64_t bucket = 0;
};

/// Stays in the L2 cache between arrival, reduction and departure.
inline constexpr size_t kSegmentBytesDefault = 256 << 10;

/// What a pool for groups keeps idle: collectives borrow a buffer of some segments for each peer.
inline constexpr size_t kScratchIdleMax = 64, kScratchIdleBytesMax = 64 << 20;

/// Not thread-safe. Lives for one operation or many (Begin resets it).
class Group {
 public:
  /// All ranks of `transport`, which outlives the group. `segment_bytes`: messages are cut at it.
  /// `scratch`: where operations borrow their buffers, outlives the group; null: a pool of its own.
  Group(Transport& transport, size_t segment_bytes = kSegmentBytesDefault,
        ScratchPool* scratch = nullptr);

  int rank() const { return members_.empty() ? transport_.rank() : part_rank_; }
  int size() const {
    return members_.empty() ? transport_.world() : static_cast<int>(members_.size());
  }
  /// How errors call `peer`: by its rank in the job, also within a GroupPart.
  int NameOf(int peer) const {
    return members_.empty() ? peer : members_[static_cast<size_t>(peer)];
  }
  size_t segment_bytes() const { return segment_bytes_; }
  ScratchPool& scratch() { return scratch_ != nullptr ? *scratch_ : own_scratch_; }

  /// Which ranks share a node: their nodes' numbers, any numbers, the same list on every rank.
  /// Empty (the default): nobody knows, so every rank stands alone. Outlives Begin.
  void SetNodes(std::vector<int> nodes);
  std::span<const int> nodes() const { return nodes_; }

  /// Who follows whom around a ring: all ranks, each once, the same order on every rank; each sends
  /// to the next one. Empty (the default): ascending. Parts go by ascending ranks. Outlives Begin.
  void SetRing(std::vector<int> order);
  /// This rank's place in the ring, and who stands at a place, both in [0, size()).
  int ring_place() const { return RingIsNatural() ? rank() : ring_place_; }
  int RankAtRingPlace(int place) const {
    return RingIsNatural() ? place : ring_[static_cast<size_t>(place)];
  }

  /// How much of what is summed each rank owns where a collective cuts it into a shard for each
  /// (CollectiveTraits::shard_segment_bytes): in 1/kShardShareTotal (primitives.h), in rank order,
  /// together that, 0 allowed, the same on every rank. Empty (the default): even. Parts are even.
  /// Outlives Begin.
  void SetShards(std::vector<uint32_t> shares);
  std::span<const uint32_t> shards() const {
    return members_.empty() ? std::span<const uint32_t>(shards_) : std::span<const uint32_t>();
  }

  /// What the collective that runs next may use: null (the default), or the same kind of access on
  /// every rank, which outlives the group. Outlives Begin.
  void SetOffload(LaneOffload* offload) { offload_ = offload; }
  LaneOffload* offload() const { return offload_; }

  /// By rank of the group; null: none, on every rank alike. Parts have none.
  const StagingBuffers* staging() const {
    return members_.empty() ? transport_.staging() : nullptr;
  }

  /// Starts an operation. `control` and `flags` are what this rank itself announces.
  void Begin(const OperationId& id, ControlWord control, uint16_t flags, TimePoint deadline);

  /// Posts one message; `slot` must match on both sides. Frames carry every control word and flag
  /// seen so far (the word of the highest version, all flags), so what any rank announced reaches
  /// every rank that depends on it. Any error fails the group, see Fail.
  StatusOr<Ticket> Send(int peer, uint32_t slot, std::span<const std::byte> payload);
  StatusOr<Ticket> Receive(int peer, uint32_t slot, std::span<std::byte> buffer);
  Status WaitSend(Ticket ticket);
  /// The payload's size. kInternal naming both sides when the frame belongs to another plan,
  /// operation, bucket or slot, or messages between the two are missing; the group then aborts its
  /// transport. A peer that was heard in this operation gets a tenth of the time (at most a second)
  /// longer: it waits itself, and the rank that waits for the missing one shall be the first to
  /// name it.
  StatusOr<size_t> WaitReceive(Ticket ticket);

  /// Ends the operation with `status`, which must not be OK: the first failure aborts the transport
  /// with its message, so that the other ranks learn whose fault it is. Returns `status`.
  /// Collectives call it for errors of their own (wrong sizes, failed callbacks).
  Status Fail(const Status& status);

  /// Adds to what this rank announces, for frames that it sends from now on.
  void Announce(uint16_t flags) { flags_ |= flags; }

  /// What this rank has learnt so far in the operation.
  ControlWord control() const { return control_; }
  uint16_t flags() const { return flags_; }
  /// Of the operation, as given to Begin.
  TimePoint deadline() const { return deadline_; }
  /// Payload and frame header bytes since Begin, and what CountSent was told.
  uint64_t bytes_sent() const { return bytes_sent_; }
  /// `bytes` of the operation's payload left this rank on another way.
  void CountSent(uint64_t bytes) { bytes_sent_ += bytes; }

 private:
  friend class GroupPart;
  struct Pending {
    Ticket ticket;
    int peer;
    uint32_t slot, message;
  };
  bool RingIsNatural() const { return ring_.empty() || !members_.empty(); }
  Status Verify(const Pending& expected, const FrameHeader& found) const;

  Transport& transport_;
  size_t segment_bytes_;
  ScratchPool* scratch_;
  ScratchPool own_scratch_{kScratchIdleMax, kScratchIdleBytesMax};
  OperationId id_;
  ControlWord control_;
  uint16_t flags_ = 0;
  TimePoint deadline_{};
  uint64_t bytes_sent_ = 0;
  bool failed_ = false;
  Duration grace_{0};  // for peers that were heard in this operation
  std::vector<bool> heard_;
  std::vector<uint32_t> sent_, awaited_;  // messages of this operation, by peer
  std::vector<Pending> receives_;         // at most kPostedMax; peers by their rank in the job
  std::vector<int> nodes_;
  std::vector<int> ring_;
  int ring_place_ = 0;
  std::vector<uint32_t> shards_;
  LaneOffload* offload_ = nullptr;
  std::vector<int> members_;  // of the GroupPart that lives; empty: all ranks
  int part_rank_ = 0;
  uint32_t slot_offset_ = 0;
};

/// While it lives, the group is its part `members` (ascending ranks of the job, the own one among
/// them): rank(), size() and peers count within it, and slots are moved by `slot_offset`, so that
/// messages of different parts of one operation are told apart. What was posted is waited for
/// before it ends. Parts do not nest.
class GroupPart {
 public:
  GroupPart(Group& group, std::vector<int> members, uint32_t slot_offset);
  ~GroupPart();
  GroupPart(const GroupPart&) = delete;
  GroupPart& operator=(const GroupPart&) = delete;

 private:
  Group& group_;
};

}  // namespace weir
