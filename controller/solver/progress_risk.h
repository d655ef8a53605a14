// SPDX-License-Identifier: Apache-2.0
#pragma once
// How an objective scores while the progress of a step is known with some uncertainty only.

#include <vector>

#include "controller/model/progress.h"
#include "controller/objective/objective.h"
#include "controller/policy/policy.h"

namespace weir {

/// Whether the policy's objective minds the progress of a step; false for an unknown objective.
bool GoesByProgress(const Policy& policy);

/// A curve that is possible, and its probability.
struct WeighedCurve {
  ProgressCurve curve;
  double weight = 1;
};

/// Immutable. `objective` and `policy` outlive it.
class ProgressRisk {
 public:
  /// `learns` false: the objective does not go by progress.
  ProgressRisk(const Objective& objective, const Policy& policy, const ExponentBelief& belief,
               double gain_seen, bool learns);

  const ProgressCurve& mean() const { return mean_; }
  double deviation() const { return deviation_; }
  /// Few curves whose exponents have the mean and variance of the belief.
  const std::vector<WeighedCurve>& points() const { return points_; }
  /// The probability that `a` scores below `b` times `factor`, if nothing but progress is
  /// uncertain.
  double Probability(CandidateEstimate a, CandidateEstimate b, double factor) const;
  /// Whether it matters, and is not certain.
  bool learns() const { return learns_; }

 private:
  const Objective& objective_;
  const Policy& policy_;
  ProgressCurve mean_;
  double deviation_ = 0;
  bool learns_;
  std::vector<WeighedCurve> points_, grid_;
};

}  // namespace weir
