// SPDX-License-Identifier: Apache-2.0
#include "controller/job/decision_loop.h"

#include <algorithm>
#include <chrono>

#include "controller/solver/progress_risk.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr double kRetryAfterErrorS = 1;
constexpr double kKeptRecordIntervalS = 60;
constexpr size_t kActualSteps = 10;
constexpr size_t kCausesMax = 8;  // of one decision; others are left out
constexpr size_t kNoteBytesMax = 500;
constexpr auto kCheckRetry = std::chrono::minutes(1);

// Other errors of Decide are of the measurements.
bool LeavesNothing(const Status& error) {
  return error.code() == StatusCode::kFailedPrecondition || error.code() == StatusCode::kNotFound;
}

}  // namespace

void DecisionLoop::Warn(const std::string& message) const {
  Log(LogLevel::kWarning, "controller", StrCat("job ", job_.name, ": ", message));
}

void DecisionLoop::Recover(std::optional<JobPin> pin, std::optional<DecisionRecord> newest) {
  pin_ = std::move(pin);
  last_decision_ = std::move(newest);
}

void DecisionLoop::Begin() {
  rolling_.reset();
  active_.reset();
  requested_.reset();
  dense_only_until_.reset();
  retry_at_ = TimePoint{};
  monitor_ = PlanMonitor();
  guard_ = LossGuard();
  promises_.Begin();
  gain_min_ = 0;
  sync_every_max_ = 0;
  gain_min_until_.reset();
  interrupted_.reset();
  check_begins_ = false;
  nothing_to_choose_.clear();
  Settle();
}

Policy DecisionLoop::policy() const {
  const PolicyEntry* entry = job_.host.PolicyFor(job_.name);
  return entry == nullptr ? Policy{} : entry->policy;
}

std::string DecisionLoop::policy_name() const {
  const PolicyEntry* entry = job_.host.PolicyFor(job_.name);
  return entry == nullptr ? "default" : entry->name;
}

bool DecisionLoop::IsLossy(const PlanModel& choices) const {
  return std::any_of(choices.begin(), choices.end(), [&](const ChoiceModel& choice) {
    return !job_.observer.capabilities().IsLossless(choice.codec);
  });
}

void DecisionLoop::Request(TriggerKind kind, std::string note) {
  const JobModel* model = job_.observer.model();
  requested_ = Trigger{.kind = kind,
                       .step = model == nullptr ? 0 : model->step(),
                       .note = note.substr(0, kNoteBytesMax)};
}

void DecisionLoop::OnPolicyChange() {
  if (job_.observer.model() == nullptr) return;
  const auto policy = CurrentPolicy();
  if (!policy.ok() || policy->record == policy_digest_ || policy_digest_.empty()) return;
  promises_.Forgive();
  Request(TriggerKind::kPolicy, StrCat("policy ", policy_name(), " changed"));
}

StatusOr<EffectivePolicy> DecisionLoop::CurrentPolicy() const {
  return UnderOverrides(job_.host.PolicyFor(job_.name));
}

StatusOr<EffectivePolicy> DecisionLoop::UnderOverrides(const PolicyEntry* entry) const {
  PolicyOverride override_by;
  if (pin_.has_value()) {
    override_by.kind = PolicyOverride::Kind::kPin;
    override_by.codec = pin_->choice.codec;
    override_by.collective = pin_->choice.collective;
    override_by.ratio = pin_->choice.ratio;
    override_by.bits = pin_->choice.bits;
  } else if (dense_only_until_.has_value() || check_begins_) {
    override_by.lossless_codecs = job_.observer.capabilities().LosslessCodecs();
    if (!override_by.lossless_codecs.empty()) override_by.kind = PolicyOverride::Kind::kDenseOnly;
  }
  override_by.gain_min = gain_min_;
  override_by.sync_every_max = sync_every_max_;
  return MakeEffectivePolicy(entry == nullptr ? "default" : entry->name,
                             entry == nullptr ? "" : entry->source, override_by);
}

