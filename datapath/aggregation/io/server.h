// SPDX-License-Identifier: Apache-2.0
#pragma once
// An aggregator in software: shards of one core each, the leases that jobs hold on them, and the
// status of both.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/aggregation/io/shard.h"
#include "datapath/aggregation/lease.h"
#include "datapath/base/mutex.h"

namespace weir::aggregation {

inline constexpr int kShardsMax = 64;
inline constexpr size_t kOwnerMin = 16, kOwnerMax = 128;

struct ServerOptions {
  std::string listen = "127.0.0.1";  // IPv4 address of all shards
  uint16_t first_port = 0;           // shard i has this port plus i; 0: any free ports
  int shards = 1;                    // 1 .. kShardsMax
  AggregatorLimits limits = {};      // of each shard
  int buffer_bytes = 8 << 20;        // as in UdpPortOptions
  double drop = 0;                   // as in ShardOptions
  uint64_t seed = 1;
};

/// A job's request for a lease.
struct LeaseRequest {
  std::string job;                     // 1 .. 128 of letters, digits, '.', '_' and '-'
  Lease terms;                         // without id, epoch and cookie, which the server sets
  std::vector<SourceAddress> workers;  // in the order of their numbers
  /// The secret by which the job owns the lease: kOwnerMin to kOwnerMax visible ASCII characters.
  /// The server generates a value if this is empty.
  std::string owner = {};
  /// The lease of another aggregator to which sums are sent. The workers of that lease are this
  /// aggregator's address and those of its siblings. Such a lease is on the first shard, which has
  /// that address.
  std::optional<ParentLease> parent = {};
};

/// A granted lease.
struct LeaseGrant {
  std::string job;
  std::string owner = {};  // secret to renew and end the lease; only the requester gets it
  Lease lease;
  int shard = 0;
  SourceAddress address = 0;  // where its workers send
  SlotRange range = {};       // of the shard's slots
  std::vector<SourceAddress> workers = {};
  std::optional<ParentLease> parent = {};
  TimePoint granted_at = {};
};

/// A round that delays a job.
struct StalledRound {
  OpenRound round;
  Duration age = {};
  std::vector<int> missing;  // numbers of the workers that have not contributed
};

struct LeaseStatus {
  LeaseGrant grant;
  std::optional<StalledRound> oldest;  // the incomplete round that has waited longest, if any
  Duration idle = {};                  // time since the grant or the last packet of this lease
};

struct ShardStatus {
  SourceAddress address = 0;
  ShardCounters counters;
  uint32_t slots_granted = 0;
  uint32_t leases = 0;
};

/// Thread-safe. All calls that use a shard may fail as Shard::Call does.
class AggregatorServer {
 public:
  /// kInvalidArgument names an option; kUnavailable: a port cannot be bound.
  static StatusOr<std::unique_ptr<AggregatorServer>> Start(const ServerOptions& options);

  /// Grants a lease on the shard with the fewest granted slots. The owner of a job's lease gets
  /// another epoch of it on the same shard, with all slots empty, and packets of the earlier epoch
  /// are dropped from then on. kPermissionDenied: another owner holds the job's lease.
  /// kInvalidArgument: job, owner, terms or addresses are wrong. kResourceExhausted names a limit.
  /// After an error the earlier epoch remains in force. O(slots).
  StatusOr<LeaseGrant> Grant(const LeaseRequest& request) WEIR_EXCLUDES(mutex_);

  /// Ends a job's lease for its owner. Epoch 0 stands for any. kNotFound: the job has no lease or
  /// not this epoch. kPermissionDenied: another owner holds it.
  Status Revoke(const std::string& job, uint32_t epoch, std::string_view owner)
      WEIR_EXCLUDES(mutex_);

  /// Ends an unused lease of any owner. kNotFound as Revoke.
  Status Expire(const std::string& job, uint32_t epoch) WEIR_EXCLUDES(mutex_);

  /// All leases with the rounds that have waited longest, by job. O(all slots).
  StatusOr<std::vector<LeaseStatus>> Leases() WEIR_EXCLUDES(mutex_);

  StatusOr<std::vector<ShardStatus>> Shards() WEIR_EXCLUDES(mutex_);

  const ServerOptions& options() const { return options_; }

 private:
  explicit AggregatorServer(const ServerOptions& options) : options_(options) {}
  int FreestShard() const WEIR_REQUIRES(mutex_);
  uint16_t FreeId() const WEIR_REQUIRES(mutex_);
  Status Place(LeaseGrant* grant) WEIR_REQUIRES(mutex_);
  /// Says so when the workers may send more packets at once than the kernel holds.
  void WarnOfLoss(const LeaseGrant& grant) const;
  Status End(const LeaseGrant& grant) WEIR_REQUIRES(mutex_);
  StatusOr<LeaseGrant*> Find(const std::string& job, uint32_t epoch) WEIR_REQUIRES(mutex_);

  const ServerOptions options_;
  std::vector<std::unique_ptr<Shard>> shards_;  // constant after Start
  Mutex mutex_;
  std::map<std::string, LeaseGrant> leases_ WEIR_GUARDED_BY(mutex_);  // at most shards * leases
  uint32_t last_epoch_ WEIR_GUARDED_BY(mutex_) = 0;                   // the highest of any lease
};

/// Describes a stalled round, such as "job train-7: round 3 of slot 5 (operation 2) has waited 4.2
/// s for worker 1 at 10.0.0.3:40001". Names at most 8 workers and counts the others.
std::string Describe(const LeaseGrant& grant, const StalledRound& stalled);

}  // namespace weir::aggregation
