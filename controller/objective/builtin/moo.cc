// SPDX-License-Identifier: Apache-2.0
// The published multi-objective method, for comparison: over ratios from 0.001 to 0.1, minimise
// communication time and 1/gain, normalise both by the ideal and nadir of the front, take the
// weighted Chebyshev optimum (0.6 time, 0.4 inverse gain), and run it on the collective of least
// predicted time. Source: Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning
// over Unpredictable Networks" (2023). Deviations: gain is the squared form of the paper's text
// (its code takes the root); time is the predicted cost itself where the code fits an exponential
// to five points; and since every ratio is Pareto-optimal when time falls and 1/gain rises with
// compression, NSGA-II's 40 points are replaced by 41 fixed ones, even in log(ratio), which include
// the five published candidates to within 3 %. A known property: with one collective, time is
// affine in the ratio, so its normalised form, and with it the choice, does not depend on the
// network at all.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "controller/model/deterministic_math.h"
#include "controller/objective/objective.h"

namespace weir {
namespace {

constexpr double kRatioHigh = 0.1, kRatioLow = 0.001;
constexpr int kRatios = 41;
// Between equal Chebyshev values the faster candidate wins.
constexpr double kTieWeight = 1e-6;

double Normalised(double value, double ideal, double nadir) {
  return nadir > ideal ? (value - ideal) / (nadir - ideal) : 0;
}

double InverseGain(const CandidateEstimate& candidate) {
  return 1 / std::max(candidate.gain, 1e-9);
}

class Moo : public Objective {
 public:
  const ObjectiveTraits& Traits() const override { return traits_; }

  CandidateScope Scope(const Policy& policy) const override {
    CandidateScope scope;
    scope.error_model = "selection";
    for (int i = 0; i < kRatios; ++i) {
      const double exact = kRatioHigh * DetPow(kRatioLow / kRatioHigh, double(i) / (kRatios - 1));
      // Three digits, so that plans read well: 0.0112, not 0.011220184543.
      const double scale = exact >= 0.01 ? 1e4 : exact >= 0.001 ? 1e5 : 1e6;
      scope.ratios.push_back(std::round(exact * scale) / scale);
    }
    scope.uniform = true;
    scope.immediate = true;
    scope.may_be_slower_than_dense = true;
    return scope;
  }

  std::vector<double> Score(const Policy& policy,
                            std::span<const CandidateEstimate> candidates) const override {
    // The fastest feasible candidate of each ratio makes the front.
    std::map<double, const CandidateEstimate*> fastest;
    for (const CandidateEstimate& candidate : candidates) {
      if (!candidate.feasible) continue;
      const CandidateEstimate*& best = fastest[candidate.ratio];
      if (best == nullptr || candidate.communication_s < best->communication_s) best = &candidate;
    }
    double time_ideal = 1e18, time_nadir = 0, loss_ideal = 1e18, loss_nadir = 0;
    for (const auto& [ratio, candidate] : fastest) {
      time_ideal = std::min(time_ideal, candidate->communication_s);
      time_nadir = std::max(time_nadir, candidate->communication_s);
      loss_ideal = std::min(loss_ideal, InverseGain(*candidate));
      loss_nadir = std::max(loss_nadir, InverseGain(*candidate));
    }
    std::vector<double> scores;
    for (const CandidateEstimate& candidate : candidates) {
      const double time = Normalised(candidate.communication_s, time_ideal, time_nadir);
      const double loss = Normalised(InverseGain(candidate), loss_ideal, loss_nadir);
      double score = std::max(policy.moo_weight_time * time, (1 - policy.moo_weight_time) * loss) +
                     kTieWeight * time;
      const auto best = fastest.find(candidate.ratio);
      // The method fixes the collective first, by time alone.
      if (best == fastest.end() || best->second->communication_s < candidate.communication_s)
        score += 1;
      scores.push_back(score);
    }
    return scores;
  }

 private:
  const ObjectiveTraits traits_{
      "moo", "weighted Chebyshev knee of communication time and 1/gain (Tyagi and Swany 2023)"};
};

}  // namespace

void RegisterMoo(Registry<Objective>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<Moo>());
}

}  // namespace weir
