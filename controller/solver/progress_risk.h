// SPDX-License-Identifier: Apache-2.0
#pragma once
// How an objective scores while the progress of a step is known with some uncertainty only.

#include <vector>

#include "controller/model/progress.h"
#include "controller/model/snapshot.h"
#include "controller/objective/objective.h"
#include "controller/policy/policy.h"

namespace weir {

/// Whether the policy's objective minds the progress of a step; false for an unknown objective.
bool GoesByProgress(const Policy& policy);

/// A possible worth of steps, and its probability.
struct WeighedCurve {
  ProgressCurve curve;
  double sync_cost = 0;  // see SyncProgress
  double weight = 1;
  double At(double gain, const SyncModel& sync) const {
    return curve.At(gain) * SyncProgress(sync, sync_cost);
  }
};

/// The belief about the cost of local steps in kSyncCostUnit, by the policy, the agreement of the
/// ranks and the job's losses.
ExponentBelief SyncBeliefOf(const LocalSteps& local, const Policy& policy);
/// The same for each e-fold of their number. 0 where the policy allows none and none run.
Measured SyncCostOf(const Snapshot& snapshot, const Policy& policy);

/// Immutable. `objective` and `policy` outlive it.
class ProgressRisk {
 public:
  /// `learns` false: the objective does not go by progress. `sync_cost`: what local steps are
  /// believed to cost.
  ProgressRisk(const Objective& objective, const Policy& policy, const ExponentBelief& belief,
               double gain_seen, bool learns, const Measured& sync_cost = {});

  const WeighedCurve& mean() const { return mean_; }
  double deviation() const { return deviation_; }
  const Measured& sync_cost() const { return sync_cost_; }
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
  WeighedCurve mean_;
  double deviation_ = 0;
  Measured sync_cost_;
  bool learns_;
  std::vector<WeighedCurve> points_, grid_;
};

}  // namespace weir
