// SPDX-License-Identifier: Apache-2.0
#include "controller/job/plan_monitor.h"

#include <algorithm>

#include "datapath/base/status.h"

namespace weir {

void PlanMonitor::Begin(uint64_t step, bool lossy, double predicted_step_s, double dense_step_s) {
  begin_step_ = step;
  armed_ = lossy;
  predicted_step_s_ = predicted_step_s;
  dense_step_s_ = dense_step_s;
  slow_ = skipped_ = residual_ = 0;
}

std::optional<PlanMisbehaviour> PlanMonitor::OnStep(const StepObservation& step,
                                                    double residual_limit, bool starved) {
  residual_ratio_ = 0;
  for (const auto& bucket : step.buckets)
    residual_ratio_ = std::max(residual_ratio_, bucket.residual_ratio);
  if (!armed_ || step.step <= begin_step_) return std::nullopt;
  const double limit = residual_limit > 0 ? residual_limit : options_.residual_ratio_max;
  residual_ = residual_ratio_ > limit ? residual_ + 1 : 0;
  skipped_ = step.skipped ? skipped_ + 1 : 0;
  // Slow only counts where dense would have been faster: a slow network is no fault of the plan.
  const bool judged = predicted_step_s_ > 0 && step.step <= begin_step_ + options_.probation_steps;
  const bool slow = judged && !starved && step.step_s > options_.slowdown_max * predicted_step_s_ &&
                    dense_step_s_ > 0 && step.step_s > dense_step_s_;
  slow_ = slow ? slow_ + 1 : 0;
  std::string reason;
  bool unsafe = true;
  if (skipped_ >= options_.skipped_steps) {
    reason = StrCat(skipped_, " steps in a row skipped for values that are not finite");
  } else if (residual_ >= options_.residual_steps) {
    reason = StrCat("residual ", residual_ratio_, " times the gradient, limit ", limit);
  } else if (slow_ >= options_.slow_steps) {
    unsafe = false;
    reason = StrCat("step took ", step.step_s, " s against ", predicted_step_s_, " s predicted, ",
                    slow_, " times in a row");
  }
  if (reason.empty()) return std::nullopt;
  armed_ = false;
  return PlanMisbehaviour{std::move(reason), unsafe};
}

}  // namespace weir
