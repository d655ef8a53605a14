// SPDX-License-Identifier: Apache-2.0
#pragma once
// The slots that one job holds on an aggregator for one collective: which aggregator can serve it,
// asking, keeping, giving back, and how long to leave it alone after a failure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/job/job_plan.h"
#include "controller/job/lease_ask.h"
#include "controller/model/snapshot.h"
#include "controller/policy/policy.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// The part of a job that its lease needs.
class LeaseHost {
 public:
  virtual ~LeaseHost() = default;
  virtual const AggregatorMap& aggregators() const = 0;
  /// As LeaseGateway; the answer comes through JobLease::OnAnswer.
  virtual bool AskLease(const LeaseAsk& ask) = 0;
  virtual void EndLease(const std::string& aggregator, const std::string& job, uint32_t epoch) = 0;
};

/// The mode in which an aggregator serves this collective; empty: it needs none.
std::string LeaseModeOf(const std::string& collective);

/// All collectives that need one, by name.
std::vector<std::string> LeasedCollectives();

/// The policy's terms for a job of `world` ranks; without a quorum if it needs all of them.
LeaseWish WishOf(const Policy& policy, int world);

/// How long a job leaves aggregators alone after one refused it, was lost or failed. All leases of
/// a job have the same: what one of them met, the others would meet, too.
struct LeaseBackoff {
  static constexpr double kMinS = 4, kMaxS = 300;  // doubling
  TimePoint until{};
  std::string why;
  double next_s = kMinS;
};

/// For one collective of a job. Not thread-safe: owned by the job.
class JobLease {
 public:
  static constexpr double kAskDeadlineS = 8;
  static constexpr double kUnusedMaxS = 10;  // a granted lease that no plan uses
  static constexpr double kUnreachableMaxS =
      10;                                      // of an aggregator, before its leases count as lost
  static constexpr double kLostIdleMaxS = 60;  // without packets, of a job that nobody hears of
  static constexpr double kBackoffMinS = LeaseBackoff::kMinS;
  static constexpr double kGoodAfterS = 120;  // a lease that lasted so long ends the doubling
  static constexpr uint32_t kSlotsMin = 64, kSlotsMax = 1024;
  static constexpr uint32_t kLanes = 256;  // per packet

  /// backoff: of the job, outlives this; null: one of its own.
  JobLease(std::string job, LeaseHost& host, const Clock& clock, LeaseBackoff* backoff = nullptr);
  JobLease(const JobLease&) = delete;
  JobLease& operator=(const JobLease&) = delete;

  /// Other ranks: what is held ends, addresses are forgotten; a back-off stays.
  void Begin(int world);
  /// Where `rank` awaits packets; empty: it cannot. A change ends what is held.
  void SetAddress(int rank, const std::string& address);
  /// Takes over what the ranks' active plan holds, from an earlier controller's time.
  void Adopt(const SlotGrant& lease);

  /// Says of a collective that needs a lease whether this job could have one or has one, why not,
  /// and how fast it would be. `network`: bandwidth and latency of the snapshot. O(aggregators).
  void Describe(const Snapshot& network, CollectiveModel* collective) const;

  /// Asks the aggregator that Describe had in mind. An answer, a refusal or the deadline follows;
  /// where nobody can be asked the collective is blocked at once.
  /// table: of the codec whose lanes it carries, where it carries such; a quorum is for those
  /// alone.
  void Ask(const Snapshot& network, const std::string& collective, const LeaseTable& table = {},
           const LeaseWish& wish = {});
  bool asking() const { return pending_.has_value(); }
  /// "waiting for sum-1 to grant 64 slots"; empty: not asking.
  std::string Waiting() const;
  /// The answer to ask `id`. A grant that nobody waits for any more is given back.
  void OnAnswer(uint64_t id, const StatusOr<SlotGrant>& answer);

  struct Use {
    bool planned = false;  // some plan, active or on its way, holds it
    bool lost = false;     // no rank is connected: the ranks may train on, or be gone
  };
  /// Watches deadlines and the aggregator's own list. The reason when what was held or asked for
  /// was lost by this call. What a lost job holds ends when no packets come for it either.
  std::optional<std::string> OnTick(Use use);

  /// Gives back what is held, if anything, for another plan or other ranks.
  void End();
  /// The same after a failure: nothing is asked for for a while because of `why`. False: that is so
  /// already, and nothing was held; the ranks of a job tell of one failure together.
  bool Fail(const std::string& why);

  const std::optional<SlotGrant>& held() const { return held_; }

 private:
  struct Pick {
    const AggregatorReport* aggregator = nullptr;
    uint32_t slots = 0;
    std::string why_not;
  };
  Pick PickFor(const Snapshot& network) const;
  std::string AddressesMissing() const;
  std::string Lost() const;
  double IdleSeconds() const;
  void Block(const std::string& why);
  std::vector<std::string> Workers() const;

  const std::string job_;
  LeaseHost& host_;
  const Clock& clock_;
  int world_ = 0;
  std::map<int, std::string> addresses_;
  std::optional<LeaseAsk> pending_;
  TimePoint deadline_{};
  uint64_t last_id_ = 0;
  std::optional<SlotGrant> held_;
  std::string ended_;  // aggregator and epoch of what was given back last
  TimePoint held_since_{}, used_at_{};
  LeaseBackoff own_backoff_;
  LeaseBackoff& backoff_;
};

}  // namespace weir
