// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a change to a decision, and from a decision to a plan that is offered: triggers, the policy
// that rules, what is known of the newest decisions, and what makes a plan be rolled back.

#include <optional>
#include <string>
#include <vector>

#include "controller/job/decision_record.h"
#include "controller/job/job_host.h"
#include "controller/job/job_slots.h"
#include "controller/job/loss_guard.h"
#include "controller/job/membership.h"
#include "controller/job/observer.h"
#include "controller/job/plan_ledger.h"
#include "controller/job/plan_monitor.h"
#include "controller/job/plan_promises.h"
#include "controller/job/record_budget.h"
#include "controller/solver/solver.h"

namespace weir {

struct JobOptions {
  double periodic_s = 5;           // a decision at least this often while training runs
  double check_interval_s = 0.25;  // and a look at the triggers
  uint64_t settle_steps = 3;       // steps after all ranks are present before the first offer
  RolloutOptions rollout;
};

/// The parts of a job that decisions are made from and that carry them out. All outlive the loop.
struct JobParts {
  const std::string& name;
  JobHost& host;
  const JobOptions& options;
  Membership& members;
  Observer& observer;
  PlanLedger& ledger;
  JobSlots& slots;
  JobCounters& counters;
};

/// The decision that would be made now if another policy ruled.
struct Foresight {
  std::optional<PlanFacts> running, chosen;
  bool switches = false;
  std::string nothing_to_choose;  // why the policy leaves no plan
  std::string unforeseen;         // why nothing can be said, such as missing measurements
};

/// Not thread-safe.
class DecisionLoop {
 public:
  explicit DecisionLoop(const JobParts& parts) : job_(parts) {}

  /// Takes over the state that a former controller stored.
  void Recover(std::optional<JobPin> pin, std::optional<DecisionRecord> newest);
  /// Another incarnation of the job.
  void Begin();
  /// All ranks are present: the first steps are waited for.
  void Settle() { settled_at_step_.reset(); }

  /// Decides when there is a reason to and nothing stands against it.
  void MaybeDecide();
  /// A decision is wanted; replaces what was asked for before.
  void Request(TriggerKind kind, std::string note);
  void OnPolicyChange();
  /// Changes nothing. `entry`: the policy that would rule; null: the default.
  Foresight Foresee(const PolicyEntry* entry) const;
  /// Fixes the choice for all buckets. Errors as CheckChoice and the journal's;
  /// kFailedPrecondition: no rank has said what it can run.
  Status Pin(const JobPin& pin);
  Status Unpin();
  /// A step of rank 0, with the times of one step of the optimiser, and how many of these it
  /// spanned: rolls the plan back when it misbehaves.
  void OnStep(const StepObservation& step, uint32_t spanned = 1);
  void OnPlanLog(const PlanLogEntry& entry);
  /// The model learns what runs, since `step`.
  void ApplyActivePlan(uint64_t step);

  Policy policy() const;
  std::string policy_name() const;
  const std::optional<JobPin>& pin() const { return pin_; }
  /// The newest that was recorded: evaluations that change nothing are counted only.
  const std::optional<DecisionRecord>& last_decision() const { return last_decision_; }
  const std::vector<CandidateRecord>& last_front() const { return last_front_; }
  /// The inputs of the last decision; empty when a former controller made it.
  const std::optional<DecisionInputs>& last_inputs() const { return last_inputs_; }
  /// Why nothing is decided now; empty: nothing stands against it.
  const std::string& obstacle() const { return obstacle_; }
  /// Why the ruling policy leaves no plan to choose, as of the newest evaluation; empty: it leaves
  /// some.
  const std::string& nothing_to_choose() const { return nothing_to_choose_; }
  double residual_ratio() const { return monitor_.residual_ratio(); }
  /// The progress of a step by the job's losses, under the active policy.
  ExponentBelief belief() const;
  /// Figures that the ruling policy has a say in.
  void Fill(JobView* out) const;

 private:
  /// The plan that runs again after a few dense steps; snapshots show it meanwhile.
  struct Interrupted {
    uint64_t check_version = 0;  // of the dense plan
    PlanModel choices;
    PlanLayout layout;
    LayoutSpeedup speedup;
    double measured_step_s = 0;
  };
  void Warn(const std::string& message) const;
  StatusOr<EffectivePolicy> CurrentPolicy() const;
  StatusOr<EffectivePolicy> UnderOverrides(const PolicyEntry* entry) const;
  std::string Obstacle();
  void WatchLosses(uint32_t spanned);
  void WatchPromise(const StepObservation& step);
  KnownNetwork Network() const;
  void WatchBenefit();
  double PlanGain(const PlanModel& choices) const;
  void LeaveWhatCosts();
  bool WantsDenseCheck() const;
  bool InDenseCheck() const;
  void ShowInterrupted(Snapshot* snapshot) const;
  std::optional<Trigger> NextTrigger();
  void DecideFor(const Trigger& trigger);
  bool AwaitsLease(const Snapshot& snapshot, const PlanModel& choices);
  void Record(const Trigger& trigger, const Snapshot& snapshot, const EffectivePolicy& policy,
              const Decision& decision);
  bool IsWorthRecording(const DecisionRecord& record) const;
  void Keep(const Snapshot& snapshot, const EffectivePolicy& policy, DecisionRecord* record);
  void StartRollout(const Decision& decision, DecisionRecord* record);
  bool IsLossy(const PlanModel& choices) const;
  /// Whether steps are other than those of dense sums: choices lose something, or steps are local.
  bool Departs(const PlanModel& choices, const SyncModel& sync) const {
    return IsLossy(choices) || sync.local();
  }
  bool LacksLease(const PlanModel& choices, const SyncModel& sync) const;
  void OnWithdrawn(const PlanLogEntry& entry);
  void OnActive(uint64_t version, uint64_t step);
  void ObserveActual(const StepObservation& step);
  void Save(DecisionRecord decision);
  void SaveOutcome(const DecisionRecord& decision);

  const JobParts job_;
  PlanMonitor monitor_;
  LossGuard guard_;
  PlanPromises promises_;
  RecordBudget budget_;
  std::optional<uint64_t> settled_at_step_;
  std::optional<JobPin> pin_;
  std::string policy_digest_;  // of the text that ruled the last decision
  std::optional<Trigger> requested_;
  std::optional<DecisionRecord> last_decision_;
  std::vector<CandidateRecord> last_front_;
  std::optional<DecisionInputs> last_inputs_;
  std::optional<DecisionRecord> rolling_;  // its plan is offered or armed
  std::optional<DecisionRecord> active_;   // its plan is active
  std::vector<double> actual_step_s_;
  uint64_t next_actual_step_ = 0;
  std::string obstacle_, nothing_to_choose_;
  TimePoint retry_at_{};
  std::optional<TimePoint> dense_only_until_;
  Duration dense_only_hold_{std::chrono::seconds(10)};
  Duration costly_hold_{std::chrono::minutes(2)};
  // Losses fell behind under a plan of less gain.
  double gain_min_ = 0;
  int sync_every_max_ = 0;
  std::optional<TimePoint> gain_min_until_;
  Duration gain_min_hold_{std::chrono::minutes(10)};
  bool check_begins_ = false;  // the decision under way is for dense steps
  std::optional<Interrupted> interrupted_;
  TimePoint next_check_{}, next_look_{};  // no dense steps, and no thought of them, before
};

}  // namespace weir