std::optional<Trigger> DecisionLoop::NextTrigger() {
  if (dense_only_until_.has_value() && job_.host.clock().Now() >= *dense_only_until_) {
    dense_only_until_.reset();
    if (!requested_.has_value())
      Request(TriggerKind::kPeriodic, "the hold after a rollback is over");
  }
  if (gain_min_until_.has_value() && job_.host.clock().Now() >= *gain_min_until_) {
    gain_min_until_.reset();
    gain_min_ = 0;
    sync_every_max_ = 0;
    if (!requested_.has_value())
      Request(TriggerKind::kPeriodic, "the hold after losses fell behind is over");
  }
  // The model's own changes are kept until a decision is possible, so none is lost meanwhile.
  if (auto trigger = job_.observer.model()->TakeTrigger(job_.options.periodic_s);
      trigger.has_value()) {
    if (trigger->kind == TriggerKind::kBandwidthChange ||
        trigger->kind == TriggerKind::kLatencyChange) {
      monitor_.ForgivePrediction();
      if (promises_.undecided()) requested_.reset();
      promises_.Forgive();
    }
    if (!requested_.has_value() || requested_->kind == TriggerKind::kPeriodic) {
      requested_ = std::move(trigger);
    } else {  // one decision answers both
      for (const Change& change : trigger->changes) {
        if (requested_->changes.size() < kCausesMax) requested_->changes.push_back(change);
      }
    }
  }
  return requested_;
}

// Returns the reason why no decision can be made now; empty if one can.
std::string DecisionLoop::Obstacle() {
  const uint64_t step = job_.members.first_step();
  if (!settled_at_step_.has_value()) settled_at_step_ = step + job_.options.settle_steps;
  // A plan that a former controller armed activates within these steps; offering earlier could
  // cross it.
  if (step < *settled_at_step_) {
    return StrCat("waiting for step ", *settled_at_step_, " after the ranks gathered");
  }
  const Status possible = job_.ledger.rollout()->CanOffer();
  return possible.ok() ? job_.slots.Awaited() : Message(possible);
}

void DecisionLoop::MaybeDecide() {
  if (!job_.members.complete() || !job_.members.begun()) return;
  if (std::string obstacle = Obstacle(); !obstacle.empty()) {
    obstacle_ = std::move(obstacle);
    return;
  }
  if (job_.host.clock().Now() < retry_at_) return;
  obstacle_.clear();
  if (InDenseCheck() && !job_.observer.help().CheckDone()) {
    obstacle_ = "dense steps are being measured";
    return;
  }
  WatchBenefit();
  const auto trigger = NextTrigger();
  if (trigger.has_value()) DecideFor(*trigger);
  check_begins_ = false;
}

ExponentBelief DecisionLoop::belief() const {
  const Policy ruling = policy();
  const JobModel* model = job_.observer.model();
  return BeliefOf(model == nullptr ? std::vector<double>() : model->progress().LogLikelihood(),
                  ruling.progress_exponent, ruling.progress_deviation);
}

void DecisionLoop::Fill(JobView* out) const {
  const Policy ruling = policy();
  const ExponentBelief belief = this->belief();
  out->benefit = job_.observer.help().OfRun(belief);
  out->plan_benefit = job_.observer.help().OfPlan(belief);
  out->progress.exponent = belief.mean;
  out->progress.exponent_low = std::min(belief.mean, belief.Quantile(0.05));
  out->progress.exponent_high = std::max(belief.mean, belief.Quantile(0.95));
  out->progress.loss_behind = guard_.behind_share();
  out->nothing_to_choose = nothing_to_choose_;
  if (job_.observer.model() != nullptr) {
    out->progress.losses = job_.observer.model()->progress().losses();
    const LocalSteps local = job_.observer.model()->local_steps();
    if (ruling.sync_every_max > 1 || local.sync.local()) {
      const ExponentBelief cost = SyncBeliefOf(local, ruling);
      out->progress.sync_cost = {kSyncCostUnit * cost.mean, kSyncCostUnit * cost.deviation, 0};
      out->progress.signal_share = local.signal_share;
      out->progress.consensus_share = local.consensus_share;
    }
  }
}

void DecisionLoop::ShowInterrupted(Snapshot* snapshot) const {
  if (interrupted_->choices.size() != snapshot->buckets.size()) return;  // other buckets by now
  snapshot->incumbent = interrupted_->choices;
  snapshot->layout = interrupted_->layout;
  snapshot->speedup = interrupted_->speedup;
  snapshot->measured_step_s = interrupted_->measured_step_s;
}

