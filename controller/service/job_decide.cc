// The decision loop of one job: trigger, snapshot, Decide, record, rollout, outcome.

#include <algorithm>
#include <cstdio>
#include <set>

#include "controller/service/explain.h"
#include "controller/service/job.h"
#include "controller/service/json.h"
#include "controller/service/mapping.h"
#include "datapath/base/log.h"
#include "datapath/base/random.h"
#include "datapath/base/registry.h"

namespace weir {
namespace {

constexpr double kRetryAfterErrorS = 1;
constexpr double kLeaseRenewalS = 1;  // ranks take a lease to last 3 s at least
constexpr double kKeptRecordIntervalS = 60;
constexpr size_t kActualSteps = 10;
constexpr size_t kPlansKept = 16;
constexpr size_t kDetailBytesMax = 500;  // of a reason, before the next trigger is left out

std::string MakeNonce(const std::string& job, uint64_t version, double unix_s) {
  uint64_t hash = Mix64(version);
  for (const char c : job) hash = MixSeed(hash, static_cast<unsigned char>(c));
  hash = MixSeed(hash, static_cast<uint64_t>(unix_s * 1e6));
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace

Policy Job::policy() const {
  const PolicyEntry* entry = host_.policies().Match(name_);
  return entry == nullptr ? Policy{} : entry->policy;
}

std::string Job::PolicyName() const {
  const PolicyEntry* entry = host_.policies().Match(name_);
  return entry == nullptr ? "default" : entry->name;
}

bool Job::IsLossless(const std::string& codec) const {
  return std::any_of(capabilities_.codecs().begin(), capabilities_.codecs().end(),
                     [&](const auto& known) { return known.name() == codec && !known.lossy(); });
}

void Job::RequestDecision(std::string kind, std::string detail) {
  requested_ = Trigger{std::move(kind), model_ == nullptr ? 0 : model_->step(), std::move(detail)};
}

void Job::OnPolicyChange() {
  if (model_ == nullptr) return;
  const auto policy = CurrentPolicy();
  if (!policy.ok() || policy->record == policy_digest_ || policy_digest_.empty()) return;
  RequestDecision("policy", StrCat("policy ", PolicyName(), " changed"));
}

StatusOr<EffectivePolicy> Job::CurrentPolicy() const {
  PolicyOverride override_by;
  if (pin_.has_value()) {
    const ChoiceModel choice = ToModel(pin_->choice());
    override_by.kind = PolicyOverride::Kind::kPin;
    override_by.codec = choice.codec;
    override_by.collective = choice.collective;
    override_by.ratio = choice.ratio;
    override_by.bits = choice.bits;
  } else if (dense_only_until_.has_value()) {
    override_by.kind = PolicyOverride::Kind::kDenseOnly;
    for (const auto& codec : capabilities_.codecs()) {
      if (!codec.lossy()) override_by.lossless_codecs.push_back(codec.name());
    }
    if (override_by.lossless_codecs.empty()) override_by.kind = PolicyOverride::Kind::kNone;
  }
  const PolicyEntry* entry = host_.policies().Match(name_);
  return MakeEffectivePolicy(entry == nullptr ? "default" : entry->name,
                             entry == nullptr ? "" : entry->source, override_by);
}

std::optional<Trigger> Job::NextTrigger() {
  if (dense_only_until_.has_value() && host_.clock().Now() >= *dense_only_until_) {
    dense_only_until_.reset();
    if (!requested_.has_value()) RequestDecision("periodic", "the hold after a rollback is over");
  }
  // The model's own changes are kept until a decision is possible, so none is lost meanwhile.
  if (auto trigger = model_->TakeTrigger(options_.periodic_s); trigger.has_value()) {
    if (trigger->kind == "bandwidth_change" || trigger->kind == "latency_change") {
      monitor_.ForgivePrediction();
    }
    if (!requested_.has_value() || requested_->kind == "periodic") {
      requested_ = std::move(trigger);
    } else if (!trigger->detail.empty() && requested_->detail.size() < kDetailBytesMax) {
      requested_->detail += "; " + trigger->detail;  // one decision answers both
    }
  }
  return requested_;
}

void Job::MaybeDecide() {
  if (!Complete() || model_ == nullptr) return;
  const uint64_t step = ranks_[0].step;
  if (!settle_known_) {
    settle_known_ = true;
    settled_at_step_ = step + options_.settle_steps;
  }
  // A plan that a former controller armed activates within these steps; offering earlier could
  // cross it.
  if (step < settled_at_step_) {
    obstacle_ = StrCat("waiting for step ", settled_at_step_, " after the ranks gathered");
    return;
  }
  const Status possible = rollout_->CanOffer();
  if (!possible.ok()) {
    obstacle_ = Message(possible);
    return;
  }
  if (const std::string awaited = LeaseAwaited(); !awaited.empty()) {
    obstacle_ = awaited;
    return;
  }
  if (host_.clock().Now() < retry_at_) return;
  obstacle_.clear();
  const auto trigger = NextTrigger();
  if (trigger.has_value()) DecideFor(*trigger);
}

void Job::DecideFor(const Trigger& trigger) {
  auto snapshot = model_->MakeSnapshot(trigger.kind);
  const auto policy = CurrentPolicy();
  const Status inputs = snapshot.ok() ? policy.status() : snapshot.status();
  if (!inputs.ok()) {
    // Nothing is decided, so the trigger stays requested.
    obstacle_ = Message(inputs);
    retry_at_ = host_.clock().Now() + FromSeconds(options_.check_interval_s);
    return;
  }
  FillLeases(&*snapshot);
  const TimePoint begin = RealClock().Now();
  const auto decision = Decide(*snapshot, policy->policy);
  counters_.decide_s_sum += ToSeconds(RealClock().Now() - begin);
  if (!decision.ok()) {
    ++counters_.decision_errors;
    if (counters_.decision_errors % 60 == 1) Warn(Message(decision.status()));
    obstacle_ = Message(decision.status());
    retry_at_ = host_.clock().Now() + FromSeconds(kRetryAfterErrorS);
    return;
  }
  if (AwaitLease(*snapshot, decision->chosen.choices)) return;  // then it is decided again
  obstacle_.clear();
  requested_.reset();
  policy_digest_ = policy->record;
  Record(trigger, *snapshot, *policy, *decision);
}

void Job::Record(const Trigger& trigger, const Snapshot& snapshot, const EffectivePolicy& policy,
                 const Decision& decision) {
  const double now = host_.clock().UnixSeconds();
  const size_t largest = LargestBucket();
  v1::Decision record;
  FillDecision(decision, largest, &record);
  dense_step_s_ = record.dense_step_s();
  record.set_job(name_);
  record.set_step(snapshot.step);
  record.set_unix_s(now);
  record.set_trigger(trigger.kind);
  record.set_trigger_step(trigger.step);
  record.set_policy(PolicyName());
  if (!trigger.detail.empty()) record.set_reason(StrCat(trigger.detail, ": ", decision.reason));
  if (record.from().empty()) record.set_from("dense, no plan yet");
  record.set_outcome("kept");
  record.set_plan_version(rollout_->active_version());
  last_front_.clear();
  for (const auto& candidate : decision.front)
    last_front_.push_back(weir::ToProto(candidate, largest));
  ++counters_.decisions[trigger.kind];
  if (decision.switched || LacksLease(decision.chosen.choices) ||
      LacksSlots(decision.chosen.choices)) {
    StartRollout(decision, &record);
  }
  // Most looks change nothing; a sample of them is history enough.
  const bool keep = record.switched() || trigger.kind != "periodic" ||
                    !last_decision_.has_value() || last_decision_->id().empty() ||
                    now - last_decision_->unix_s() >= kKeptRecordIntervalS;
  const std::string snapshot_json = SerializeSnapshot(snapshot);
  if (keep) {
    const auto id = host_.store().AddDecision(
        {0, name_, snapshot.step, now, ToJson(record), snapshot_json, policy.record});
    if (id.ok()) {
      record.set_id(std::to_string(*id));
      SaveDecision(*id, record);
    } else {
      ++counters_.store_errors;
      Warn(StrCat("decision not stored: ", Message(id.status())));
    }
    last_decision_ = record;
    last_inputs_ = DescribeInputs(snapshot, model_->Links());
  }
  if (record.outcome() == "offered") rolling_decision_ = record;
  if (!keep) return;
  if (record.switched()) {
    Log(LogLevel::kInfo, "controller",
        StrCat("job ", name_, " step ", snapshot.step, ": ", record.from(), " -> ", record.to(),
               " (plan ", record.plan_version(), "): ", record.reason()));
  }
  v1::Event event;
  event.set_kind("decision");
  event.set_job(name_);
  event.set_text(record.reason());
  *event.mutable_decision() = record;
  host_.Publish(std::move(event));
  PumpRollout();
}

void Job::StartRollout(const Decision& decision, v1::Decision* record) {
  const size_t largest = LargestBucket();
  const ChoiceModel fallback =
      largest < decision.dense.choices.size() ? decision.dense.choices[largest] : ChoiceModel{};
  const uint64_t version = std::max(rollout_->highest_version(), highest_known_version_) + 1;
  v1::Plan plan =
      MakePlan(name_, version, buckets_, decision.chosen.choices, decision.chosen.layout, fallback);
  AddSlots(decision.chosen.choices, &plan);
  const auto active = plans_.find(rollout_->active_version());
  if (active != plans_.end() && active->second.digest() == plan.digest() &&
      !LacksLease(decision.chosen.choices)) {
    record->set_switched(false);
    return;
  }
  plans_[version] = plan;
  AddLease(decision.chosen.choices, version, fallback);
  const Status offered = rollout_->Offer(
      version, MakeNonce(name_, version, host_.clock().UnixSeconds()), plan.digest());
  if (!offered.ok()) {
    plans_.erase(version);
    lease_plans_.erase(version);
    record->set_switched(false);
    record->set_outcome("withdrawn");
    Warn(StrCat("plan ", version, " not offered: ", Message(offered)));
    return;
  }
  highest_known_version_ = version;
  if (const auto lease = lease_plans_.find(version); lease != lease_plans_.end()) {
    highest_known_version_ = lease->second.version();
    rollout_->ObserveVersion(highest_known_version_);
  }
  ++counters_.switches;
  record->set_plan_version(version);
  record->set_outcome("offered");
  *record->mutable_plan() = Redacted(std::move(plan));
}

// Ranks turn to this when they have not heard of the controller for the policy's lease. It is
// stored before it is offered: after a restart its version must not be given to another plan.
void Job::AddLease(const PlanModel& choices, uint64_t version, const ChoiceModel& fallback) {
  const bool lossy = std::any_of(choices.begin(), choices.end(),
                                 [&](const auto& choice) { return !IsLossless(choice.codec); });
  if (policy().lease_s <= 0 || !lossy) return;
  v1::Plan lease = MakePlan(name_, version + 1, {}, {}, {}, fallback);
  const Status saved = host_.store().PutPlan(
      {name_, version + 1, ToJson(lease), "lease", host_.clock().UnixSeconds()});
  if (!saved.ok()) ++counters_.store_errors;
  lease_plans_[version] = std::move(lease);
}

// The policy came to want a lease after the active plan was offered, or another controller offered
// it.
bool Job::LacksLease(const PlanModel& choices) const {
  const uint64_t version = rollout_->active_version();
  if (policy().lease_s <= 0 || version == 0 || lease_plans_.contains(version)) return false;
  return std::any_of(choices.begin(), choices.end(),
                     [&](const auto& choice) { return !IsLossless(choice.codec); });
}

void Job::RenewLease() {
  const auto zero = ranks_.find(0);
  if (zero == ranks_.end() || !zero->second.connected) return;
  const TimePoint now = host_.clock().Now();
  const double lease_s = policy().lease_s;
  if (lease_s == lease_told_s_ && (lease_s == 0 || now < next_lease_)) return;
  lease_told_s_ = lease_s;
  next_lease_ = now + FromSeconds(kLeaseRenewalS);
  v1::ToRank to_rank;
  to_rank.set_job(name_);
  to_rank.mutable_command()->mutable_lease()->set_lease_s(lease_s);
  host_.SendToRank(zero->second.node, to_rank);
}

void Job::PumpRollout() {
  for (const RolloutMessage& message : rollout_->TakeMessages()) {
    v1::ToRank to_rank;
    to_rank.set_job(name_);
    to_rank.set_rank(static_cast<uint32_t>(message.rank));
    switch (message.kind) {
      case RolloutMessage::Kind::kOffer:
        *to_rank.mutable_command()->mutable_offer()->mutable_plan() = plans_[message.version];
        to_rank.mutable_command()->mutable_offer()->set_nonce(message.nonce);
        if (const auto lease = lease_plans_.find(message.version); lease != lease_plans_.end()) {
          *to_rank.mutable_command()->mutable_offer()->mutable_lease_plan() = lease->second;
        }
        break;
      case RolloutMessage::Kind::kArm:
        to_rank.mutable_command()->mutable_arm()->set_version(message.version);
        break;
      case RolloutMessage::Kind::kWithdraw:
        to_rank.mutable_command()->mutable_withdraw()->set_version(message.version);
        break;
    }
    host_.SendToRank(ranks_[message.rank].node, to_rank);
  }
  for (const PlanLogEntry& entry : rollout_->TakeLog()) OnPlanLog(entry);
}

// Refusals come to watchers as events of ranks, among what else went wrong there.
void Job::PublishNack(const PlanLogEntry& entry) {
  v1::Event event;
  event.set_kind("rank");
  event.set_job(name_);
  event.set_text(StrCat("rank ", entry.rank, " refuses plan ", entry.version, ": ", entry.detail));
  event.mutable_rank_event()->set_kind("plan_nack");
  event.mutable_rank_event()->set_detail(entry.detail);
  event.mutable_rank_event()->set_guilty_rank(entry.rank);
  host_.Publish(std::move(event));
}

void Job::OnPlanLog(const PlanLogEntry& entry) {
  const auto plan = plans_.find(entry.version);
  if (plan != plans_.end()) {
    const Status saved = host_.store().PutPlan(
        {name_, entry.version, ToJson(Redacted(plan->second)),
         std::string(PlanLogKindName(entry.kind)), host_.clock().UnixSeconds()});
    if (!saved.ok()) ++counters_.store_errors;
  }
  const bool ours =
      rolling_decision_.has_value() && rolling_decision_->plan_version() == entry.version;
  switch (entry.kind) {
    case PlanLogEntry::Kind::kOffered:
    case PlanLogEntry::Kind::kArmed:
      break;
    case PlanLogEntry::Kind::kNacked:
      ++counters_.nacks;
      Warn(StrCat("rank ", entry.rank, " refuses plan ", entry.version, ": ", entry.detail));
      PublishNack(entry);
      if (ours) rolling_decision_->set_outcome("nacked");
      break;
    case PlanLogEntry::Kind::kWithdrawn:
      ++counters_.withdrawals;
      Warn(StrCat("plan ", entry.version, " withdrawn: ", entry.detail));
      if (ours) {
        if (rolling_decision_->outcome() != "nacked") rolling_decision_->set_outcome("withdrawn");
        rolling_decision_->set_reason(StrCat(rolling_decision_->reason(), "; ", entry.detail));
        SaveDecision(std::atoll(rolling_decision_->id().c_str()), *rolling_decision_);
        // What asked for the plan still asks, once the back-off has passed.
        if (!requested_.has_value()) {
          requested_ = Trigger{rolling_decision_->trigger(), rolling_decision_->trigger_step(), ""};
        }
        rolling_decision_.reset();
      }
      PublishState();
      break;
    case PlanLogEntry::Kind::kActive:
      OnPlanActive(entry.version, entry.step);
      break;
  }
}

void Job::OnPlanActive(uint64_t version, uint64_t step) {
  if (step == 0) step = ranks_[0].step;
  if (!plans_.contains(version) && version != 0) {
    const auto stored = host_.store().GetPlan(name_, version);
    v1::Plan plan;
    if (stored.ok() && stored->has_value() && FromJson((*stored)->payload, &plan).ok()) {
      plans_[version] = plan;
    } else {
      Warn(StrCat("the ranks run plan ", version, ", which is unknown here"));
    }
  }
  active_decision_.reset();
  if (rolling_decision_.has_value() && rolling_decision_->plan_version() == version) {
    active_decision_ = std::exchange(rolling_decision_, std::nullopt);
    active_decision_->set_outcome("active");
    active_decision_->set_activation_step(step);
    actual_step_s_.clear();
    next_actual_step_ = step + 2;
    SaveDecision(std::atoll(active_decision_->id().c_str()), *active_decision_);
  }
  ApplyActivePlan(step);
  while (plans_.size() > kPlansKept) plans_.erase(plans_.begin());
  lease_plans_.erase(lease_plans_.begin(), lease_plans_.lower_bound(version));
  if (version != 0) EndUnusedLeases(version);
  PublishState();
}

void Job::ApplyActivePlan(uint64_t step) {
  const uint64_t version = rollout_->active_version();
  const auto plan = plans_.find(version);
  if (version == 0 || plan == plans_.end() || buckets_.empty()) return;
  const PlanModel choices = ChoicesFor(plan->second, buckets_);
  model_->SetActivePlan(version, step, choices, LayoutIn(plan->second));
  const bool lossy = std::any_of(choices.begin(), choices.end(),
                                 [&](const auto& choice) { return !IsLossless(choice.codec); });
  const bool ours = active_decision_.has_value() && active_decision_->plan_version() == version;
  monitor_.Begin(step, lossy, ours ? active_decision_->predicted_step_s() : 0,
                 ours ? active_decision_->dense_step_s() : 0);
}

std::optional<PlanMisbehaviour> Job::ObserveActual(const StepObservation& step) {
  if (active_decision_.has_value() && step.step >= next_actual_step_ && step.step_s > 0 &&
      actual_step_s_.size() < kActualSteps) {
    actual_step_s_.push_back(step.step_s);
    if (actual_step_s_.size() == kActualSteps) {
      std::nth_element(actual_step_s_.begin(), actual_step_s_.begin() + kActualSteps / 2,
                       actual_step_s_.end());
      active_decision_->set_actual_step_s(actual_step_s_[kActualSteps / 2]);
      SaveDecision(std::atoll(active_decision_->id().c_str()), *active_decision_);
    }
  }
  // An operator who pinned a choice has taken responsibility for it.
  if (pin_.has_value() || rollout_->state() != RolloutState::kStable) return std::nullopt;
  return monitor_.OnStep(step, policy().residual_ratio_max);
}

void Job::SaveDecision(int64_t id, const v1::Decision& decision) {
  // Id 0: it could not be stored when it was made.
  if (id > 0 && !host_.store().UpdateDecision(id, ToJson(decision)).ok()) ++counters_.store_errors;
  if (last_decision_.has_value() && last_decision_->id() == decision.id())
    last_decision_ = decision;
  if (decision.outcome() == "offered" || decision.outcome() == "kept") return;
  v1::Event event;
  event.set_kind("decision");
  event.set_job(name_);
  event.set_text(StrCat("plan ", decision.plan_version(), " is ", decision.outcome()));
  *event.mutable_decision() = decision;
  host_.Publish(std::move(event));
}

Status Job::Pin(const v1::PinRequest& request) {
  if (capabilities_.codecs_size() == 0) {
    return FailedPrecondition(StrCat("no rank of job '", name_, "' has said what it can run"));
  }
  const ChoiceModel choice = ToModel(request.choice());
  const v1::CodecCapability* codec = nullptr;
  const v1::CollectiveCapability* collective = nullptr;
  std::set<std::string> codecs, collectives;
  for (const auto& known : capabilities_.codecs()) {
    if (known.name() == choice.codec) codec = &known;
    codecs.insert(known.name());
  }
  for (const auto& known : capabilities_.collectives()) {
    if (known.name() == choice.collective) collective = &known;
    collectives.insert(known.name());
  }
  if (codec == nullptr) {
    return NotFound(
        StrCat("unknown codec '", choice.codec, "'; valid: ", ValidNames(choice.codec, codecs)));
  }
  if (collective == nullptr) {
    return NotFound(StrCat("unknown collective '", choice.collective,
                           "'; valid: ", ValidNames(choice.collective, collectives)));
  }
  const std::vector<CodecModel> models = CodecsOf(capabilities_, world_);
  const CodecModel* const model = FindCodec(models, choice.codec, choice.bits);
  const bool table = !collective->exchange().needs_table() || (model != nullptr && model->tabled);
  const auto& forms = codec->forms();
  if (!table || std::find(forms.begin(), forms.end(), collective->form()) == forms.end()) {
    return InvalidArgument(StrCat(choice.collective, " carries ", collective->form(), " payloads, ",
                                  choice.codec, " makes ", codec->form()));
  }
  if (codec->uses_ratio() &&
      (choice.ratio < codec->ratio_min() || choice.ratio > codec->ratio_max())) {
    return InvalidArgument(StrCat("ratio ", choice.ratio, " of ", choice.codec, ", expected ",
                                  codec->ratio_min(), " to ", codec->ratio_max()));
  }
  if (model == nullptr) {
    std::string settings;
    for (const auto& setting : codec->settings()) {
      settings +=
          StrCat(settings.empty() ? "" : ", ", setting.bits(), " on ", setting.world_min(), " to ",
                 setting.world_max() == 0 ? kWorldMax : setting.world_max(), " ranks");
    }
    return InvalidArgument(StrCat(choice.codec, " with bits ", choice.bits, " on ", world_,
                                  " ranks; allowed: ", settings));
  }
  const auto world = static_cast<uint32_t>(world_);
  if (world < collective->world_min() ||
      (collective->world_max() != 0 && world > collective->world_max())) {
    return InvalidArgument(StrCat(choice.collective, " cannot run on ", world, " ranks"));
  }
  WEIR_RETURN_IF_ERROR(host_.store().PutPin({name_, ToJson(request), host_.clock().UnixSeconds()}));
  pin_ = request;
  if (rollout_ != nullptr) rollout_->ClearBackoff();
  RequestDecision("pin",
                  StrCat("pinned by ", request.actor().empty() ? "unknown" : request.actor()));
  PublishState();
  return OkStatus();
}

Status Job::Unpin() {
  WEIR_RETURN_IF_ERROR(host_.store().DeletePin(name_));
  if (pin_.has_value()) RequestDecision("pin", "unpinned");
  pin_.reset();
  PublishState();
  return OkStatus();
}

}  // namespace weir
