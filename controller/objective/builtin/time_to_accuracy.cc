// SPDX-License-Identifier: Apache-2.0
// Minimises seconds per unit of progress: J = step time / progress of the step, which is
// gain^exponent (model/progress.h). A ratio of absolute seconds needs no reference point, so the
// network's state matters. Exponent 1 is the inverse of GraVAC's compression throughput (Tyagi and
// Swany 2023); the job's losses say which exponent it is.

#include <algorithm>
#include <memory>

#include "controller/objective/objective.h"

namespace weir {
namespace {

class TimeToAccuracy : public Objective {
 public:
  const ObjectiveTraits& Traits() const override { return traits_; }

  CandidateScope Scope(const Policy&) const override {
    CandidateScope scope;
    scope.by_progress = true;
    return scope;
  }

  std::vector<double> Score(const Policy&,
                            std::span<const CandidateEstimate> candidates) const override {
    std::vector<double> scores;
    scores.reserve(candidates.size());
    for (const CandidateEstimate& candidate : candidates) {
      scores.push_back(candidate.step_s / std::max(candidate.progress, 1e-9));
    }
    return scores;
  }

 private:
  const ObjectiveTraits traits_{"time_to_accuracy", "predicted step time / progress of a step"};
};

}  // namespace

void RegisterTimeToAccuracy(Registry<Objective>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<TimeToAccuracy>());
}

}  // namespace weir