void DecisionLoop::DecideFor(const Trigger& trigger) {
  JobModel& model = *job_.observer.model();
  auto snapshot = model.MakeSnapshot(TriggerName(trigger.kind));
  const auto policy = CurrentPolicy();
  const Status inputs = snapshot.ok() ? policy.status() : snapshot.status();
  const TimePoint now = job_.host.clock().Now();
  if (!inputs.ok()) {
    // Nothing is decided, so the trigger stays requested.
    obstacle_ = Message(inputs);
    retry_at_ = now + FromSeconds(job_.options.check_interval_s);
    return;
  }
  // The record has what the decision could depend on, and most policies allow no local steps.
  if (policy->policy.sync_every_max <= 1 && !snapshot->local.sync.local()) snapshot->local = {};
  if (InDenseCheck()) ShowInterrupted(&*snapshot);
  job_.slots.Describe(dense_only_until_.has_value() && !pin_.has_value(), &*snapshot,
                      [&](const std::string& collective, double bytes_per_s) {
                        model.SetRateMax(collective, bytes_per_s);
                      });
  job_.observer.SetSyncCost(SyncCostOf(*snapshot, policy->policy).value);
  promises_.Fill(trigger.kind == TriggerKind::kRollback, Network(), now, &*snapshot);
  const TimePoint begin = RealClock().Now();
  const auto decision = Decide(*snapshot, policy->policy);
  job_.counters.decide_s_sum += ToSeconds(RealClock().Now() - begin);
  if (!decision.ok()) {
    ++job_.counters.decision_errors;
    if (job_.counters.decision_errors % 60 == 1) Warn(Message(decision.status()));
    obstacle_ = Message(decision.status());
    nothing_to_choose_ = LeavesNothing(decision.status()) ? obstacle_ : "";
    retry_at_ = now + FromSeconds(kRetryAfterErrorS);
    return;
  }
  nothing_to_choose_.clear();
  if (AwaitsLease(*snapshot, decision->chosen.choices)) return;  // then it is decided again
  obstacle_.clear();
  requested_.reset();
  promises_.OnDecided();
  policy_digest_ = policy->record;
  Record(trigger, *snapshot, *policy, *decision);
}

Foresight DecisionLoop::Foresee(const PolicyEntry* entry) const {
  Foresight seen;
  const JobModel* model = job_.observer.model();
  StatusOr<Snapshot> snapshot = FailedPrecondition("no rank is attached");
  if (model != nullptr) snapshot = model->MakeSnapshot("policy");
  const auto policy = UnderOverrides(entry);
  if (!snapshot.ok() || !policy.ok()) {
    seen.unforeseen = Message(snapshot.ok() ? policy.status() : snapshot.status());
    return seen;
  }
  if (InDenseCheck()) ShowInterrupted(&*snapshot);
  job_.slots.Describe(dense_only_until_.has_value() && !pin_.has_value(), &*snapshot,
                      [](const std::string&, double) {});
  const auto decision = Decide(*snapshot, policy->policy);
  if (!decision.ok()) {
    (LeavesNothing(decision.status()) ? seen.nothing_to_choose : seen.unforeseen) =
        Message(decision.status());
    return seen;
  }
  seen.running = decision->facts.incumbent;
  seen.chosen = decision->facts.chosen;
  seen.switches = decision->switched;
  return seen;
}

bool DecisionLoop::AwaitsLease(const Snapshot& snapshot, const PlanModel& choices) {
  if (!job_.slots.AskFor(choices, snapshot, job_.observer.capabilities(),
                         WishOf(policy(), job_.members.world()))) {
    return false;
  }
  obstacle_ = job_.slots.Awaited();
  // No aggregator could be asked: decide again soon, without one.
  if (obstacle_.empty()) {
    retry_at_ = job_.host.clock().Now() + FromSeconds(job_.options.check_interval_s);
  }
  return true;
}

