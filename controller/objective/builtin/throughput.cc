// SPDX-License-Identifier: Apache-2.0
// Minimises the step time. The policy's gain_min bounds how much of the gradient may be lost.

#include <memory>

#include "controller/objective/objective.h"

namespace weir {
namespace {

class Throughput : public Objective {
 public:
  const ObjectiveTraits& Traits() const override { return traits_; }

  std::vector<double> Score(const Policy& policy,
                            std::span<const CandidateEstimate> candidates) const override {
    std::vector<double> scores;
    for (const CandidateEstimate& candidate : candidates) scores.push_back(candidate.step_s);
    return scores;
  }

 private:
  const ObjectiveTraits traits_{"throughput", "predicted step time, with bounds.gain_min as floor"};
};

}  // namespace

void RegisterThroughput(Registry<Objective>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<Throughput>());
}

}  // namespace weir
