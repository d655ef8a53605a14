// SPDX-License-Identifier: Apache-2.0
#pragma once
// The effect of a change of policies, before it is made.

#include <string>
#include <vector>

#include "controller/fleet/jobs.h"
#include "controller/fleet/policy_set.h"

namespace weir {

struct PolicyDifference {
  std::string key, before, after;  // "bounds.gain_min"; values as in a document
};

/// On one job whose ruling policy or its text differs.
struct PolicyEffect {
  std::string job, policy_before, policy_after;
  Foresight plan;
};

struct PolicyChange {
  PolicyEntry entry;
  std::vector<PolicyDifference> differences;  // against the policy of that name, or the default
  std::vector<PolicyEffect> effects;
};

std::vector<PolicyDifference> DifferencesOf(const Policy& before, const Policy& after);
/// Looks at the jobs that have ranks, and takes a decision for each of them that is concerned.
std::vector<PolicyEffect> EffectsOf(const PolicySet& before, const PolicySet& after,
                                    const JobTable& jobs);

}  // namespace weir
