#pragma once
// A data plane in front of the sockets: it takes the leases that it can serve, and packets of
// others go on to the shards.

#include <optional>
#include <span>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/lease.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// Only ever grow.
struct OffloadCounters {
  AggregatorCounters packets;  // without what only programs behind the socket count
  uint64_t passed = 0;         // packets that name a lease here but are none: the socket got them
  uint64_t handed = 0;         // replies that somebody else was asked to send
  uint64_t ring_full = 0;      // and those that there was no room to ask for: as if lost
  uint64_t unsent = 0;         // asked for, but the socket had no room
};

/// Thread-safe. Each call as that of Aggregator.
class LeaseOffload {
 public:
  virtual ~LeaseOffload() = default;

  /// Whether it can serve such a lease. O(1).
  virtual bool Takes(const Lease& lease) const = 0;

  /// aggregator: where the workers send. kResourceExhausted and kUnavailable: a shard may have the
  /// lease instead.
  virtual StatusOr<SlotRange> Grant(const Lease& lease, std::span<const SourceAddress> workers,
                                    SourceAddress aggregator) = 0;
  virtual Status Revoke(uint16_t id, uint32_t epoch) = 0;
  virtual std::optional<OpenRound> OldestOpenRound(uint16_t id) = 0;
  virtual std::optional<TimePoint> LastUsed(uint16_t id) = 0;

  /// kUnavailable: it cannot be asked.
  virtual StatusOr<OffloadCounters> Counters() const = 0;
};

}  // namespace weir::aggregation
