// SPDX-License-Identifier: Apache-2.0
#pragma once
// An aggregator between workers and a parent aggregator: it sends the sum of its workers to the
// parent and the sum of all workers to its workers.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "datapath/aggregation/lease.h"
#include "datapath/aggregation/slot_pool.h"

namespace weir::aggregation {

/// All values only increase.
struct LeafCounters {
  uint64_t forwarded = 0;    // sums sent up
  uint64_t reforwarded = 0;  // sent again, because a worker asked before the result had come
  uint64_t delivered = 0;    // results from the parent
  uint64_t unexpected = 0;   // datagrams from the parent that are not an awaited result
};

/// The packets that a call makes the leaf send. Spans are valid until the next call.
struct LeafOutput {
  std::span<const std::byte> up = {};         // to the parent
  std::span<const std::byte> to_all = {};     // to all workers
  std::span<const std::byte> to_sender = {};  // to the worker that sent the packet
  Verdict verdict = Verdict::kStale;          // the outcome of the packet here
};

/// One lease of a leaf. A round here corresponds to the round of the same slot at the parent. When
/// a worker repeats its packet of a round that is complete here but not at the parent, the leaf
/// repeats its own packet to the parent instead of answering. Otherwise one packet lost above would
/// stop the job. A leaf therefore needs no timer. Not thread-safe; pure. Memory: that of a SlotPool
/// and two packets per slot and set. Source: the composition sketched in Sapio et al. 2021, section
/// 6; no code was published.
class Leaf {
 public:
  /// below: the lease of this leaf's workers, of mode kSum or kMax, with `world` set. above: the
  /// lease at the parent in which this leaf is a worker, with the same mode, slots, lanes and byte
  /// order. Both are valid. kInvalidArgument: they do not match.
  static StatusOr<std::unique_ptr<Leaf>> Create(const Lease& below, const Lease& above);

  /// A request of `worker` that Fits() the lease below. O(lanes).
  LeafOutput OnRequest(int worker, const Packet& packet, TimePoint now);

  /// A datagram from the parent. O(lanes).
  LeafOutput OnReply(std::span<const std::byte> datagram);

  /// As SlotPool::OldestOpenRound, for the workers of this leaf.
  std::optional<OpenRound> OldestOpenRound() const { return pool_.OldestOpenRound(); }

  const LeafCounters& counters() const { return counters_; }

 private:
  struct Round {
    PacketHeader header;            // of the packet to the parent
    std::vector<std::byte> up;      // empty before the first such round
    std::vector<std::byte> result;  // empty until it has come
  };

  Leaf(const Lease& below, const Lease& above);
  Round& RoundOf(const PacketHeader& header) {
    return rounds_[size_t{header.slot} * 2 + (header.round & 1)];
  }

  const Lease below_, above_;
  SlotPool pool_;
  std::vector<Round> rounds_;
  LeafCounters counters_;
};

}  // namespace weir::aggregation
