// SPDX-License-Identifier: Apache-2.0
// Maximises the gain below a bound on the exposed communication of a step. Where no candidate meets
// the bound, it minimises the exposed communication.

#include <algorithm>
#include <memory>

#include "controller/objective/objective.h"

namespace weir {
namespace {

class DelayTarget : public Objective {
 public:
  const ObjectiveTraits& Traits() const override { return traits_; }

  Status Validate(const Policy& policy) const override {
    if (policy.delay_target_s > 0) return OkStatus();
    return InvalidArgument(StrCat("objective delay_target: expected delay_target_s above 0, found ",
                                  policy.delay_target_s));
  }

  std::vector<double> Score(const Policy& policy,
                            std::span<const CandidateEstimate> candidates) const override {
    // Below 1: meets the target, ordered by lost gain. From 1 up: misses it, ordered by the excess.
    std::vector<double> scores;
    for (const CandidateEstimate& candidate : candidates) {
      const bool meets = candidate.exposed_s <= policy.delay_target_s;
      scores.push_back(meets ? 1 - std::clamp(candidate.gain, 0.0, 1.0)
                             : candidate.exposed_s / policy.delay_target_s);
    }
    return scores;
  }

 private:
  const ObjectiveTraits traits_{"delay_target",
                                "most gain within delay_target_s of exposed communication"};
};

}  // namespace

void RegisterDelayTarget(Registry<Objective>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<DelayTarget>());
}

}  // namespace weir
