// SPDX-License-Identifier: Apache-2.0
#include "controller/job/job.h"

#include <utility>

#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr double kProgressSaveS = 30;

}  // namespace

Job::Job(std::string name, JobHost& host, JobOptions options)
    : name_(std::move(name)),
      host_(host),
      options_(options),
      members_(name_),
      observer_(name_, host_.clock()),
      ledger_(name_, host_, options_.rollout, &counters_),
      slots_(name_, host_, host_.clock()),
      loop_({name_, host_, options_, members_, observer_, ledger_, slots_, counters_}) {}

void Job::Warn(const std::string& message) const {
  Log(LogLevel::kWarning, "controller", StrCat("job ", name_, ": ", message));
}

void Job::Recover(const JobView& stored, std::optional<JobPin> pin,
                  std::optional<DecisionRecord> newest, std::string progress) {
  members_.Recover(stored);
  observer_.Recover(stored, std::move(progress));
  ledger_.Recover(stored);
  loop_.Recover(std::move(pin), std::move(newest));
}

void Job::Begin(const RankGreeting& hello) {
  members_.Begin(hello);
  observer_.Begin(hello);
  ledger_.Begin(hello.world);
  slots_.Begin(hello.world);
  loop_.Begin();
  finished_unix_s_ = 0;
  complete_since_.reset();
}

Status Job::OnRankHello(const std::string& node, const RankGreeting& hello) {
  if (const Status known = members_.CheckIdentity(node, hello); !known.ok()) {
    const std::string& reason = Message(known);
    if (members_.IsNewRefusal(reason)) {
      PublishIncident(StrCat("refused: ", reason), {"refused", reason, 0, hello.rank});
    }
    return known;
  }
  WEIR_ASSIGN_OR_RETURN(const bool another, members_.BeginsAnother(node, hello));
  const std::string before = another ? "" : members_.state();
  if (another) Begin(hello);
  members_.Admit(node, hello);
  slots_.OnGreeting(hello);
  observer_.OnGreeting(node, hello);
  ledger_.OnGreeting(hello);
  if (members_.complete()) OnComplete();
  PumpRollout();
  PublishSoon(before);
  return OkStatus();
}

void Job::OnComplete() {
  complete_since_ = host_.clock().Now();
  loop_.Settle();
  const JobView job = View();
  const std::string protection = ProtectionText(job.protection, job.unauthenticated_peers);
  Log(LogLevel::kInfo, "controller",
      StrCat("job ", name_, ": all ", job.world, " ranks present, plan ", ledger_.active_version(),
             ", frames ", protection.empty() ? "of unknown protection" : protection,
             job.key_id.empty() ? "" : " by key ", job.key_id));
}

void Job::OnRankSaid(int rank, const RankSaid& said) {
  const Member* member = members_.Find(rank);
  if (!members_.begun() || member == nullptr || !member->connected) return;
  std::visit([&](const auto& message) { On(rank, message); }, said);
  PumpRollout();
}

void Job::On(int rank, const BucketList& buckets) {
  if (rank != 0) return;
  const bool rebuilt = !observer_.buckets().empty();
  const auto changed = observer_.SetBuckets(buckets);
  if (!changed.ok()) {
    return Warn(StrCat("bucket table of rank 0 ignored: ", Message(changed.status())));
  }
  if (!*changed) return;
  loop_.ApplyActivePlan(members_.first_step());
  if (rebuilt) {
    loop_.Request(TriggerKind::kStart,
                  StrCat("the job now has ", observer_.buckets().size(), " buckets"));
  }
  PublishState();
}

void Job::On(int rank, const StepObservation& step) {
  Member& member = *members_.Find(rank);
  member.step = std::max(member.step, step.step);
  if (step.plan_version > member.plan_version) {
    member.plan_version = step.plan_version;
    ledger_.rollout()->OnActive(rank, step.plan_version, step.step);
  }
  host_.OnTrainingBytes(observer_.OnStep(step), loop_.policy());
  if (rank == 0) {
    if (step.skipped) ++counters_.skipped_steps;
    host_.Publish({name_, "", observer_.AddPoint(step)});
    if (step.period.local()) {
      loop_.OnStep(step.OfOneStep(), step.period.steps);
    } else {
      loop_.OnStep(step);
    }
    SaveProgress();
  }
  observer_.AddPredictions();
  if (rank == 0) MaybeDecide();
}

void Job::On(int rank, const PathList& paths) { observer_.OnPaths(rank, paths, members_); }

void Job::On(int rank, const PlanAcked& ack) {
  ledger_.rollout()->OnAck(rank, ack.version, ack.nonce);
}

void Job::On(int rank, const PlanRefused& nack) {
  ledger_.rollout()->OnNack(rank, nack.version, nack.nonce, nack.reason);
}

void Job::On(int rank, const PlanActivated& active) {
  members_.Find(rank)->plan_version = active.version;
  ledger_.rollout()->OnActive(rank, active.version, active.step);
}

void Job::On(int rank, const RankIncident& said) {
  RankIncident incident = said;
  if (incident.kind == "non_finite") {
    if (incident.guilty_rank >= 0) incident.guilty_rank = rank;  // it speaks for itself
    if (!observer_.OnNonFinite(incident)) return;
  }
  const std::string text = StrCat("rank ", rank, ": ", incident.kind,
                                  incident.detail.empty() ? "" : ": ", incident.detail);
  if (incident.kind == "peer_failed") Warn(text);
  PublishIncident(text, incident);
  if (incident.kind != "offload_failed") return;
  if (const auto why = slots_.OnOffloadFailed(rank, incident.detail); why.has_value()) {
    Warn(*why);
    loop_.Request(TriggerKind::kAggregator, *why);
  }
}

