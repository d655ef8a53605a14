// SPDX-License-Identifier: Apache-2.0
#pragma once
// All leases of one aggregator: which slots belong to which job, and which packets are accepted.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "datapath/aggregation/leaf.h"
#include "datapath/aggregation/lease.h"
#include "datapath/aggregation/slot_pool.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// An IPv4 address and port as one number. The code that owns the socket makes it from the source
/// of a datagram.
using SourceAddress = uint64_t;

/// The destination of replies. It is called from within calls of the aggregator and must not call
/// the aggregator itself.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  /// packet: valid during the call.
  virtual void Send(SourceAddress to, std::span<const std::byte> packet) = 0;
  /// Sends the same packet to several addresses. Sinks that can do so at once override it.
  virtual void SendToAll(std::span<const SourceAddress> to, std::span<const std::byte> packet) {
    for (const SourceAddress address : to) Send(address, packet);
  }
};

struct AggregatorLimits {
  uint32_t slots = 8192;         // of all leases together
  uint32_t slots_per_job = 512;  // of one lease
  uint32_t leases = 64;
  // Mode kFloat: add exactly, or else like a switch that cannot shift a register (FPISA-A).
  bool exact_floats = true;
};

/// Packets by outcome. All values only increase.
struct AggregatorCounters {
  uint64_t added = 0, completed = 0, served = 0, noticed = 0, duplicate = 0, stale = 0, early = 0;
  uint64_t malformed = 0;  // datagrams that are not packets
  uint64_t unknown = 0;    // packets of no lease, and replies
  uint64_t foreign = 0;    // packets with the wrong epoch, cookie, shape or sender for their lease
  uint64_t cut_off = 0;    // rounds that ended without some workers
  // For leases below another aggregator: sums sent to it, sums sent to it again because a worker
  // asked before the result had come, and results from it.
  uint64_t forwarded = 0, forwarded_again = 0, delivered = 0;
};

/// The parent aggregator, and the lease there in which this aggregator is a worker.
struct ParentLease {
  SourceAddress address = 0;
  uint16_t id = 0;
  uint32_t epoch = 0;
  uint64_t cookie = 0;
  int workers = 0;  // how many aggregators contribute to that lease
};

/// A range of the aggregator's slots. Ranges are disjoint.
struct SlotRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

/// Not thread-safe. Pure: the caller passes the time, and packets go to the sink. Memory is bounded
/// by the limits.
class Aggregator {
 public:
  explicit Aggregator(const AggregatorLimits& limits) : limits_(limits) {}

  /// Grants `lease` to the workers that send from `workers`, which are all different and in the
  /// order of their numbers. An earlier epoch of the same id is replaced, and all its slots are
  /// empty afterwards.
  /// parent: where the sums of these workers are sent instead of to the workers; see Leaf::Create.
  /// All leases below one parent have different ids there.
  /// kInvalidArgument: terms or addresses are wrong. kFailedPrecondition: the epoch is not above
  /// the last one of this id. kResourceExhausted names a limit. After an error the earlier epoch
  /// remains in force. O(slots).
  StatusOr<SlotRange> Grant(const Lease& lease, std::span<const SourceAddress> workers,
                            const std::optional<ParentLease>& parent = std::nullopt);

  /// Ends a lease and remembers its epoch. kNotFound: there is no such id and epoch.
  Status Revoke(uint16_t id, uint32_t epoch);

  /// Handles one datagram from `source`. Whatever it contains, it causes at most one reply to each
  /// worker of its lease, none to an address without a lease, and none longer than a packet.
  /// O(lanes + workers).
  void OnPacket(SourceAddress source, std::span<const std::byte> datagram, TimePoint now,
                ReplySink* sink);

  /// Ends rounds that have reached their cut-off. O(slots with a cut-off).
  void OnTimer(TimePoint now, ReplySink* sink);

  /// Returns whether some lease has a cut-off, so that OnTimer must be called. O(leases).
  bool NeedsTimer() const;

  /// The round of this lease that has waited longest, if any is waiting.
  std::optional<OpenRound> OldestOpenRound(uint16_t id) const;

  /// The time of the last accepted packet of this lease, or nothing if there was none.
  std::optional<TimePoint> LastUsed(uint16_t id) const;

  const AggregatorCounters& counters() const { return counters_; }

 private:
  struct Granted {
    Lease lease;
    SlotRange range;
    std::vector<SourceAddress> workers = {};
    std::unordered_map<SourceAddress, int> numbers = {};
    size_t recent = 0;                    // the worker that sent last: its packets come in rows
    std::unique_ptr<SlotPool> pool = {};  // null for a lease with a parent, which has a leaf
    std::optional<ParentLease> parent = {};
    std::unique_ptr<Leaf> leaf = {};
    std::optional<TimePoint> used_at = {};
    int Number(SourceAddress source);  // -1: not a worker of the lease
  };

  std::optional<uint32_t> FreeRange(uint16_t id, uint32_t count) const;
  Granted* BelowParent(SourceAddress source, uint16_t id);
  void OnLeafRequest(Granted* granted, SourceAddress source, int worker, const Packet& packet,
                     TimePoint now, ReplySink* sink);
  void OnParentReply(Granted* granted, std::span<const std::byte> datagram, ReplySink* sink);
  void Count(Verdict verdict);

  const AggregatorLimits limits_;
  std::map<uint16_t, Granted> leases_;
  std::map<uint16_t, uint32_t> last_epochs_;  // at most 65536
  AggregatorCounters counters_;
};

}  // namespace weir::aggregation
