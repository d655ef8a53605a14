// SPDX-License-Identifier: Apache-2.0
#pragma once
// The aggregator's side of one lease: slots with two sets each, in which the packets of many
// workers are summed. Pure: it has no clock, network or addresses.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "datapath/aggregation/lane_operation.h"
#include "datapath/aggregation/lease.h"
#include "datapath/aggregation/packet.h"
#include "datapath/base/clock.h"

namespace weir::aggregation {

/// The outcome of a packet.
enum class Verdict {
  kAdded,      // added to a sum that is not complete yet
  kCompleted,  // the last contribution: the reply goes to all workers
  kServed,     // the round is complete already: the reply goes to the sender alone
  kNoticed,    // a notice goes to the sender alone
  kDuplicate,  // the sum holds it already, but is not complete
  kStale,      // of a round before the slot's last two
  kEarly,      // of a round that cannot have begun yet
};

struct Outcome {
  Verdict verdict = Verdict::kStale;
  std::span<const std::byte> reply = {};  // valid until the next call to the pool
  bool partial = false;                   // kCompleted: without workers that missed the cut-off
};

/// A round that is not complete.
struct OpenRound {
  uint16_t slot = 0;
  uint32_t round = 0;
  uint32_t operation = 0;
  uint64_t missing = 0;  // bit w: worker w has not contributed
  TimePoint opened_at;
};

/// Not thread-safe; copyable. Memory is bounded by the lease: slots * 2 * (StateWords * 4 + one
/// packet), without the first term where sums are made in the reply.
///
/// Packets are matched by slot and round exactly (WIRE section 4, "Rounds"), in any order and with
/// repetitions. Source: Sapio et al., "Scaling distributed machine learning with in-network
/// aggregation", NSDI 2021, section 3.5; deviates: the published protocol tells two uses of a set
/// apart by the bitmap alone, and so takes a late duplicate for a contribution to the next use.
class SlotPool {
 public:
  /// lease: valid.
  explicit SlotPool(const Lease& lease, bool exact_floats = true);

  /// A request of `worker` (0 .. workers - 1) that Fits() the lease. O(lanes).
  Outcome OnPacket(int worker, const Packet& packet, TimePoint now);

  /// Ends rounds that have waited for the lease's cut-off and have its quorum, and calls on_reply
  /// with each reply, which is for all workers. Later rounds of the same operation do not wait for
  /// the workers that were missing; they count only if they come before the last of the others. So
  /// a worker delays an operation by one cut-off, not by one for each round. O(slots), nothing
  /// without a cut-off.
  void OnTimer(TimePoint now, const std::function<void(std::span<const std::byte>)>& on_reply);

  /// The incomplete round that has waited longest, if any. O(slots).
  std::optional<OpenRound> OldestOpenRound() const;

  /// Appends all state that determines the outcome of later packets, except times and headers.
  void AppendStateForTest(std::vector<uint64_t>* out) const;

 private:
  struct Set {
    uint32_t round = 0;
    uint64_t contributors = 0;
    int count = 0;
    bool complete = false;
    PacketHeader header;  // of the first contribution
    TimePoint opened_at;
    std::vector<std::byte> reply;  // from the first round on as large as any packet
    size_t reply_bytes = 0;
    std::span<const std::byte> Reply() const { return std::span(reply).first(reply_bytes); }
  };
  struct Slot {
    int64_t newest = -1;  // the newest round; -1: none
    Set sets[2];
  };

  std::span<const uint32_t> State(size_t slot, uint32_t round) const;
  std::span<uint32_t> State(size_t slot, uint32_t round);
  void Open(Slot* slot, const PacketHeader& header, TimePoint now);
  Outcome Contribute(int worker, const Packet& packet, Set* set);
  /// Returns whether all workers for whom the round waits have contributed.
  bool HasAllAwaited(const Set& set) const;
  /// last: the contribution that is not in the state yet; may be null.
  void Complete(const Packet* last, Set* set);
  Outcome Tell(const PacketHeader& header, Notice notice);

  const Lease lease_;
  const std::shared_ptr<const LaneOperation> operation_;  // immutable, so copies share it
  const size_t words_;
  const uint64_t everybody_;
  uint64_t late_ = 0;            // bit w: worker w missed a cut-off in late_operation_
  uint32_t late_operation_ = 0;  // the operation of the newest round of the pool
  std::vector<Slot> slots_;
  std::vector<uint32_t> state_;  // empty where the state of a set lies in its reply
  std::vector<std::byte> notice_;
};

}  // namespace weir::aggregation
