// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plans of a job: what is active, what is on its way, what ranks turn to when the controller is
// lost, and the rollout that carries them from one to the next.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "controller/job/job_host.h"
#include "controller/job/job_plan.h"
#include "controller/job/membership.h"
#include "controller/rollout/rollout.h"

namespace weir {

/// Not thread-safe.
class PlanLedger {
 public:
  /// `host` and `counters` outlive it.
  PlanLedger(std::string job, JobHost& host, RolloutOptions options, JobCounters* counters);

  void Recover(const JobView& stored);
  /// Another incarnation of `world` ranks: what was on its way is void.
  void Begin(int world);
  void OnGreeting(const RankGreeting& hello);

  /// Null before the first greeting.
  Rollout* rollout() { return rollout_.get(); }
  const Rollout* rollout() const { return rollout_.get(); }
  uint64_t active_version() const { return rollout_ == nullptr ? 0 : rollout_->active_version(); }
  /// Null: no such plan is known.
  const JobPlan* Find(uint64_t version) const;
  const JobPlan* active() const { return Find(active_version()); }
  /// The plan on its way; null: none.
  const JobPlan* pending() const;
  bool HasLease(uint64_t version) const { return lease_plans_.contains(version); }

  /// A version above all that are known.
  uint64_t NextVersion() const;
  /// Starts the rollout of `plan`, whose version is the next one, after the journal has taken it.
  /// `lease_fallback`: ranks turn to that choice when the plan's lease runs out; none: it has no
  /// lease. Errors as Rollout::Offer and JobJournal::ClaimPlan; then the plan was not offered.
  Status Offer(JobPlan plan, const std::optional<ChoiceModel>& lease_fallback);

  /// Sends what the rollout has for the ranks, stores the lines of its log and hands them out.
  void Pump(const Membership& members, const std::function<void(const PlanLogEntry&)>& on_log);
  /// `version` is active: loads it where it is not known.
  void Activated(uint64_t version);
  /// Forgets plans beyond the newest ones, and leases of plans before `version`.
  void ForgetBefore(uint64_t version);
  /// Tells rank 0 that the controller is there, once a second while the policy bounds the lease.
  void RenewLease(const Membership& members, double lease_s);

  void Fill(JobView* out) const;

 private:
  void Warn(const std::string& message) const;
  Status Claim(const JobPlan& plan, std::string_view state);
  void Send(const RolloutMessage& message, const Membership& members);

  const std::string job_;
  JobHost& host_;
  const RolloutOptions options_;
  JobCounters& counters_;
  std::unique_ptr<Rollout> rollout_;
  std::map<uint64_t, JobPlan> plans_;        // offered and active ones
  std::map<uint64_t, JobPlan> lease_plans_;  // by the version of the plan that has the lease
  double lease_told_s_ = 0;                  // to rank 0; negative: it must be told
  TimePoint next_lease_{};
  uint64_t highest_known_version_ = 0;
};

}  // namespace weir