void DecisionLoop::Record(const Trigger& trigger, const Snapshot& snapshot,
                          const EffectivePolicy& policy, const Decision& decision) {
  const size_t largest = job_.observer.LargestBucket();
  DecisionRecord record = RecordOf(decision, largest);
  job_.observer.SetDense(record.facts.dense_step_s, decision.dense.choices);
  record.job = job_.name;
  record.step = snapshot.step;
  record.unix_s = job_.host.clock().UnixSeconds();
  record.trigger = trigger;
  record.policy = policy_name();
  record.outcome = DecisionOutcome::kKept;
  record.plan_version = job_.ledger.active_version();
  last_front_.clear();
  for (const auto& candidate : decision.front) last_front_.push_back(RecordOf(candidate, largest));
  ++job_.counters.decisions[TriggerName(trigger.kind)];
  const bool returns = InDenseCheck();
  if (decision.switched || returns || LacksLease(decision.chosen.choices, decision.chosen.sync) ||
      job_.slots.Lacks(decision.chosen.choices, job_.ledger.active())) {
    StartRollout(decision, &record);
    if (record.outcome == DecisionOutcome::kWithdrawn) {  // it could not be offered or stored
      requested_ = trigger;
      retry_at_ = job_.host.clock().Now() + FromSeconds(kRetryAfterErrorS);
    }
  }
  const bool offered = record.outcome == DecisionOutcome::kOffered;
  if (offered) {
    promises_.OnOffered(record.plan_version, snapshot, decision, policy.policy.improvement_min);
  }
  if (returns) record.switched = offered;
  if (returns && !offered && record.outcome == DecisionOutcome::kKept) {  // dense stays
    interrupted_.reset();
    ApplyActivePlan(job_.members.first_step());
  }
  if (check_begins_ && offered) {
    interrupted_ = {record.plan_version, snapshot.incumbent, snapshot.layout, snapshot.speedup,
                    snapshot.measured_step_s};
  }
  if (check_begins_ && !offered) {
    next_check_ = job_.host.clock().Now() + kCheckRetry;
  }
  const bool keep = IsWorthRecording(record);
  if (keep) {
    Keep(snapshot, policy, &record);
  } else {
    ++job_.counters.unchanged;
    ++last_decision_->unchanged;
  }
  if (record.outcome == DecisionOutcome::kOffered) rolling_ = record;
  if (!keep) return;
  job_.host.Publish({job_.name, "", record});
}

// Most evaluations change nothing and are counted. One that offers a plan is always recorded;
// others where somebody asked for it or it came to another end than the newest that is recorded,
// and now and then, as a sample.
bool DecisionLoop::IsWorthRecording(const DecisionRecord& record) const {
  if (record.outcome == DecisionOutcome::kOffered || !last_decision_.has_value()) return true;
  if (!budget_.Allows(record.unix_s)) return false;
  const TriggerKind kind = record.trigger.kind;  // the model's own
  const bool noticed = kind >= TriggerKind::kPeriodic && kind <= TriggerKind::kGainChange;
  return !noticed || record.outcome != DecisionOutcome::kKept ||
         GistOf(record) != GistOf(*last_decision_) ||
         record.unix_s - last_decision_->unix_s >= kKeptRecordIntervalS;
}

void DecisionLoop::Keep(const Snapshot& snapshot, const EffectivePolicy& policy,
                        DecisionRecord* record) {
  record->sharing = job_.host.SharingWith(job_.name);
  if (record->sharing.size() > JobSharing::kNamedMax) record->sharing.resize(JobSharing::kNamedMax);
  // The record says how many later evaluations were counted without changing it.
  if (last_decision_.has_value() && last_decision_->unchanged > 0) Save(*last_decision_);
  const auto added =
      job_.host.journal().AddDecision(*record, SerializeSnapshot(snapshot), policy.record);
  ++job_.counters.records;
  budget_.Spend(record->unix_s, added.ok() ? added->bytes : 0);
  if (added.ok()) {
    record->id = added->id;
  } else {
    ++job_.counters.store_errors;
    Warn(StrCat("decision not stored: ", Message(added.status())));
  }
  last_decision_ = *record;
  last_inputs_ = DescribeInputs(snapshot, job_.observer.model()->Links());
}

