#pragma once
// A Group is the set of ranks that run one operation together. It stamps every frame with the
// operation's identity, checks the same on arrival, and carries the control word and flags along.

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"
#include "datapath/transport/transport.h"
#include "datapath/wire/frame.h"

namespace weir {

/// The identity of one operation, equal on every rank.
struct OperationId {
  uint64_t plan_version = 0;
  uint64_t op_sequence = 0;
  uint64_t bucket = 0;
};

/// Stays in the L2 cache between arrival, reduction and departure.
inline constexpr size_t kSegmentBytesDefault = 256 << 10;

/// Not thread-safe. Lives for one operation or many (Begin resets it).
class Group {
 public:
  /// All ranks of `transport`, which outlives the group. `segment_bytes`: messages are cut at it.
  Group(Transport& transport, size_t segment_bytes = kSegmentBytesDefault);

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.world(); }
  size_t segment_bytes() const { return segment_bytes_; }

  /// Starts an operation. `control` and `flags` are what this rank itself announces.
  void Begin(const OperationId& id, ControlWord control, uint16_t flags, TimePoint deadline);

  /// Posts one message; `slot` must match on both sides. Frames carry every control word and flag
  /// seen so far (the word of the highest version, all flags), so what any rank announced reaches
  /// every rank that depends on it. Any error fails the group, see Fail.
  StatusOr<Ticket> Send(int peer, uint32_t slot, std::span<const std::byte> payload);
  StatusOr<Ticket> Receive(int peer, uint32_t slot, std::span<std::byte> buffer);
  Status WaitSend(Ticket ticket);
  /// The payload's size. kInternal naming both sides when the frame belongs to another plan,
  /// operation, bucket or slot; the group then aborts its transport. A peer that was heard in this
  /// operation gets a tenth of the time (at most a second) longer: it waits itself, and the rank
  /// that waits for the missing one shall be the first to name it.
  StatusOr<size_t> WaitReceive(Ticket ticket);

  /// Ends the operation with `status`, which must not be OK: the first failure aborts the transport
  /// with its message, so that the other ranks learn whose fault it is. Returns `status`.
  /// Collectives call it for errors of their own (wrong sizes, failed callbacks).
  Status Fail(const Status& status);

  /// What this rank has learnt so far in the operation.
  ControlWord control() const { return control_; }
  uint16_t flags() const { return flags_; }
  /// Payload and frame header bytes since Begin.
  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Pending {
    Ticket ticket;
    int peer;
    uint32_t slot;
  };
  Status Verify(const Pending& expected, const FrameHeader& found) const;

  Transport& transport_;
  size_t segment_bytes_;
  OperationId id_;
  ControlWord control_;
  uint16_t flags_ = 0;
  TimePoint deadline_{};
  uint64_t bytes_sent_ = 0;
  bool failed_ = false;
  Duration grace_{0};  // for peers that were heard in this operation
  std::vector<bool> heard_;
  std::vector<Pending> receives_;  // at most kPostedMax
};

}  // namespace weir
