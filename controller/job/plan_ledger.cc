// SPDX-License-Identifier: Apache-2.0
#include "controller/job/plan_ledger.h"

#include <algorithm>
#include <cstdio>

#include "datapath/base/log.h"
#include "datapath/base/random.h"

namespace weir {
namespace {

constexpr double kLeaseRenewalS = 1;  // ranks take a lease to last 3 s at least
constexpr size_t kPlansKept = 16;

std::string MakeNonce(const std::string& job, uint64_t version, double unix_s) {
  uint64_t hash = Mix64(version);
  for (const char c : job) hash = MixSeed(hash, static_cast<unsigned char>(c));
  hash = MixSeed(hash, static_cast<uint64_t>(unix_s * 1e6));
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace

PlanLedger::PlanLedger(std::string job, JobHost& host, RolloutOptions options,
                       JobCounters* counters)
    : job_(std::move(job)), host_(host), options_(options), counters_(*counters) {
  const auto highest = host_.journal().HighestPlanVersion(job_);
  if (highest.ok()) highest_known_version_ = *highest;
}

void PlanLedger::Warn(const std::string& message) const {
  Log(LogLevel::kWarning, "controller", StrCat("job ", job_, ": ", message));
}

void PlanLedger::Recover(const JobView& stored) {
  if (stored.active_plan.has_value()) plans_[stored.active_plan->version] = *stored.active_plan;
}

void PlanLedger::Begin(int world) {
  plans_.clear();
  lease_plans_.clear();
  rollout_ = std::make_unique<Rollout>(world, host_.clock(), options_);
  rollout_->ObserveVersion(highest_known_version_);
}

void PlanLedger::OnGreeting(const RankGreeting& hello) {
  if (hello.active_plan.has_value() && hello.active_plan->version == hello.active_plan_version) {
    plans_[hello.active_plan_version] = *hello.active_plan;
  }
  if (hello.rank == 0) lease_told_s_ = -1;
  highest_known_version_ = std::max(highest_known_version_, hello.active_plan_version);
  rollout_->OnRankConnected(hello.rank, hello.active_plan_version);
}

const JobPlan* PlanLedger::Find(uint64_t version) const {
  const auto found = plans_.find(version);
  return found == plans_.end() ? nullptr : &found->second;
}

const JobPlan* PlanLedger::pending() const {
  const uint64_t version = rollout_ == nullptr ? 0 : rollout_->pending_version();
  return version == 0 ? nullptr : Find(version);
}

uint64_t PlanLedger::NextVersion() const {
  return std::max(rollout_->highest_version(), highest_known_version_) + 1;
}

// A version that is not stored could be given to another plan, by this controller after a restart
// or by the one that leads next. So nothing is offered that the journal does not take.
Status PlanLedger::Claim(const JobPlan& plan, std::string_view state) {
  const Status claimed =
      host_.journal().ClaimPlan(Redacted(plan), state, host_.clock().UnixSeconds());
  if (claimed.ok()) return claimed;
  if (claimed.code() == StatusCode::kAlreadyExists) {
    const auto highest = host_.journal().HighestPlanVersion(job_);
    if (highest.ok()) highest_known_version_ = std::max(highest_known_version_, *highest);
  } else {
    ++counters_.store_errors;
  }
  Warn(StrCat("plan ", plan.version,
              " is not offered, because it was not stored: ", Message(claimed)));
  return claimed;
}

Status PlanLedger::Offer(JobPlan plan, const std::optional<ChoiceModel>& lease_fallback) {
  const double now = host_.clock().UnixSeconds();
  const uint64_t version = plan.version;
  const std::string digest = plan.digest;
  WEIR_RETURN_IF_ERROR(rollout_->CanOffer());
  WEIR_RETURN_IF_ERROR(Claim(plan, "offered"));
  highest_known_version_ = version;
  if (lease_fallback.has_value()) {
    JobPlan lease = MakePlan(job_, version + 1, {}, {}, {}, *lease_fallback);
    WEIR_RETURN_IF_ERROR(Claim(lease, "lease"));
    lease_plans_[version] = std::move(lease);
  }
  plans_[version] = std::move(plan);
  const Status offered = rollout_->Offer(version, MakeNonce(job_, version, now), digest);
  if (!offered.ok()) {
    plans_.erase(version);
    lease_plans_.erase(version);
    Warn(StrCat("plan ", version, " not offered: ", Message(offered)));
    return offered;
  }
  if (const auto lease = lease_plans_.find(version); lease != lease_plans_.end()) {
    highest_known_version_ = lease->second.version;
    rollout_->ObserveVersion(highest_known_version_);
  }
  ++counters_.switches;
  return OkStatus();
}

void PlanLedger::Send(const RolloutMessage& message, const Membership& members) {
  const Member* member = members.Find(message.rank);
  const std::string node = member == nullptr ? "" : member->node;
  const auto send = [&](RankOrder order) {
    host_.SendToRank(node, job_, message.rank, std::move(order));
  };
  switch (message.kind) {
    case RolloutMessage::Kind::kOffer: {
      OfferCommand offer{.plan = plans_[message.version], .nonce = message.nonce};
      if (const auto lease = lease_plans_.find(message.version); lease != lease_plans_.end()) {
        offer.lease_plan = lease->second;
      }
      return send(std::move(offer));
    }
    case RolloutMessage::Kind::kArm:
      return send(ArmCommand{message.version});
    case RolloutMessage::Kind::kWithdraw:
      return send(WithdrawCommand{message.version});
  }
}

void PlanLedger::Pump(const Membership& members,
                      const std::function<void(const PlanLogEntry&)>& on_log) {
  for (const RolloutMessage& message : rollout_->TakeMessages()) Send(message, members);
  for (const PlanLogEntry& entry : rollout_->TakeLog()) {
    const bool claimed = entry.kind == PlanLogEntry::Kind::kOffered;  // and so stored already
    if (const JobPlan* plan = Find(entry.version); plan != nullptr && !claimed) {
      const Status saved = host_.journal().SavePlan(Redacted(*plan), PlanLogKindName(entry.kind),
                                                    host_.clock().UnixSeconds());
      if (!saved.ok()) ++counters_.store_errors;
    }
    on_log(entry);
  }
}

void PlanLedger::Activated(uint64_t version) {
  if (!plans_.contains(version) && version != 0) {
    if (auto stored = host_.journal().LoadPlan(job_, version); stored.has_value()) {
      plans_[version] = std::move(*stored);
    } else {
      Warn(StrCat("the ranks run plan ", version, ", which is unknown here"));
    }
  }
}

void PlanLedger::ForgetBefore(uint64_t version) {
  while (plans_.size() > kPlansKept) plans_.erase(plans_.begin());
  lease_plans_.erase(lease_plans_.begin(), lease_plans_.lower_bound(version));
}

void PlanLedger::RenewLease(const Membership& members, double lease_s) {
  const Member* zero = members.Find(0);
  if (zero == nullptr || !zero->connected) return;
  const TimePoint now = host_.clock().Now();
  if (lease_s == lease_told_s_ && (lease_s == 0 || now < next_lease_)) return;
  lease_told_s_ = lease_s;
  next_lease_ = now + FromSeconds(kLeaseRenewalS);
  host_.SendToRank(zero->node, job_, 0, LeaseCommand{lease_s});
}

void PlanLedger::Fill(JobView* out) const {
  out->rollout_state = "stable";
  if (rollout_ == nullptr) {
    // Known from the store only: the newest plan that it names.
    if (!plans_.empty()) out->active_plan = Redacted(plans_.rbegin()->second);
    return;
  }
  out->rollout_state = std::string(RolloutStateName(rollout_->state()));
  if (const JobPlan* plan = active(); plan != nullptr) out->active_plan = Redacted(*plan);
  if (const JobPlan* plan = pending(); plan != nullptr) out->offered_plan = Redacted(*plan);
}

}  // namespace weir