void Job::OnLink(const LinkObservation& observation) {
  if (!members_.UsesNode(observation.source_node) || !members_.UsesNode(observation.target_node)) {
    return;
  }
  observer_.OnLink(observation);
}

void Job::OnNccl(const std::string& node, const NcclObservation& sums) {
  observer_.OnNccl(node, sums);
}

void Job::OnRankGone(int rank, const std::string& reason) {
  if (members_.Find(rank) == nullptr) return;
  const std::string before = members_.state();
  members_.Gone(rank);
  complete_since_.reset();
  slots_.RankLeft(rank);
  if (members_.begun()) {
    ledger_.rollout()->OnRankLost(rank, reason);
    PumpRollout();
  }
  if (members_.state() == "ended" && finished_unix_s_ == 0) {
    finished_unix_s_ = host_.clock().UnixSeconds();
    const JobView job = View();
    Log(LogLevel::kInfo, "controller",
        StrCat("job ", name_, " ended after step ", job.step, ": ", BenefitText(job.benefit)));
  }
  PublishSoon(before);
}

void Job::OnNodeLost(const std::string& node) {
  const std::vector<int> lost = members_.LoseNode(node);
  if (lost.empty()) return;
  complete_since_.reset();
  for (const int rank : lost) {
    ledger_.rollout()->OnRankLost(rank, StrCat("agent of node ", node, " disconnected"));
  }
  PumpRollout();
  PublishState();
}

void Job::OnTick() {
  if (!members_.begun()) return;
  if (state_unpublished_) PublishState();
  ledger_.rollout()->OnTick();
  PumpRollout();
  ledger_.RenewLease(members_, loop_.policy().lease_s);
  slots_.Watch(ledger_.active(), ledger_.pending(), members_.attached(),
               [this](const std::string& why) { loop_.Request(TriggerKind::kAggregator, why); });
  const TimePoint now = host_.clock().Now();
  if (now < next_check_) return;
  next_check_ = now + FromSeconds(options_.check_interval_s);
  MaybeDecide();
}

void Job::OnLeaseAnswer(const LeaseAsk& ask, const StatusOr<SlotGrant>& answer) {
  const bool waited = !slots_.Awaited().empty();
  slots_.OnAnswer(ask, answer);
  if (waited && slots_.Awaited().empty()) MaybeDecide();
}

void Job::MaybeDecide() {
  loop_.MaybeDecide();
  if (members_.begun()) PumpRollout();
}

void Job::PumpRollout() {
  ledger_.Pump(members_, [this](const PlanLogEntry& entry) {
    loop_.OnPlanLog(entry);
    if (entry.kind == PlanLogEntry::Kind::kNacked) {
      // Refusals come to watchers as events of ranks, among what else went wrong there.
      PublishIncident(
          StrCat("rank ", entry.rank, " refuses plan ", entry.version, ": ", entry.detail),
          {"plan_nack", entry.detail, 0, entry.rank});
    }
    if (entry.kind == PlanLogEntry::Kind::kWithdrawn || entry.kind == PlanLogEntry::Kind::kActive) {
      PublishState();
    }
  });
}

Status Job::Pin(const JobPin& pin) {
  WEIR_RETURN_IF_ERROR(loop_.Pin(pin));
  PublishState();
  return OkStatus();
}

Status Job::Unpin() {
  WEIR_RETURN_IF_ERROR(loop_.Unpin());
  PublishState();
  return OkStatus();
}

double Job::complete_for_s() const {
  return complete_since_.has_value() ? ToSeconds(host_.clock().Now() - *complete_since_) : 0;
}

JobView Job::View() const {
  JobView out;
  out.name = name_;
  members_.Fill(&out);
  observer_.Fill(&out);
  ledger_.Fill(&out);
  loop_.Fill(&out);
  out.policy = loop_.policy_name();
  out.pin = loop_.pin();
  out.decisions = counters_.records;
  out.evaluations = counters_.records + counters_.unchanged;
  return out;
}

// Losses of minutes must not be lost with the controller.
void Job::SaveProgress() {
  const TimePoint now = host_.clock().Now();
  const uint64_t losses = model()->progress().losses();
  if (now < next_progress_save_ || losses == losses_saved_) return;
  next_progress_save_ = now + FromSeconds(kProgressSaveS);
  losses_saved_ = losses;
  const Status saved = host_.journal().SaveProgress(name_, model()->SaveProgress());
  if (saved.ok()) return;
  ++counters_.store_errors;
  Warn(StrCat("learnt progress not stored: ", Message(saved)));
}

void Job::PublishIncident(const std::string& text, RankIncident incident) {
  host_.Publish({name_, text, std::move(incident)});
}

// The ranks of a large job come and go one after the other, and the state names all of them: it is
// published once for many, unless it becomes another one.
void Job::PublishSoon(const std::string& state_before) {
  state_unpublished_ = true;
  if (members_.state() != state_before || members_.complete()) PublishState();
}

void Job::PublishState() {
  state_unpublished_ = false;
  JobView view = View();
  const std::string text =
      StrCat("job ", name_, " is ", view.state, ", plan ", ledger_.active_version());
  const Status saved = host_.journal().SaveJob(view, host_.clock().UnixSeconds());
  host_.Publish({name_, text, std::move(view)});
  if (saved.ok()) return;
  ++counters_.store_errors;
  Warn(StrCat("not stored: ", Message(saved)));
}

}  // namespace weir
