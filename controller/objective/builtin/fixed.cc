// SPDX-License-Identifier: Apache-2.0
// Uses one choice for every bucket, whatever is measured: a baseline, and the way to pin a job.

#include <memory>

#include "controller/objective/objective.h"

namespace weir {
namespace {

class Fixed : public Objective {
 public:
  const ObjectiveTraits& Traits() const override { return traits_; }

  CandidateScope Scope(const Policy& policy) const override {
    CandidateScope scope;
    scope.only = {policy.fixed_codec, policy.fixed_collective, policy.fixed_ratio,
                  policy.fixed_bits};
    scope.uniform = true;
    scope.immediate = true;
    scope.may_be_slower_than_dense = true;
    return scope;
  }

  std::vector<double> Score(const Policy& policy,
                            std::span<const CandidateEstimate> candidates) const override {
    std::vector<double> scores;
    for (const CandidateEstimate& candidate : candidates) scores.push_back(candidate.step_s);
    return scores;
  }

 private:
  const ObjectiveTraits traits_{"fixed", "the policy's codec, ratio and collective"};
};

}  // namespace

void RegisterFixed(Registry<Objective>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<Fixed>());
}

}  // namespace weir
