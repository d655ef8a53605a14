// SPDX-License-Identifier: Apache-2.0
// See progress_risk.h.

#include "controller/solver/progress_risk.h"

#include <algorithm>
#include <array>
#include <span>

namespace weir {
namespace {

struct CostPoint {
  double z, weight;
};
// Gauss-Hermite: exact for polynomials up to the fifth degree.
constexpr std::array<CostPoint, 3> kCostPoints = {
    {{-1.7320508075688772, 1.0 / 6}, {0, 2.0 / 3}, {1.7320508075688772, 1.0 / 6}}};
constexpr double kWeightMin = 1e-4;

}  // namespace

bool GoesByProgress(const Policy& policy) {
  const auto objective = Objectives().Find(policy.objective);
  return objective.ok() && (*objective)->Scope(policy).by_progress;
}

ExponentBelief SyncBeliefOf(const LocalSteps& local, const Policy& policy) {
  const double prior = SyncCostPrior(policy.sync_cost, local.signal_share);
  return BeliefOf(local.progress, prior / kSyncCostUnit,
                  policy.sync_cost_deviation / kSyncCostUnit);
}

Measured SyncCostOf(const Snapshot& snapshot, const Policy& policy) {
  if (policy.sync_every_max <= 1 && !snapshot.local.sync.local()) return {};
  const ExponentBelief belief = SyncBeliefOf(snapshot.local, policy);
  return {kSyncCostUnit * belief.mean, kSyncCostUnit * belief.deviation, 0};
}

ProgressRisk::ProgressRisk(const Objective& objective, const Policy& policy,
                           const ExponentBelief& belief, double gain_seen, bool learns,
                           const Measured& sync_cost)
    : objective_(objective),
      policy_(policy),
      mean_{{belief.mean, gain_seen, policy.progress_exponent}, sync_cost.value, 1},
      deviation_(belief.deviation),
      sync_cost_(sync_cost),
      learns_(learns && (belief.deviation > 0 || sync_cost.deviation > 0)) {
  const auto curve = [&](double exponent) {
    return ProgressCurve{std::max(0.0, exponent), gain_seen, policy.progress_exponent};
  };
  if (!learns_) {
    points_ = grid_ = {mean_};
    return;
  }
  // The cost of local steps is independent of the exponent, as far as is known.
  std::vector<CostPoint> costs = {{0, 1}};
  if (sync_cost.deviation > 0) costs.assign(kCostPoints.begin(), kCostPoints.end());
  for (const CostPoint& cost : costs) {
    const double at = std::max(0.0, sync_cost.value + cost.z * sync_cost.deviation);
    for (const CostPoint& point : kCostPoints) {
      points_.push_back(
          {curve(belief.mean + point.z * belief.deviation), at, point.weight * cost.weight});
    }
    for (int i = 0; i < kExponents; ++i) {
      const double weight = belief.weights[static_cast<size_t>(i)];
      if (weight >= kWeightMin) {
        grid_.push_back({curve(kExponentStep * i), at, weight * cost.weight});
      }
    }
  }
}

double ProgressRisk::Probability(CandidateEstimate a, CandidateEstimate b, double factor) const {
  double below = 0, total = 0;
  for (const WeighedCurve& one : grid_) {
    a.progress = one.At(a.gain, a.sync);
    b.progress = one.At(b.gain, b.sync);
    const double score = objective_.Score(policy_, std::span(&a, 1))[0];
    const double other = objective_.Score(policy_, std::span(&b, 1))[0];
    total += one.weight;
    if (score < factor * other) below += one.weight;
  }
  return below / total;
}

}  // namespace weir
