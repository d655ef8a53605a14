// SPDX-License-Identifier: Apache-2.0
#pragma once
// Watches the first steps of a plan and says when it should be rolled back. Pure.

#include <cstdint>
#include <optional>
#include <string>

#include "controller/model/job_model.h"

namespace weir {

struct PlanMonitorOptions {
  double slowdown_max = 1.5;        // measured over predicted step time
  int slow_steps = 2;               // in a row
  uint64_t probation_steps = 20;    // how long a step time is compared with the prediction
  int skipped_steps = 3;            // non-finite in a row
  double residual_ratio_max = 100;  // when the policy sets none
  int residual_steps = 3;           // in a row
};

/// The finding of a monitor.
struct PlanMisbehaviour {
  std::string reason;
  // The gradients themselves suffer: dense for a while, whatever is predicted. Otherwise only the
  // prediction was wrong, and a new decision on the newest estimates is the cure.
  bool unsafe = false;
};

/// Not thread-safe.
class PlanMonitor {
 public:
  explicit PlanMonitor(PlanMonitorOptions options = {}) : options_(options) {}

  /// A plan runs since `step`. `predicted_step_s` and `dense_step_s` as the decision saw them; 0:
  /// unknown. `lossy` false: it is dense, so there is nothing to roll back to.
  void Begin(uint64_t step, bool lossy, double predicted_step_s, double dense_step_s);
  /// The network changed after the plan began: its prediction no longer binds.
  void ForgivePrediction() { predicted_step_s_ = 0; }
  /// Why to roll back, if so; then it stays quiet until the next Begin. `residual_limit`: the
  /// policy's bound, 0 for the default. The first step after a switch is not judged: connections
  /// warm up. `starved`: a rank waited for a core (JobModel::starved), so that the step's time says
  /// nothing of the plan.
  std::optional<PlanMisbehaviour> OnStep(const StepObservation& step, double residual_limit,
                                         bool starved = false);
  /// Largest residual norm over gradient norm of the last step.
  double residual_ratio() const { return residual_ratio_; }

 private:
  PlanMonitorOptions options_;
  uint64_t begin_step_ = 0;
  bool armed_ = false;
  double predicted_step_s_ = 0, dense_step_s_ = 0;
  int slow_ = 0, skipped_ = 0, residual_ = 0;
  double residual_ratio_ = 0;
};

}  // namespace weir
