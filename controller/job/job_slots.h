// SPDX-License-Identifier: Apache-2.0
#pragma once
// A job's plans and the aggregator slots that they need: before a plan that uses an aggregator is
// offered, its lease is there; after one that does not is active, the lease goes.

#include <map>
#include <optional>
#include <string>

#include "controller/job/capabilities.h"
#include "controller/job/job_lease.h"
#include "controller/job/job_plan.h"
#include "controller/job/rank_said.h"

namespace weir {

/// Not thread-safe.
class JobSlots {
 public:
  /// `host` and `clock` outlive it.
  JobSlots(const std::string& job, LeaseHost& host, const Clock& clock);

  void Begin(int world);
  void OnGreeting(const RankGreeting& hello);
  void OnAnswer(const LeaseAsk& ask, const StatusOr<SlotGrant>& answer);
  /// A rank is gone, and with it what it shared.
  void RankLeft(int rank);

  /// Says of each collective in `snapshot` whether the job could have or has a lease of it, and
  /// calls `set_rate` with what the aggregator takes. `alone`: ranks sum among themselves after a
  /// rollback.
  template <typename SetRate>
  void Describe(bool alone, Snapshot* snapshot, const SetRate& set_rate) const {
    for (CollectiveModel& collective : snapshot->collectives) {
      const auto lease = leases_.find(collective.name);
      if (lease == leases_.end()) continue;
      lease->second.Describe(*snapshot, &collective);
      set_rate(collective.name, collective.bandwidth_max_bytes_per_s);
      if (!alone) continue;
      collective.lease_available = false;
      collective.lease_why_not = collective.name + ": ranks sum alone after a rollback";
    }
  }

  /// Asks for what `choices` need and the job does not hold. False: nothing is missing.
  bool AskFor(const PlanModel& choices, const Snapshot& snapshot,
              const JobCapabilities& capabilities, const LeaseWish& wish);
  /// "waiting for sum-1 to grant 64 slots"; empty: nothing was asked for.
  std::string Awaited() const;

  /// Whether `plan` runs on other slots than those that the job holds for `choices`.
  bool Lacks(const PlanModel& choices, const JobPlan* plan) const;
  /// Adds what the job holds for `choices`, and renews the digest.
  void AddTo(const PlanModel& choices, JobPlan* plan) const;
  /// Gives back what neither plan holds; null: there is no such plan.
  void EndUnused(const JobPlan* active, const JobPlan* pending);
  /// Watches deadlines and aggregators; calls `on_lost` with the reason for each lease that is
  /// lost. `attached`: some rank is connected.
  template <typename OnLost>
  void Watch(const JobPlan* active, const JobPlan* pending, bool attached, const OnLost& on_lost) {
    for (auto& [collective, lease] : leases_) {
      const bool used = Holds(active, lease) || Holds(pending, lease);
      const auto failed = lease.OnTick({.planned = used, .lost = !attached});
      if (failed.has_value()) on_lost(*failed);
    }
  }
  /// A rank could not use a lease: the ranks already sum among themselves, and what is left is a
  /// plan that says so. The reason where that is news.
  std::optional<std::string> OnOffloadFailed(int rank, const std::string& detail);

 private:
  static bool Holds(const JobPlan* plan, const JobLease& lease);

  int world_ = 0;
  LeaseBackoff backoff_;
  std::map<std::string, JobLease> leases_;  // by collective, of all that need one
};

}  // namespace weir
