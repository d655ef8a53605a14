// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/policy_change.h"

namespace weir {

std::vector<PolicyDifference> DifferencesOf(const Policy& before, const Policy& after) {
  const auto values = PolicyValues(before);
  std::vector<PolicyDifference> differences;
  for (const auto& [key, value] : PolicyValues(after)) {
    if (values.at(key) != value) differences.push_back({key, values.at(key), value});
  }
  return differences;
}

std::vector<PolicyEffect> EffectsOf(const PolicySet& before, const PolicySet& after,
                                    const JobTable& jobs) {
  PolicyEntry fallback;
  fallback.name = "default";
  std::vector<PolicyEffect> effects;
  for (const auto& [name, job] : jobs.all()) {
    if (!job->members().attached()) continue;
    const JobLabels& labels = job->members().labels();
    const PolicyEntry* rules = before.Match(name, labels);
    const PolicyEntry* will = after.Match(name, labels);
    const PolicyEntry& from = rules == nullptr ? fallback : *rules;
    const PolicyEntry& to = will == nullptr ? fallback : *will;
    if (from.name == to.name && from.source == to.source) continue;
    effects.push_back({name, from.name, to.name, job->decisions().Foresee(will)});
  }
  return effects;
}

}  // namespace weir
