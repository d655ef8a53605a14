// SPDX-License-Identifier: Apache-2.0
#pragma once
// A Group is the set of ranks that run one operation together. It stamps every frame with the
// operation's identity, checks the same on arrival, and carries the control word and flags along.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/scratch_pool.h"
#include "datapath/base/status.h"
#include "datapath/transport/transport.h"
#include "datapath/wire/frame.h"

namespace weir {

class DeviceGroup;
class LaneOffload;

/// The identity of one operation, equal on every rank.
struct OperationId {
  uint64_t plan_version = 0;
  uint64_t op_sequence = 0;
  uint64_t bucket = 0;
};

/// A segment of this size stays in the L2 cache from its arrival until it is reduced and sent on.
inline constexpr size_t kSegmentBytesDefault = 256 << 10;

/// How much a pool for groups keeps idle. Collectives take a buffer of some segments for each peer.
inline constexpr size_t kScratchIdleMax = 64, kScratchIdleBytesMax = 64 << 20;

/// Not thread-safe. Lives for one operation or many (Begin resets it).
class Group {
 public:
  /// All ranks of `transport`, which outlives the group. Messages are cut into pieces of
  /// `segment_bytes`. Operations take their buffers from `scratch`, which outlives the group; null:
  /// the group has a pool of its own.
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

  /// Says which ranks share a node: entry r is the number of rank r's node. The numbers are
  /// arbitrary and the list is the same on every rank. Empty (the default): the nodes are unknown,
  /// and every rank counts as a node of its own. Stays set after Begin.
  void SetNodes(std::vector<int> nodes);
  std::span<const int> nodes() const { return nodes_; }

  /// Sets the order of the ranks in a ring, in which each rank sends to the next one. It contains
  /// every rank once and is the same on every rank. Empty (the default): ascending. A GroupPart
  /// always uses ascending ranks. Stays set after Begin.
  void SetRing(std::vector<int> order);
  /// This rank's place in the ring, and the rank at a given place, both in [0, size()).
  int ring_place() const { return RingIsNatural() ? rank() : ring_place_; }
  int RankAtRingPlace(int place) const {
    return RingIsNatural() ? place : ring_[static_cast<size_t>(place)];
  }

  /// Sets the share of the sum that each rank owns, for collectives that cut it into one shard for
  /// each rank (CollectiveTraits::shard_segment_bytes). Shares are in units of 1/kShardShareTotal
  /// (primitives.h), in rank order, add up to kShardShareTotal, may be 0, and are the same on every
  /// rank. Empty (the default): even. A GroupPart always uses even shares. Stays set after Begin.
  void SetShards(std::vector<uint32_t> shares);
  std::span<const uint32_t> shards() const {
    return members_.empty() ? std::span<const uint32_t>(shards_) : std::span<const uint32_t>();
  }

  /// Sets the offload that the next collective may use: null (the default), or the same kind on
  /// every rank. It outlives the group. Stays set after Begin.
  void SetOffload(LaneOffload* offload) { offload_ = offload; }
  LaneOffload* offload() const { return offload_; }

  /// Sets the devices of the ranks of this rank's node, in the order of the ranks, among which
  /// device memory moves; null (the default) on all of these ranks or on none. It outlives the
  /// group. Stays set after Begin.
  void SetDevices(DeviceGroup* devices) { devices_ = devices; }
  DeviceGroup* devices() const { return devices_; }

  /// The staging buffers by rank of the group; null when there are none, which is the same on every
  /// rank. A GroupPart has none.
  const StagingBuffers* staging() const {
    return members_.empty() ? transport_.staging() : nullptr;
  }

  /// Starts an operation in which this rank announces `control` and `flags`.
  void Begin(const OperationId& id, ControlWord control, uint16_t flags, TimePoint deadline);

  /// Posts one message; `slot` must match on both sides. Frames carry every control word and flag
  /// seen so far (the word of the highest version, all flags), so what any rank announced reaches
  /// every rank that depends on it. Any error fails the group, see Fail.
  StatusOr<Ticket> Send(int peer, uint32_t slot, std::span<const std::byte> payload);
  StatusOr<Ticket> Receive(int peer, uint32_t slot, std::span<std::byte> buffer);
  Status WaitSend(Ticket ticket);
  /// Waits for a message and returns its size. kInternal, naming both sides: the frame belongs to
  /// another plan, operation, bucket or slot, or messages between the two are missing; the group
  /// then aborts its transport. A peer that was heard in this operation gets a tenth of the time
  /// (at most a second) longer, because it is itself waiting for another rank, and the rank that
  /// waits for the missing one should be the first to name it.
  StatusOr<size_t> WaitReceive(Ticket ticket);

  /// Lets `pause` pass while this rank waits for something else than a message. Errors, which fail
  /// the group: a rank died or reported an error, or the operation's deadline has passed;
  /// `awaited` says what did not happen until then.
  Status Pause(Duration pause, std::string_view awaited);

  /// Ends the operation with `status`, which must not be OK: the first failure aborts the transport
  /// with its message, so that the other ranks learn which rank is at fault. Returns `status`.
  /// Collectives call it for errors of their own (wrong sizes, failed callbacks).
  Status Fail(const Status& status);

  /// Adds `flags` to those that this rank announces in frames that it sends from now on.
  void Announce(uint16_t flags) { flags_ |= flags; }

  /// The control word and flags that this rank has seen so far in the operation.
  ControlWord control() const { return control_; }
  uint16_t flags() const { return flags_; }
  /// The operation's deadline, as given to Begin.
  TimePoint deadline() const { return deadline_; }
  /// Payload and frame header bytes since Begin, plus what CountSent added.
  uint64_t bytes_sent() const { return bytes_sent_; }
  /// Counts `bytes` of the operation's payload that left this rank without a message.
  void CountSent(uint64_t bytes) { bytes_sent_ += bytes; }
  /// Bytes that devices exchanged in large parts since Begin, and how long they took.
  void CountDevices(uint64_t bytes, Duration took) {
    device_bytes_ += bytes;
    device_time_ += took;
  }
  uint64_t device_bytes() const { return device_bytes_; }
  Duration device_time() const { return device_time_; }

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
  uint64_t device_bytes_ = 0;
  Duration device_time_{0};
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
  DeviceGroup* devices_ = nullptr;
  std::vector<int> members_;  // of the current GroupPart; empty: all ranks
  int part_rank_ = 0;
  uint32_t slot_offset_ = 0;
};

/// While it lives, the group is restricted to `members` (ascending ranks of the job, this rank
/// among them): rank(), size() and peers count within them. Slots are shifted by `slot_offset`,
/// which keeps messages of different parts of one operation apart. All posted operations must be
/// waited for before it is destroyed. Parts do not nest.
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
