// SPDX-License-Identifier: Apache-2.0
// See progress_risk.h.

#include "controller/solver/progress_risk.h"

#include <algorithm>
#include <array>
#include <span>

namespace weir {
namespace {

struct Point {
  double z, weight;
};
// Gauss-Hermite: exact for polynomials up to the fifth degree.
constexpr std::array<Point, 3> kPoints = {
    {{-1.7320508075688772, 1.0 / 6}, {0, 2.0 / 3}, {1.7320508075688772, 1.0 / 6}}};
constexpr double kWeightMin = 1e-4;

}  // namespace

bool GoesByProgress(const Policy& policy) {
  const auto objective = Objectives().Find(policy.objective);
  return objective.ok() && (*objective)->Scope(policy).by_progress;
}

ProgressRisk::ProgressRisk(const Objective& objective, const Policy& policy,
                           const ExponentBelief& belief, double gain_seen, bool learns)
    : objective_(objective),
      policy_(policy),
      mean_{belief.mean, gain_seen, policy.progress_exponent},
      deviation_(belief.deviation),
      learns_(learns && belief.deviation > 0) {
  const auto curve = [&](double exponent) {
    return ProgressCurve{std::max(0.0, exponent), gain_seen, policy.progress_exponent};
  };
  if (!learns_) {
    points_ = grid_ = {{mean_, 1}};
    return;
  }
  for (const Point& point : kPoints) {
    points_.push_back({curve(belief.mean + point.z * belief.deviation), point.weight});
  }
  for (int i = 0; i < kExponents; ++i) {
    const double weight = belief.weights[static_cast<size_t>(i)];
    if (weight >= kWeightMin) grid_.push_back({curve(kExponentStep * i), weight});
  }
}

double ProgressRisk::Probability(CandidateEstimate a, CandidateEstimate b, double factor) const {
  double below = 0, total = 0;
  for (const WeighedCurve& one : grid_) {
    a.progress = one.curve.At(a.gain);
    b.progress = one.curve.At(b.gain);
    const double score = objective_.Score(policy_, std::span(&a, 1))[0];
    const double other = objective_.Score(policy_, std::span(&b, 1))[0];
    total += one.weight;
    if (score < factor * other) below += one.weight;
  }
  return below / total;
}

}  // namespace weir