void DecisionLoop::StartRollout(const Decision& decision, DecisionRecord* record) {
  const PlanModel& choices = decision.chosen.choices;
  const size_t largest = job_.observer.LargestBucket();
  const ChoiceModel fallback =
      largest < decision.dense.choices.size() ? decision.dense.choices[largest] : ChoiceModel{};
  JobPlan plan = MakePlan(job_.name, job_.ledger.NextVersion(), job_.observer.buckets(), choices,
                          decision.chosen.layout, fallback, decision.chosen.sync);
  job_.slots.AddTo(choices, &plan);
  const JobPlan* active = job_.ledger.active();
  if (active != nullptr && active->digest == plan.digest && !LacksLease(choices, plan.sync)) {
    record->switched = false;
    return;
  }
  const bool leased = policy().lease_s > 0 && Departs(choices, plan.sync);
  const PlanModel before =
      active == nullptr ? PlanModel() : ChoicesFor(*active, job_.observer.buckets());
  const Status offered = job_.ledger.Offer(plan, leased ? std::optional(fallback) : std::nullopt);
  if (!offered.ok()) {
    record->switched = false;
    record->outcome = DecisionOutcome::kWithdrawn;
    return;
  }
  FillChanges(job_.observer.buckets(), before, choices, record);
  record->plan_version = plan.version;
  record->outcome = DecisionOutcome::kOffered;
  record->plan = Redacted(std::move(plan));
}

// The policy came to want a lease after the active plan was offered, or another controller offered
// it.
bool DecisionLoop::LacksLease(const PlanModel& choices, const SyncModel& sync) const {
  const uint64_t version = job_.ledger.active_version();
  if (policy().lease_s <= 0 || version == 0 || job_.ledger.HasLease(version)) return false;
  return Departs(choices, sync);
}

void DecisionLoop::OnPlanLog(const PlanLogEntry& entry) {
  switch (entry.kind) {
    case PlanLogEntry::Kind::kOffered:
    case PlanLogEntry::Kind::kArmed:
      break;
    case PlanLogEntry::Kind::kNacked:
      ++job_.counters.nacks;
      Warn(StrCat("rank ", entry.rank, " refuses plan ", entry.version, ": ", entry.detail));
      if (rolling_.has_value() && rolling_->plan_version == entry.version) {
        rolling_->outcome = DecisionOutcome::kNacked;
      }
      break;
    case PlanLogEntry::Kind::kWithdrawn:
      OnWithdrawn(entry);
      break;
    case PlanLogEntry::Kind::kActive:
      OnActive(entry.version, entry.step);
      break;
  }
}

void DecisionLoop::OnWithdrawn(const PlanLogEntry& entry) {
  ++job_.counters.withdrawals;
  Warn(StrCat("plan ", entry.version, " withdrawn: ", entry.detail));
  if (!rolling_.has_value() || rolling_->plan_version != entry.version) return;
  if (rolling_->outcome != DecisionOutcome::kNacked)
    rolling_->outcome = DecisionOutcome::kWithdrawn;
  rolling_->withdrawn_for = entry.detail.substr(0, kNoteBytesMax);
  SaveOutcome(*rolling_);
  if (interrupted_.has_value() && interrupted_->check_version == entry.version) {
    interrupted_.reset();
    next_check_ = job_.host.clock().Now() + kCheckRetry;
    rolling_.reset();
    return;
  }
  // The same trigger asks again once the back-off has passed.
  if (!requested_.has_value()) {
    requested_ = Trigger{.kind = rolling_->trigger.kind, .step = rolling_->trigger.step};
  }
  rolling_.reset();
}

void DecisionLoop::OnActive(uint64_t version, uint64_t step) {
  if (step == 0) step = job_.members.first_step();
  job_.ledger.Activated(version);
  active_.reset();
  if (rolling_.has_value() && rolling_->plan_version == version) {
    active_ = std::exchange(rolling_, std::nullopt);
    active_->outcome = DecisionOutcome::kActive;
    active_->activation_step = step;
    actual_step_s_.clear();
    next_actual_step_ = step + 2;
    SaveOutcome(*active_);
  }
  ApplyActivePlan(step);
  job_.ledger.ForgetBefore(version);
  if (version != 0) job_.slots.EndUnused(job_.ledger.Find(version), job_.ledger.pending());
}

void DecisionLoop::ApplyActivePlan(uint64_t step) {
  const uint64_t version = job_.ledger.active_version();
  const JobPlan* plan = job_.ledger.active();
  if (version == 0 || plan == nullptr || job_.observer.buckets().empty()) return;
  const PlanModel choices = ChoicesFor(*plan, job_.observer.buckets());
  // The dense steps of a check and the return from it are no switches that count.
  const bool check = interrupted_.has_value() && interrupted_->check_version == version;
  const bool same = interrupted_.has_value() && interrupted_->choices == choices;
  job_.observer.model()->SetActivePlan(version, step, choices, plan->layout, check || same,
                                       plan->sync);
  job_.observer.help().BeginPlan(choices, step, check, plan->sync);
  if (!check) interrupted_.reset();
  if (!check && !same) guard_.Begin(PlanGain(choices), plan->sync.every);
  promises_.OnActive(version, step, check, same);
  const bool ours = active_.has_value() && active_->plan_version == version;
  // A broken promise brings back the plan before, which a decision on new estimates need not.
  const bool predicted = ours && !promises_.watching();
  monitor_.Begin(step, Departs(choices, plan->sync), predicted ? active_->facts.chosen.step_s : 0,
                 predicted ? active_->facts.dense_step_s : 0);
}

