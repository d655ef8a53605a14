#pragma once
// An aggregator between workers and another aggregator: it sends the sum of its workers upwards and
// the sum of all downwards.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "datapath/aggregation/lease.h"
#include "datapath/aggregation/slot_pool.h"

namespace weir::aggregation {

/// Counts; only ever grow.
struct LeafCounters {
  uint64_t forwarded = 0;    // sums sent up
  uint64_t reforwarded = 0;  // again, because a worker asked and the answer was not there
  uint64_t delivered = 0;    // results from above
  uint64_t unexpected = 0;   // datagrams from above that are no result that is due
};

/// What a call makes the leaf send. Spans are valid until the next call.
struct LeafOutput {
  std::span<const std::byte> up = {};         // to the aggregator above
  std::span<const std::byte> to_all = {};     // to all workers
  std::span<const std::byte> to_sender = {};  // to the worker whose packet came
  Verdict verdict = Verdict::kStale;          // OnRequest: what became of the packet here
};

/// One lease of a leaf. A round here is the round of the same slot above. A worker that repeats its
/// packet of a round that is complete here but not above makes the leaf repeat its own, never
/// answer: were it silent, one loss above would stop the job. So a leaf needs no timer. Not
/// thread-safe; pure. Memory: that of a SlotPool and two packets per slot and set.
/// Source: the composition sketched in Sapio et al. 2021, section 6; no code was published.
class Leaf {
 public:
  /// below: of this leaf's workers, mode kSum or kMax, world set. above: where this leaf is a
  /// worker; the same mode, slots, lanes and byte order. Both valid. kInvalidArgument: they do not
  /// match.
  static StatusOr<std::unique_ptr<Leaf>> Create(const Lease& below, const Lease& above);

  /// A request of `worker` that Fits() the lease below. O(lanes).
  LeafOutput OnRequest(int worker, const Packet& packet, TimePoint now);

  /// A datagram from the aggregator above. O(lanes).
  LeafOutput OnReply(std::span<const std::byte> datagram);

  /// As SlotPool::OldestOpenRound, of this leaf's own workers.
  std::optional<OpenRound> OldestOpenRound() const { return pool_.OldestOpenRound(); }

  const LeafCounters& counters() const { return counters_; }

 private:
  struct Round {
    PacketHeader header;            // sent up
    std::vector<std::byte> up;      // empty: the round has not got here
    std::vector<std::byte> result;  // empty: not there yet
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
