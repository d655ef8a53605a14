// SPDX-License-Identifier: Apache-2.0
#include "controller/job/job_slots.h"

#include <algorithm>
#include <set>

namespace weir {
namespace {

/// The collectives of `choices` that need a lease, by name.
std::set<std::string> LeasedCollectivesOf(const PlanModel& choices) {
  std::set<std::string> found;
  for (const ChoiceModel& choice : choices) {
    if (!LeaseModeOf(choice.collective).empty()) found.insert(choice.collective);
  }
  return found;
}

}  // namespace

JobSlots::JobSlots(const std::string& job, LeaseHost& host, const Clock& clock) {
  for (const std::string& collective : LeasedCollectives()) {
    leases_.try_emplace(collective, job, host, clock, &backoff_);
  }
}

void JobSlots::Begin(int world) {
  world_ = world;
  for (auto& [collective, lease] : leases_) lease.Begin(world);
}

void JobSlots::OnGreeting(const RankGreeting& hello) {
  for (auto& [collective, lease] : leases_) lease.SetAddress(hello.rank, hello.aggregation_address);
  if (!hello.active_plan.has_value()) return;
  for (const SlotGrant& held : hello.active_plan->grants) {
    const auto lease = leases_.find(held.collective);
    if (lease != leases_.end()) lease->second.Adopt(held);
  }
}

void JobSlots::OnAnswer(const LeaseAsk& ask, const StatusOr<SlotGrant>& answer) {
  leases_.at(ask.collective).OnAnswer(ask.id, answer);
}

void JobSlots::RankLeft(int rank) {
  for (auto& [collective, lease] : leases_) {
    if (lease.held().has_value()) (void)lease.Fail(StrCat("rank ", rank, " left"));
  }
}

bool JobSlots::AskFor(const PlanModel& choices, const Snapshot& snapshot,
                      const JobCapabilities& capabilities, const LeaseWish& wish) {
  bool missing = false;
  for (const std::string& collective : LeasedCollectivesOf(choices)) {
    JobLease& lease = leases_.at(collective);
    if (lease.held().has_value()) continue;
    missing = true;
    lease.Ask(snapshot, collective, TableOf(capabilities, choices, collective, world_), wish);
  }
  return missing;
}

std::string JobSlots::Awaited() const {
  for (const auto& [collective, lease] : leases_) {
    if (lease.asking()) return lease.Waiting();
  }
  return "";
}

bool JobSlots::Lacks(const PlanModel& choices, const JobPlan* plan) const {
  for (const std::string& collective : LeasedCollectivesOf(choices)) {
    const JobLease& lease = leases_.at(collective);
    if (lease.held().has_value() && !Holds(plan, lease)) return true;
  }
  return false;
}

void JobSlots::AddTo(const PlanModel& choices, JobPlan* plan) const {
  for (const std::string& collective : LeasedCollectivesOf(choices)) {
    const auto& held = leases_.at(collective).held();
    if (held.has_value()) plan->grants.push_back(*held);
  }
  if (!plan->grants.empty()) plan->digest = PlanDigest(*plan);
}

bool JobSlots::Holds(const JobPlan* plan, const JobLease& lease) {
  if (plan == nullptr || !lease.held().has_value()) return false;
  return std::any_of(plan->grants.begin(), plan->grants.end(), [&](const SlotGrant& one) {
    return one.collective == lease.held()->collective &&
           one.aggregator == lease.held()->aggregator && one.epoch == lease.held()->epoch;
  });
}

void JobSlots::EndUnused(const JobPlan* active, const JobPlan* pending) {
  for (auto& [collective, lease] : leases_) {
    if (!Holds(active, lease) && !Holds(pending, lease)) lease.End();
  }
}

// A rank names the collective; where it does not, every lease is doubtful.
std::optional<std::string> JobSlots::OnOffloadFailed(int rank, const std::string& detail) {
  const std::string why = StrCat("offload failed on rank ", rank, ": ", detail.substr(0, 200));
  const auto named = [&](const std::string& collective) {
    return detail.find(StrCat(" for ", collective, ": ")) != std::string::npos;
  };
  const bool any_named =
      std::any_of(leases_.begin(), leases_.end(), [&](const auto& l) { return named(l.first); });
  bool news = false;
  for (auto& [collective, lease] : leases_) {
    const bool meant = any_named ? named(collective) : lease.held().has_value();
    if (meant && lease.Fail(why)) news = true;
  }
  return news ? std::optional(why) : std::nullopt;
}

}  // namespace weir
