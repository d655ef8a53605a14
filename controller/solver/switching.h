// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides whether a better candidate is worth a switch, by the confidence in the improvement and
// the time since the last switch.

#include <string>

#include "controller/objective/objective.h"
#include "controller/solver/candidates.h"
#include "controller/solver/progress_risk.h"

namespace weir {

/// P(score of `challenger` < score of `incumbent`), with latency and bandwidth log-normal, common
/// to both plans, the progress of a step as one of `curves`, the cost model's own error common to
/// what both plans send over the same collective, and the error of a codec's gain, which is small
/// where it was measured, common to what both plans encode with it. Deterministic quadrature, 5 x 5
/// points for each of `curves`.
double ImprovementProbability(const CandidateSpace& space, const Objective& objective,
                              const Policy& policy, const std::vector<WeighedCurve>& curves,
                              const CostedPlan& challenger, const CostedPlan& incumbent);

/// One standard deviation of a plan's predicted step time.
double StepDeviation(const CandidateSpace& space, const CostedPlan& plan);

/// The objective's view of an evaluated plan.
CandidateEstimate EstimateOf(const CostedPlan& plan, const PlanEstimate& estimate,
                             const WeighedCurve& progress);

/// Seconds for which the running plan must stay after a switch: policy.dwell_min_s, doubled for
/// each switch beyond policy.flaps_max within the flap window, at most the window.
double DwellSeconds(const Policy& policy, int recent_switches);

}  // namespace weir
