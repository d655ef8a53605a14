#pragma once
// All leases of one aggregator: who may use which slots, and which packets are believed.

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

/// An address and port as one number, which the shell around the aggregator makes of a datagram's
/// source.
using SourceAddress = uint64_t;

/// Where replies go. Called from within the aggregator's calls, which it must not make.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  /// packet: valid during the call.
  virtual void Send(SourceAddress to, std::span<const std::byte> packet) = 0;
  /// The same packet to several addresses: sinks that can do so at once override it.
  virtual void SendToAll(std::span<const SourceAddress> to, std::span<const std::byte> packet) {
    for (const SourceAddress address : to) Send(address, packet);
  }
};

struct AggregatorLimits {
  uint32_t slots = 8192;         // of all leases
  uint32_t slots_per_job = 512;  // of one
  uint32_t leases = 64;
  // Mode kFloat: exactly, else as a switch that cannot shift a register (FPISA-A).
  bool exact_floats = true;
};

/// Packets by what became of them; only ever grow.
struct AggregatorCounters {
  uint64_t added = 0, completed = 0, served = 0, noticed = 0, duplicate = 0, stale = 0, early = 0;
  uint64_t malformed = 0;  // not a packet
  uint64_t unknown = 0;    // no such lease, or a reply
  uint64_t foreign = 0;    // the lease exists; epoch, cookie, shape or sender is not its
  uint64_t cut_off = 0;    // rounds ended without some workers
  // Of leases below another aggregator: sums sent there, sent there again because a worker asked
  // and no result had come, and results from there.
  uint64_t forwarded = 0, forwarded_again = 0, delivered = 0;
};

/// The aggregator above, and the lease there that this one is a worker of.
struct ParentLease {
  SourceAddress address = 0;
  uint16_t id = 0;
  uint32_t epoch = 0;
  uint64_t cookie = 0;
  int workers = 0;  // of that lease: how many aggregators sum for it
};

/// A range of the aggregator's slots, disjoint from all others'.
struct SlotRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

/// Not thread-safe; pure: time comes in, packets go to the sink. Memory is bounded by the limits.
class Aggregator {
 public:
  explicit Aggregator(const AggregatorLimits& limits) : limits_(limits) {}

  /// Grants `lease` to workers that send from `workers`, all different, in the order of their
  /// numbers; the place of an earlier epoch of the same id is taken over, with all its slots empty.
  /// kInvalidArgument: terms or addresses are wrong. kFailedPrecondition: the epoch is not above
  /// the id's last one. kResourceExhausted: a limit, by name. After an error the earlier epoch
  /// stands. O(slots).
  /// parent: where sums of these workers go, in place of their workers; as Leaf::Create. All
  /// leases of one parent have different ids there.
  StatusOr<SlotRange> Grant(const Lease& lease, std::span<const SourceAddress> workers,
                            const std::optional<ParentLease>& parent = std::nullopt);

  /// Ends a lease; its epoch is remembered. kNotFound: no such id and epoch.
  Status Revoke(uint16_t id, uint32_t epoch);

  /// One datagram from `source`. Whatever it holds, at most one reply per worker of its lease
  /// results, none to an address without a lease, and none longer than a packet. O(lanes +
  /// workers).
  void OnPacket(SourceAddress source, std::span<const std::byte> datagram, TimePoint now,
                ReplySink* sink);

  /// Ends rounds that are due for cut-off. O(slots with a cut-off).
  void OnTimer(TimePoint now, ReplySink* sink);

  /// Whether some lease has a cut-off, so that OnTimer is needed. O(leases).
  bool NeedsTimer() const;

  /// The round of this lease that has waited longest, if any waits.
  std::optional<OpenRound> OldestOpenRound(uint16_t id) const;

  /// When a packet of this lease was last believed; nothing before the first one.
  std::optional<TimePoint> LastUsed(uint16_t id) const;

  const AggregatorCounters& counters() const { return counters_; }

 private:
  struct Granted {
    Lease lease;
    SlotRange range;
    std::vector<SourceAddress> workers = {};
    std::unordered_map<SourceAddress, int> numbers = {};
    size_t recent = 0;                    // the worker that sent last: packets of one come in rows
    std::unique_ptr<SlotPool> pool = {};  // null: leaf
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
  std::map<uint16_t, uint32_t> last_epochs_;  // 65536 at most
  AggregatorCounters counters_;
};

}  // namespace weir::aggregation
