// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures whether the plans of a job help: what its steps took beside what dense would have taken,
// and when dense should run for a few steps to find that out.

#include <vector>

#include "controller/job/benefit.h"
#include "controller/job/dense_checks.h"
#include "controller/model/job_model.h"

namespace weir {

/// A step as HelpWatch needs it.
struct WatchedStep {
  const StepObservation& report;
  double gain = 1;        // of all buckets, by their elements
  bool lossless = false;  // nothing was lost in any bucket, and the step has summed gradients
  double steps = 1;       // that sum gradients make as much progress, but for the gain
};

/// Not thread-safe.
class HelpWatch {
 public:
  explicit HelpWatch(const Clock& clock) : clock_(clock) {}

  /// Another run begins, with nothing compared.
  void Begin() { state_ = State(); }
  /// A plan of these choices is active since `step`. `check`: it is dense for a few steps, and what
  /// ran before will go on.
  void BeginPlan(const PlanModel& choices, uint64_t step, bool check, const SyncModel& sync = {});
  /// The time of a dense step as the newest decision predicts it, and its choices; 0: unknown. The
  /// steps before the first prediction are compared with it if they ran the same.
  void SetDense(double predicted_s, const PlanModel& choices);
  void OnStep(const WatchedStep& step);

  Benefit OfRun(const ExponentBelief& belief) const { return Of(state_.run, belief); }
  Benefit OfPlan(const ExponentBelief& belief) const { return Of(state_.plan, belief); }
  /// Steps of the plan that were compared.
  uint64_t plan_steps() const { return state_.plan_steps; }

  bool WantsCheck(const ExponentBelief& belief) const;
  bool checking() const { return state_.checking; }
  /// Enough dense steps were measured.
  bool CheckDone() const;

 private:
  struct State {
    BenefitLedger run, plan;
    DenseCalibration dense;
    DenseChecks checks;
    PlanModel choices, dense_choices;
    SyncModel sync;
    double predicted_s = 0;
    uint64_t begin_step = 0, plan_steps = 0;
    bool checking = false;
    std::vector<double> unpredicted_s;           // of dense steps before the first prediction
    std::vector<BucketObservation> unpredicted;  // of the newest of them
  };
  Benefit Of(const BenefitLedger& ledger, const ExponentBelief& belief) const;
  double Now() const { return ToSeconds(clock_.Now().time_since_epoch()); }
  bool RunsDenseChoice(const std::vector<BucketObservation>& buckets) const;

  const Clock& clock_;
  State state_;
};

}  // namespace weir
