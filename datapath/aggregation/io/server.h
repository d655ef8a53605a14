#pragma once
// An aggregator in software: shards of one core each, the leases that jobs hold on them, and what
// can be told about both.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/aggregation/io/lease_offload.h"
#include "datapath/aggregation/io/shard.h"
#include "datapath/aggregation/lease.h"
#include "datapath/base/mutex.h"

namespace weir::aggregation {

inline constexpr int kShardsMax = 64;
inline constexpr size_t kOwnerMin = 16, kOwnerMax = 128;

struct ServerOptions {
  std::string listen = "127.0.0.1";  // IPv4 address of all shards
  uint16_t first_port = 0;           // shard i has this plus i; 0: any free ones
  int shards = 1;                    // 1 .. kShardsMax
  AggregatorLimits limits = {};      // of each shard
  int buffer_bytes = 8 << 20;        // as in UdpPortOptions
  double drop = 0;                   // as in ShardOptions
  uint64_t seed = 1;
};

/// What a job asks for.
struct LeaseRequest {
  std::string job;                     // 1 .. 128 of letters, digits, '.', '_' and '-'
  Lease terms;                         // without id, epoch and cookie, which the server gives
  std::vector<SourceAddress> workers;  // in the order of their numbers
  /// Who asks: a secret of kOwnerMin to kOwnerMax visible ASCII characters; empty: one is made up.
  std::string owner = {};
  /// Sums go to this lease of another aggregator, whose workers are this one's address and its
  /// like; then the lease is on the first shard, whose address that is.
  std::optional<ParentLease> parent = {};
};

/// What it gets.
struct LeaseGrant {
  std::string job;
  std::string owner = {};  // the secret by which it is renewed and ended; told to who asked alone
  Lease lease;
  int shard = 0;
  SourceAddress address = 0;  // where its workers send
  SlotRange range = {};       // of the shard's slots, or of the offload's
  bool offloaded = false;
  std::vector<SourceAddress> workers = {};
  std::optional<ParentLease> parent = {};
  TimePoint granted_at = {};
};

/// Who holds a job up.
struct StalledRound {
  OpenRound round;
  Duration age = {};
  std::vector<int> missing;  // numbers of the workers that have not contributed
};

struct LeaseStatus {
  LeaseGrant grant;
  std::optional<StalledRound> oldest;  // the round that has waited longest, if any waits
  Duration idle = {};                  // since the grant or the last packet of this lease
};

struct ShardStatus {
  SourceAddress address = 0;
  ShardCounters counters;
  uint32_t slots_granted = 0;
  uint32_t leases = 0;
};

/// What is known of the data plane in front of the shards.
struct OffloadStatus {
  OffloadCounters counters;
  uint32_t slots_granted = 0;
  uint32_t leases = 0;
};

/// Thread-safe. All calls that ask a shard may fail as Shard::Call does.
class AggregatorServer {
 public:
  /// kInvalidArgument: an option, by name; kUnavailable: a port that cannot be bound.
  static StatusOr<std::unique_ptr<AggregatorServer>> Start(const ServerOptions& options);

  /// Leases that fit `offload` go there from now on; packets of the others must pass it. At most
  /// once, before the first grant.
  void UseOffload(std::unique_ptr<LeaseOffload> offload) WEIR_EXCLUDES(mutex_);

  /// The socket of the first shard, which an offload answers from.
  int socket() const { return shards_.front()->socket(); }

  /// Grants a lease on the shard with the fewest granted slots; the owner of a job's lease gets
  /// another epoch of it, on the same shard, with all slots empty, and the earlier epoch's packets
  /// are dropped from then on. kPermissionDenied: the job's lease is somebody else's;
  /// kInvalidArgument: job, owner, terms or addresses; kResourceExhausted: a limit, by name. After
  /// an error the earlier epoch stands. O(slots).
  StatusOr<LeaseGrant> Grant(const LeaseRequest& request) WEIR_EXCLUDES(mutex_);

  /// Ends a job's lease for its owner. epoch 0: whichever it has. kNotFound: the job has none, or
  /// not this epoch; kPermissionDenied: it is somebody else's.
  Status Revoke(const std::string& job, uint32_t epoch, std::string_view owner)
      WEIR_EXCLUDES(mutex_);

  /// Ends a lease whoever owns it: nobody uses it. kNotFound as Revoke.
  Status Expire(const std::string& job, uint32_t epoch) WEIR_EXCLUDES(mutex_);

  /// All leases with their oldest open rounds, by job. O(all slots).
  StatusOr<std::vector<LeaseStatus>> Leases() WEIR_EXCLUDES(mutex_);

  StatusOr<std::vector<ShardStatus>> Shards() WEIR_EXCLUDES(mutex_);

  /// Of what UseOffload was given; nothing without. As LeaseOffload::Counters.
  StatusOr<std::optional<OffloadStatus>> Offload() WEIR_EXCLUDES(mutex_);

  const ServerOptions& options() const { return options_; }

 private:
  explicit AggregatorServer(const ServerOptions& options) : options_(options) {}
  int FreestShard() const WEIR_REQUIRES(mutex_);
  uint16_t FreeId() const WEIR_REQUIRES(mutex_);
  Status Place(LeaseGrant* grant) WEIR_REQUIRES(mutex_);
  Status End(const LeaseGrant& grant) WEIR_REQUIRES(mutex_);
  StatusOr<LeaseGrant*> Find(const std::string& job, uint32_t epoch) WEIR_REQUIRES(mutex_);

  const ServerOptions options_;
  std::vector<std::unique_ptr<Shard>> shards_;  // does not change after Start
  Mutex mutex_;
  std::unique_ptr<LeaseOffload> offload_ WEIR_GUARDED_BY(mutex_);
  std::map<std::string, LeaseGrant> leases_ WEIR_GUARDED_BY(mutex_);  // at most shards * leases
  uint32_t last_epoch_ WEIR_GUARDED_BY(mutex_) = 0;                   // of any lease
};

/// "job train-7: round 3 of slot 5 (operation 2) has waited 4.2 s for worker 1 at
/// 10.0.0.3:40001"; names at most 8 workers and counts the others.
std::string Describe(const LeaseGrant& grant, const StalledRound& stalled);

}  // namespace weir::aggregation
