// A job's plans and the slots that they need: before a plan that uses an aggregator is offered, its
// lease is there; after one that does not is active, the lease goes.

#include <algorithm>
#include <set>

#include "controller/service/job.h"
#include "controller/service/mapping.h"

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

/// The table of the lanes that `collective` carries in this plan; empty: it needs none.
LeaseTable TableOf(const v1::Capabilities& capabilities, const PlanModel& choices,
                   const std::string& collective, int world) {
  constexpr int kTableLevels = 16;
  const auto choice = std::find_if(choices.begin(), choices.end(), [&](const ChoiceModel& c) {
    return c.collective == collective;
  });
  for (const auto& codec : capabilities.codecs()) {
    if (choice == choices.end() || codec.name() != choice->codec) continue;
    for (const v1::CodecSetting& setting : codec.settings()) {
      const auto ranks = static_cast<uint32_t>(world);
      const bool fits = ranks >= setting.world_min() &&
                        (setting.world_max() == 0 || ranks <= setting.world_max());
      const bool meant = choice->bits == 0 || setting.bits() == static_cast<uint32_t>(choice->bits);
      if (!fits || !meant || setting.lane_levels().empty()) continue;
      LeaseTable table{setting.bits(),
                       {setting.lane_levels().begin(), setting.lane_levels().end()}};
      table.levels.resize(kTableLevels, table.levels.back());
      return table;
    }
  }
  return {};
}

}  // namespace

void Job::FillLeases(Snapshot* snapshot) {
  for (CollectiveModel& collective : snapshot->collectives) {
    const auto lease = leases_.find(collective.name);
    if (lease == leases_.end()) continue;
    lease->second.Describe(*snapshot, &collective);
    model_->SetRateMax(collective.name, collective.bandwidth_max_bytes_per_s);
    if (!dense_only_until_.has_value() || pin_.has_value()) continue;
    collective.lease_available = false;
    collective.lease_why_not = StrCat(collective.name, ": ranks sum alone after a rollback");
  }
}

bool Job::AwaitLease(const Snapshot& snapshot, const PlanModel& choices) {
  bool missing = false;
  for (const std::string& collective : LeasedCollectivesOf(choices)) {
    JobLease& lease = leases_.at(collective);
    if (lease.held().has_value()) continue;
    missing = true;
    lease.Ask(snapshot, collective, TableOf(capabilities_, choices, collective, world_),
              WishOf(policy(), world_));
  }
  if (!missing) return false;
  obstacle_ = LeaseAwaited();
  // Where nobody could be asked the next decision knows it.
  if (obstacle_.empty()) retry_at_ = host_.clock().Now() + FromSeconds(options_.check_interval_s);
  return true;
}

std::string Job::LeaseAwaited() const {
  for (const auto& [collective, lease] : leases_) {
    if (lease.asking()) return lease.Waiting();
  }
  return "";
}

void Job::OnLeaseAnswer(const LeaseAsk& ask, const StatusOr<v1::AggregatorLease>& answer) {
  JobLease& lease = leases_.at(ask.collective);
  const bool waited = lease.asking();
  lease.OnAnswer(ask.id, answer);
  if (waited && !lease.asking()) MaybeDecide();
}

void Job::AdoptLeases(const v1::Plan& plan) {
  for (const v1::AggregatorLease& held : plan.leases()) {
    if (const auto lease = leases_.find(held.collective()); lease != leases_.end()) {
      lease->second.Adopt(held);
    }
  }
}

// Whether the active plan runs on other slots than those that the job holds now.
bool Job::LacksSlots(const PlanModel& choices) const {
  for (const std::string& collective : LeasedCollectivesOf(choices)) {
    const JobLease& lease = leases_.at(collective);
    if (lease.held().has_value() && !HoldsSlots(rollout_->active_version(), lease)) return true;
  }
  return false;
}

void Job::AddSlots(const PlanModel& choices, v1::Plan* plan) const {
  for (const std::string& collective : LeasedCollectivesOf(choices)) {
    const auto& held = leases_.at(collective).held();
    if (held.has_value()) *plan->add_leases() = *held;
  }
  if (plan->leases_size() > 0) plan->set_digest(PlanDigest(*plan));
}

bool Job::HoldsSlots(uint64_t version, const JobLease& lease) const {
  const auto plan = plans_.find(version);
  if (plan == plans_.end() || !lease.held().has_value()) return false;
  return std::any_of(plan->second.leases().begin(), plan->second.leases().end(),
                     [&](const v1::AggregatorLease& one) {
                       return one.collective() == lease.held()->collective() &&
                              one.aggregator() == lease.held()->aggregator() &&
                              one.epoch() == lease.held()->epoch();
                     });
}

// Plan `version` has become active: what neither it nor the one on its way holds is given back.
void Job::EndUnusedLeases(uint64_t version) {
  for (auto& [collective, lease] : leases_) {
    if (HoldsSlots(version, lease) || HoldsSlots(rollout_->pending_version(), lease)) continue;
    lease.End();
  }
}

void Job::WatchLeases() {
  for (auto& [collective, lease] : leases_) {
    const bool used = HoldsSlots(rollout_->active_version(), lease) ||
                      HoldsSlots(rollout_->pending_version(), lease);
    const auto failed = lease.OnTick({.planned = used, .lost = !attached()});
    if (failed.has_value()) RequestDecision("aggregator", *failed);
  }
}

// The ranks already sum among themselves; what is left is a plan that says so. A rank names the
// collective; where it does not, every lease is doubtful.
void Job::OnOffloadFailed(int rank, const std::string& detail) {
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
  if (!news) return;
  Warn(why);
  RequestDecision("aggregator", why);
}

}  // namespace weir
