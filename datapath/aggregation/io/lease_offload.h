// SPDX-License-Identifier: Apache-2.0
#pragma once
// A data plane in front of the sockets. It serves the leases that it can, and packets of other
// leases reach the shards.

#include <optional>
#include <span>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/lease.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// All values only increase.
struct OffloadCounters {
  AggregatorCounters packets;  // except those that only programs at the socket can count
  uint64_t passed = 0;     // packets for a lease here that it cannot handle; the socket got them
  uint64_t handed = 0;     // replies that another program was asked to send
  uint64_t ring_full = 0;  // replies for which there was no room to ask; they count as lost
  uint64_t unsent = 0;     // replies asked for that the socket had no room for
};

/// Thread-safe. Each call is as that of Aggregator.
class LeaseOffload {
 public:
  virtual ~LeaseOffload() = default;

  /// Returns whether it can serve such a lease. O(1).
  virtual bool Takes(const Lease& lease) const = 0;

  /// aggregator: the address to which the workers send. kResourceExhausted and kUnavailable: the
  /// lease can go to a shard instead.
  virtual StatusOr<SlotRange> Grant(const Lease& lease, std::span<const SourceAddress> workers,
                                    SourceAddress aggregator) = 0;
  virtual Status Revoke(uint16_t id, uint32_t epoch) = 0;
  virtual std::optional<OpenRound> OldestOpenRound(uint16_t id) = 0;
  virtual std::optional<TimePoint> LastUsed(uint16_t id) = 0;

  /// kUnavailable: the counters cannot be read.
  virtual StatusOr<OffloadCounters> Counters() const = 0;
};

}  // namespace weir::aggregation
