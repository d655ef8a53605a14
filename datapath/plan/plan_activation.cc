// SPDX-License-Identifier: Apache-2.0
#include "datapath/plan/plan_activation.h"

#include "datapath/base/json.h"
#include "datapath/base/random.h"

namespace weir {
namespace {

uint64_t ContentOf(const Plan& plan, const Plan* lease) {
  const uint64_t content = PlanDigest(plan);
  return lease == nullptr ? content : MixSeed(content, PlanDigest(*lease));
}

}  // namespace

PlanActivation::PlanActivation(int rank, int world, std::shared_ptr<const Plan> initial)
    : rank_(rank),
      world_(world),
      active_(std::move(initial)),
      active_content_(PlanDigest(*active_)) {}

void PlanActivation::StartFrom(std::shared_ptr<const Plan> initial) {
  active_ = std::move(initial);
  active_content_ = PlanDigest(*active_);
  lease_plan_ = nullptr;
  held_.clear();
  armed_version_ = 0;
}

ActivationReply PlanActivation::OnOffer(std::shared_ptr<const Plan> plan, const std::string& nonce,
                                        const Status& valid, std::shared_ptr<const Plan> lease) {
  const uint64_t version = plan->version;
  if (!valid.ok()) return PlanNack{version, nonce, ToString(valid)};
  const uint64_t content = ContentOf(*plan, lease.get());
  if (version == active_->version && content == active_content_) return PlanAck{version, nonce};
  if (version <= active_->version) {
    return PlanNack{
        version, nonce,
        StrCat("version ", version, " is not above ", active_->version, ", the active one")};
  }
  const bool newest = held_.empty() || version >= held_.rbegin()->first;
  const auto held = held_.find(version);
  if (held != held_.end()) {
    // Versions are immutable, because rank 0 may have announced the other content with this number.
    if (held->second.content != content) {
      return PlanNack{version, nonce,
                      StrCat("version ", version, " is held with digest ",
                             Hex64(held->second.content), "; this offer has ", Hex64(content))};
    }
    if (newest) held->second.given_up = false;
    return PlanAck{version, nonce};
  }
  const Status lease_fits = CheckLease(*plan, lease.get());
  if (!lease_fits.ok()) return PlanNack{version, nonce, ToString(lease_fits)};
  // There is one offer at a time: a newer one replaces all earlier ones, and one that arrives late
  // counts as replaced.
  if (newest) {
    for (auto& [other, entry] : held_) entry.given_up = true;
    armed_version_ = 0;  // dropped with its plan, unless that is announced already
  }
  MakeRoom();
  held_[version] = Held{std::move(plan), std::move(lease), content, !newest};
  return PlanAck{version, nonce};
}

// No version may have two contents, and the version of a lease plan is a version, too.
Status PlanActivation::CheckLease(const Plan& plan, const Plan* lease) const {
  bool promised = IsLeasePlan(plan.version);
  bool taken =
      lease != nullptr && (IsLeasePlan(lease->version) || held_.count(lease->version) != 0);
  for (const auto& [version, held] : held_) {
    if (held.lease == nullptr) continue;
    promised = promised || held.lease->version == plan.version;
    taken = taken || (lease != nullptr && held.lease->version == lease->version);
  }
  if (promised) {
    return FailedPrecondition(StrCat("version ", plan.version, " is promised to a plan's lease"));
  }
  if (taken) return FailedPrecondition(StrCat("lease version ", lease->version, " is held"));
  if (lease != nullptr && lease->version <= plan.version) {
    return InvalidArgument(StrCat("lease version: expected above ", plan.version,
                                  ", the plan's, found ", lease->version));
  }
  return OkStatus();
}

void PlanActivation::MakeRoom() {
  // Drop the oldest first. The plan that rank 0 has announced in this step is needed when the next
  // begins.
  for (auto it = held_.begin(); held_.size() >= kHeldPlansMax && it != held_.end();) {
    it = it->first == announced_.version ? std::next(it) : held_.erase(it);
  }
}

std::optional<ActivationReply> PlanActivation::OnArm(uint64_t version) {
  if (rank_ != 0) return std::nullopt;
  if (version == active_->version && version != 0) {
    return PlanActive{version, active_since_step_};  // the report was lost
  }
  const auto held = held_.find(version);
  if (held == held_.end() || held->second.given_up) return std::nullopt;
  if (announced_.version != version) armed_version_ = version;
  return std::nullopt;
}

void PlanActivation::OnWithdraw(uint64_t version) {
  const auto held = held_.find(version);
  if (held == held_.end()) return;
  held->second.given_up = true;
  if (rank_ != 0) return;
  if (armed_version_ == version) armed_version_ = 0;
  // It was not announced, so no rank will ever swap to it.
  if (announced_.version != version) held_.erase(held);
}

std::optional<PlanActive> PlanActivation::BeginStep(uint64_t step, bool lease_expired) {
  step_ = step;
  std::optional<PlanActive> activated;
  if (announced_.version != 0) {
    if (carried_ || world_ == 1) {
      activated = Swap(step);
    } else {
      // On rank 0, after a step without any operation: no other rank has learnt of the
      // announcement. It is repeated, unless the plan was replaced or withdrawn in the meantime.
      const auto held = held_.find(announced_.version);
      const bool wanted = held != held_.end() && !held->second.given_up;
      if (wanted && armed_version_ == 0) armed_version_ = announced_.version;
    }
  }
  announced_ = ControlWord{};
  carried_ = false;
  if (armed_version_ > active_->version && held_.count(armed_version_) != 0) {
    announced_ = ControlWord{armed_version_, step + 1};
  } else if (rank_ == 0 && lease_expired && lease_plan_ != nullptr) {
    announced_ = ControlWord{lease_plan_->version, step + 1};
  }
  armed_version_ = 0;
  return activated;
}

std::optional<PlanActive> PlanActivation::Swap(uint64_t step) {
  const auto held = held_.find(announced_.version);
  if (held == held_.end()) {  // it is the lease plan
    active_ = std::exchange(lease_plan_, nullptr);
    active_content_ = ContentOf(*active_, nullptr);
  } else {
    active_ = held->second.plan;
    lease_plan_ = held->second.lease;
    active_content_ = held->second.content;
  }
  active_since_step_ = step;
  // Lower versions can never be announced again.
  held_.erase(held_.begin(), held_.upper_bound(active_->version));
  return PlanActive{active_->version, step};
}

Status PlanActivation::OnOperationDone(const ControlWord& word) {
  carried_ = true;
  if (word == announced_) return OkStatus();
  if (word.version == 0) {
    return Internal(StrCat("rank ", rank_, " announced plan ", announced_.version, " for step ",
                           announced_.step, " but a later operation did not carry it"));
  }
  if (rank_ == 0) {
    return Internal(StrCat("another rank announced plan ", word.version, " for step ", word.step,
                           "; only rank 0 may"));
  }
  if (announced_.version != 0) {
    return Internal(StrCat("rank 0 announced plan ", announced_.version, " for step ",
                           announced_.step, " and then plan ", word.version, " for step ",
                           word.step));
  }
  if (word.step != step_ + 1) {
    return Internal(StrCat("rank 0 announced plan ", word.version, " for step ", word.step,
                           "; rank ", rank_, " is in step ", step_));
  }
  if (held_.count(word.version) == 0 && !IsLeasePlan(word.version)) {
    return Internal(StrCat("rank 0 announced plan ", word.version, " for step ", word.step,
                           ", which rank ", rank_, " does not hold; it runs plan ",
                           active_->version));
  }
  announced_ = word;
  return OkStatus();
}

}  // namespace weir