void DecisionLoop::OnStep(const StepObservation& step, uint32_t spanned) {
  ObserveActual(step);
  WatchLosses(spanned);
  WatchPromise(step);
  // An operator who pinned a choice has taken responsibility for it.
  if (pin_.has_value() || job_.ledger.rollout()->state() != RolloutState::kStable) return;
  const auto found =
      monitor_.OnStep(step, policy().residual_ratio_max, job_.observer.model()->starved());
  if (!found.has_value()) return;
  ++job_.counters.rollbacks;
  promises_.Forgive();
  if (found->unsafe) {
    dense_only_until_ = job_.host.clock().Now() + dense_only_hold_;
    dense_only_hold_ = std::min<Duration>(dense_only_hold_ * 2, std::chrono::minutes(10));
  }
  Request(TriggerKind::kRollback, found->reason);
}

KnownNetwork DecisionLoop::Network() const {
  const JobModel& model = *job_.observer.model();
  return {model.latency_s(), model.bandwidth_bytes_per_s()};
}

// Gain that the plan was predicted to have; 1 for a lossless one.
double DecisionLoop::PlanGain(const PlanModel& choices) const {
  if (!IsLossy(choices)) return 1;
  return active_.has_value() ? active_->facts.chosen.gain : 0;
}

void DecisionLoop::ObserveActual(const StepObservation& step) {
  if (!active_.has_value() || step.step < next_actual_step_ || step.step_s <= 0 ||
      actual_step_s_.size() >= kActualSteps) {
    return;
  }
  actual_step_s_.push_back(step.step_s);
  if (actual_step_s_.size() < kActualSteps) return;
  const auto middle = actual_step_s_.begin() + kActualSteps / 2;
  std::nth_element(actual_step_s_.begin(), middle, actual_step_s_.end());
  active_->actual_step_s = *middle;
  SaveOutcome(*active_);
}

void DecisionLoop::Save(DecisionRecord decision) {
  const bool newest = last_decision_.has_value() && last_decision_->id == decision.id;
  if (newest) decision.unchanged = last_decision_->unchanged;
  // Id 0: it could not be stored when it was made.
  if (decision.id > 0 && !job_.host.journal().UpdateDecision(decision).ok()) {
    ++job_.counters.store_errors;
  }
  if (newest) last_decision_ = decision;
}

void DecisionLoop::SaveOutcome(const DecisionRecord& decision) {
  Save(decision);
  job_.host.Publish({job_.name,
                     StrCat("plan ", decision.plan_version, " is ", OutcomeName(decision.outcome)),
                     decision});
}

Status DecisionLoop::Pin(const JobPin& pin) {
  const JobCapabilities& capabilities = job_.observer.capabilities();
  if (capabilities.codecs.empty()) {
    return FailedPrecondition(StrCat("no rank of job '", job_.name, "' has said what it can run"));
  }
  WEIR_RETURN_IF_ERROR(CheckChoice(capabilities, pin.choice, job_.members.world()));
  WEIR_RETURN_IF_ERROR(
      job_.host.journal().SavePin(job_.name, pin, job_.host.clock().UnixSeconds()));
  pin_ = pin;
  if (Rollout* rollout = job_.ledger.rollout(); rollout != nullptr) rollout->ClearBackoff();
  Request(TriggerKind::kPin, StrCat("pinned by ", pin.actor.empty() ? "unknown" : pin.actor));
  return OkStatus();
}

Status DecisionLoop::Unpin() {
  WEIR_RETURN_IF_ERROR(job_.host.journal().DeletePin(job_.name));
  if (pin_.has_value()) Request(TriggerKind::kPin, "unpinned");
  pin_.reset();
  return OkStatus();
}

}  // namespace weir
