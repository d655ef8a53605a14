// SPDX-License-Identifier: Apache-2.0
// Minimises seconds per unit of progress: J = step time / gain^progress_exponent. A ratio of
// absolute seconds needs no reference point, so the network's state matters. Exponent 1 is the
// inverse of GraVAC's compression throughput (Tyagi and Swany 2023); the exponent is the policy's.

#include <algorithm>
#include <memory>

#include "controller/model/deterministic_math.h"
#include "controller/objective/objective.h"

namespace weir {
namespace {

class TimeToAccuracy : public Objective {
 public:
  const ObjectiveTraits& Traits() const override { return traits_; }

  std::vector<double> Score(const Policy& policy,
                            std::span<const CandidateEstimate> candidates) const override {
    std::vector<double> scores;
    scores.reserve(candidates.size());
    for (const CandidateEstimate& candidate : candidates) {
      const double progress =
          DetPow(std::clamp(candidate.gain, 0.0, 1.0), policy.progress_exponent);
      scores.push_back(candidate.step_s / std::max(progress, 1e-9));
    }
    return scores;
  }

 private:
  const ObjectiveTraits traits_{"time_to_accuracy", "predicted step time / gain^progress_exponent"};
};

}  // namespace

void RegisterTimeToAccuracy(Registry<Objective>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<TimeToAccuracy>());
}

}  // namespace weir
