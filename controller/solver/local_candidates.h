// SPDX-License-Identifier: Apache-2.0
#pragma once
// Local steps as a dimension of a decision: which are allowed, and what is said of those chosen.

#include <string>

#include "controller/policy/policy.h"
#include "controller/solver/candidates.h"
#include "controller/solver/progress_risk.h"
#include "controller/solver/solver.h"

namespace weir {

/// The period of so many steps as the policy wants it. Momentum in outer steps pays where a period
/// is long, since the mean movement then is of one direction more than of noise; short periods
/// average, which is nearest to a sum in every step. Sources: Douillard et al., "DiLoCo", 2023;
/// Stich, "Local SGD converges fast and communicates little", 2018.
SyncModel SyncFor(const Policy& policy, uint32_t every, uint32_t overlap);

/// The bound that excludes such a period; empty: it is allowed.
std::string SyncExclusion(const Snapshot& snapshot, const Policy& policy, const SyncModel& sync);

/// The facts of the plan that is chosen, and why ranks make no local steps though the policy allows
/// them.
LocalFacts DescribeLocal(const CandidateSpace& space, const Policy& policy,
                         const ProgressRisk& risk, CostedPlan plan);

}  // namespace weir
