// SPDX-License-Identifier: Apache-2.0
// The part of the decision loop that watches what became of its decisions: whether the plan helps,
// keeps its promise and lets the losses fall.
#include <algorithm>
#include <chrono>

#include "controller/job/decision_loop.h"
#include "controller/solver/progress_risk.h"

namespace weir {
namespace {

// Synchronisations that losses must be behind at, however long the period.
constexpr int kPatienceMin = 5;
constexpr auto kLookInterval = std::chrono::seconds(1);

}  // namespace

// Asks for dense steps, for the end of them, or for the end of a plan that costs time.
void DecisionLoop::WatchBenefit() {
  if (InDenseCheck()) {
    LeaveWhatCosts();
    if (!requested_.has_value()) Request(TriggerKind::kDenseCheck, "dense was measured");
    return;
  }
  const TimePoint now = job_.host.clock().Now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  LeaveWhatCosts();
  if (requested_.has_value() || !WantsDenseCheck()) return;
  Request(TriggerKind::kDenseCheck, "to measure what the plan saves");
  check_begins_ = true;
}

// A plan that was measured to cost time is left for dense, and what is like it is not tried again
// for a growing time.
void DecisionLoop::LeaveWhatCosts() {
  const HelpWatch& help = job_.observer.help();
  if (pin_.has_value() || dense_only_until_.has_value() || !GoesByProgress(policy())) return;
  if (help.plan_steps() < DenseChecks::kPlanStepsMin) return;
  const Benefit plan = help.OfPlan(belief());
  if (plan.verdict != BenefitVerdict::kCosts || plan.basis != BenefitBasis::kMeasured) return;
  dense_only_until_ = job_.host.clock().Now() + costly_hold_;
  costly_hold_ = std::min<Duration>(costly_hold_ * 2, std::chrono::hours(1));
  ++job_.counters.rollbacks;
  Request(TriggerKind::kRollback, "the plan " + BenefitText(plan));
}

// Plans with slots on an aggregator would lose them.
bool DecisionLoop::WantsDenseCheck() const {
  if (pin_.has_value() || dense_only_until_.has_value() || interrupted_.has_value()) return false;
  const JobPlan* active = job_.ledger.active();
  // Ranks leave local steps with one more synchronisation and a mean of their optimisers, which
  // would cost more than a few dense steps could tell.
  if (active == nullptr || active->sync.local() || !active->grants.empty() ||
      !last_decision_.has_value())
    return false;
  if (job_.host.clock().Now() < next_check_ || policy().dense_checks == "never") return false;
  if (!GoesByProgress(policy()) || !IsLossy(ChoicesFor(*active, job_.observer.buckets())))
    return false;
  return job_.observer.help().WantsCheck(belief());
}

bool DecisionLoop::InDenseCheck() const {
  return interrupted_.has_value() && job_.ledger.active_version() == interrupted_->check_version;
}

// A plan that does not keep its promise makes way for the plan before it.
void DecisionLoop::WatchPromise(const StepObservation& step) {
  if (step.plan_version != job_.ledger.active_version()) return;
  const auto found = promises_.OnStep({.step = step.step,
                                       .step_s = step.step_s,
                                       .gain = job_.observer.Watched(step).gain,
                                       .compute_s = step.compute_s + step.backward_s,
                                       .skipped = step.skipped,
                                       .starved = job_.observer.model()->starved()},
                                      Network(), job_.host.clock().Now());
  if (!found.has_value()) return;
  const bool other = requested_.has_value() && requested_->kind != TriggerKind::kPeriodic;
  if (pin_.has_value() || dense_only_until_.has_value() || other) {
    promises_.Forgive();
    return;
  }
  ++job_.counters.rollbacks;
  Request(TriggerKind::kRollback, "");
  requested_->changes = {{.of = Change::Of::kStepTime,
                          .seen = Change::Seen::kSincePlan,
                          .before = found->promised_s,
                          .after = found->measured_s,
                          .step = step.step,
                          .plan_version = step.plan_version}};
}

void DecisionLoop::WatchLosses(uint32_t spanned) {
  if (pin_.has_value() || InDenseCheck() || !GoesByProgress(policy())) return;
  const JobModel& model = *job_.observer.model();
  const Policy ruling = policy();
  // With local steps the curve is that of local steps, whose clock runs by their cost.
  const LocalSteps local = model.local_steps();
  const auto behind = guard_.every() > 1
                          ? model.sync_progress().BehindCurve(SyncBeliefOf(local, ruling).mean)
                          : model.progress().BehindCurve(belief().mean);
  const int patience =
      std::max(kPatienceMin, ruling.loss_patience_steps / static_cast<int>(spanned));
  const auto found = guard_.OnStep(behind, ruling.loss_tolerance,
                                   spanned > 1 ? patience : ruling.loss_patience_steps);
  if (!found.has_value()) return;
  // One of the two at a time: local steps are what a plan with them departs by most.
  if (guard_.every() > 1) {
    sync_every_max_ = static_cast<int>(guard_.GentlerEvery());
  } else {
    gain_min_ = guard_.GentlerGain();
  }
  gain_min_until_ = job_.host.clock().Now() + gain_min_hold_;
  gain_min_hold_ = std::min<Duration>(gain_min_hold_ * 2, std::chrono::hours(4));
  ++job_.counters.rollbacks;
  Request(TriggerKind::kLoss, "");
  requested_->changes = {{.of = Change::Of::kLoss,
                          .seen = Change::Seen::kSincePlan,
                          .before = found->curve,
                          .after = found->curve + found->loss,
                          .step = model.step(),
                          .plan_version = job_.ledger.active_version()}};
}

}  // namespace weir
