// SPDX-License-Identifier: Apache-2.0
// See local_candidates.h.

#include "controller/solver/local_candidates.h"

#include <algorithm>
#include <cmath>

#include "controller/solver/decider.h"

namespace weir {
namespace {

constexpr uint32_t kMomentumFrom = 16;  // steps of a period
// A synchronisation overlaps with no more than this part of a period: what it brings is that old.
constexpr uint32_t kOverlapPartMin = 4;

}  // namespace

SyncModel SyncFor(const Policy& policy, uint32_t every, uint32_t overlap) {
  SyncModel sync{.every = every, .overlap = overlap};
  const bool long_enough = policy.sync_outer == "auto" && every >= kMomentumFrom;
  if (policy.sync_outer == "sgd_nesterov" || long_enough) {
    sync.outer = OuterKind::kSgdNesterov;
    sync.rate = policy.sync_outer_rate;
    sync.momentum = policy.sync_outer_momentum;
  }
  if (overlap > 0) sync.mix = policy.sync_mix;
  return sync;
}

std::string SyncExclusion(const Snapshot& snapshot, const Policy& policy, const SyncModel& sync) {
  if (!sync.local()) return "";
  if (sync.every > static_cast<uint32_t>(policy.sync_every_max)) {
    return StrCat("sync.every_max ", policy.sync_every_max);
  }
  if (snapshot.local.possible) return "";
  return snapshot.local.unable_rank < 0
             ? "local steps are not known to be possible"
             : StrCat("rank ", snapshot.local.unable_rank, " makes no local steps");
}

LocalFacts DescribeLocal(const CandidateSpace& space, const Policy& policy,
                         const ProgressRisk& risk, CostedPlan plan) {
  LocalFacts facts;
  const Snapshot& snapshot = space.snapshot();
  if (policy.sync_every_max > 1 && !snapshot.local.possible) {
    facts.unable_rank = snapshot.local.unable_rank;
  }
  if (!plan.sync.local()) return facts;
  facts.sync = plan.sync;
  facts.signal_share = snapshot.local.signal_share;
  const Measured& cost = risk.sync_cost();
  facts.cost = 1 - SyncProgress(plan.sync, cost.value);
  facts.cost_deviation =
      0.5 * (SyncProgress(plan.sync, std::max(0.0, cost.value - cost.deviation)) -
             SyncProgress(plan.sync, cost.value + cost.deviation));
  plan.sync = {};
  facts.every_step_s = EvaluatePlan(space, plan, NetworkOf(snapshot)).times.step_s;
  return facts;
}

CandidateEstimate Decider::Locally(const CandidateEstimate& every_step, const SyncTimes& times,
                                   const SyncModel& sync) const {
  CandidateEstimate estimate = every_step;
  const StepTimes step = PredictLocalStep(times, sync, space_.snapshot().compute_s.value);
  estimate.step_s = step.step_s;
  estimate.exposed_s = step.exposed_s;
  estimate.communication_s = step.communication_s;
  estimate.sync = sync;
  estimate.progress = risk_.mean().At(estimate.gain, sync);
  return estimate;
}

CandidateEstimate Decider::BestOverlap(const CandidateEstimate& every_step, const SyncTimes& times,
                                       uint32_t every) const {
  const CandidateEstimate waits = Locally(every_step, times, SyncFor(policy_, every, 0));
  const double compute_s = space_.snapshot().compute_s.value;
  const double wanted = compute_s > 0 ? std::ceil(times.elapsed_s / compute_s) : 0;
  const auto overlap =
      static_cast<uint32_t>(std::clamp(wanted, 0.0, 1.0 * (every / kOverlapPartMin)));
  if (overlap == 0) return waits;
  const CandidateEstimate beside = Locally(every_step, times, SyncFor(policy_, every, overlap));
  return ScoreOne(beside) < ScoreOne(waits) ? beside : waits;
}

double Decider::ScoreOne(const CandidateEstimate& estimate) const {
  return objective_.Score(policy_, std::span(&estimate, 1))[0];
}

void Decider::AddLocal() {
  const bool allowed = policy_.sync_every_max > 1 && space_.snapshot().local.possible;
  if (!allowed || !scope_.by_progress || scope_.only.has_value()) return;
  const std::vector<uint32_t> grid = SyncGrid(static_cast<uint32_t>(policy_.sync_every_max));
  const size_t count = all_.size();
  for (size_t i = 0; i < count; ++i) {
    const Alternative base = all_[i];
    // Parameters are no gradients of the caller's process group, and rare sums would keep a lease
    // idle that others could use.
    const bool moves = std::all_of(base.kinds.begin(), base.kinds.end(), [&](int kind) {
      const CollectiveModel& collective = *space_.kinds()[static_cast<size_t>(kind)].collective;
      return !collective.by_caller && !collective.needs_lease;
    });
    if (!base.excluded_by.empty() || !moves) continue;
    const SyncTimes times = PredictSync(TimesOf(base.kinds));
    CandidateEstimate best;
    for (const uint32_t every : grid) {
      CandidateEstimate next = BestOverlap(base.estimate, times, every);
      if (!best.sync.local() || ScoreOne(next) < ScoreOne(best)) best = std::move(next);
    }
    const auto add = [&](const CandidateEstimate& estimate) {
      Alternative& one = all_.emplace_back(base);
      one.dense = one.leased = false;
      one.sync = estimate.sync;
      one.estimate = estimate;
    };
    add(best);
    // The gentler one is there for when the best is not certain to be better.
    if (best.sync.every >= 8) add(BestOverlap(base.estimate, times, best.sync.every / 4));
  }
}

double Decider::KeptBy(size_t index) const {
  const CandidateEstimate& estimate = all_[index].estimate;
  return estimate.gain * SyncProgress(estimate.sync, risk_.sync_cost().value);
}

}  // namespace weir
