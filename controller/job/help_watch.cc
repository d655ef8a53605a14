// SPDX-License-Identifier: Apache-2.0
#include "controller/job/help_watch.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr size_t kUnpredictedMax = 9;
constexpr uint64_t kSettleSteps = 2;  // connections and caches warm up

}  // namespace

void HelpWatch::BeginPlan(const PlanModel& choices, uint64_t step, bool check,
                          const SyncModel& sync) {
  State& s = state_;
  s.begin_step = step;
  if (check && !s.checking) s.checks.OnCheckBegun();
  s.checking = check;
  if (check || (choices == s.choices && sync == s.sync)) return;
  s.choices = choices;
  s.sync = sync;
  s.plan = BenefitLedger();
  s.plan_steps = 0;
}

// One collective and codec for all buckets, which is what runs before any plan.
bool HelpWatch::RunsDenseChoice(const std::vector<BucketObservation>& buckets) const {
  if (state_.dense_choices.empty()) return false;
  const ChoiceModel& dense = state_.dense_choices[0];
  const auto same = [&](const auto& one) {
    return one.codec == dense.codec && one.collective == dense.collective;
  };
  return std::all_of(buckets.begin(), buckets.end(), same) &&
         std::all_of(state_.dense_choices.begin(), state_.dense_choices.end(), same);
}

void HelpWatch::SetDense(double predicted_s, const PlanModel& choices) {
  State& s = state_;
  s.predicted_s = predicted_s;
  s.dense_choices = choices;
  if (!(predicted_s > 0) || s.unpredicted_s.empty()) return;
  if (RunsDenseChoice(s.unpredicted)) {
    std::vector<double> sorted = s.unpredicted_s;
    std::sort(sorted.begin(), sorted.end());
    s.dense.Add(sorted[sorted.size() / 2], predicted_s, Now(), sorted.size());
  }
  s.unpredicted_s.clear();
  s.unpredicted.clear();
}

void HelpWatch::OnStep(const WatchedStep& step) {
  State& s = state_;
  const StepObservation& report = step.report;
  if (report.skipped || !(report.step_s > 0)) return;
  s.checks.OnStep(report.step_s, s.checking);
  const bool settled = report.step >= s.begin_step + kSettleSteps;
  if (!(s.predicted_s > 0)) {
    if (!step.lossless || !settled) return;
    if (s.unpredicted_s.size() >= kUnpredictedMax) s.unpredicted_s.erase(s.unpredicted_s.begin());
    s.unpredicted_s.push_back(report.step_s);
    s.unpredicted = report.buckets;
    return;
  }
  // The prediction is one that was made while the plan ran: what the plan does to the time of all
  // else, which no estimate knows of, is in it. In long stretches of dense it would not be.
  if (step.lossless && s.checking && report.step > s.begin_step) {
    s.dense.Add(report.step_s, s.predicted_s, Now());
  }
  const ComparedStep compared{.step_s = report.step_s,
                              .gain = step.gain,
                              .predicted_dense_s = s.predicted_s * step.steps,
                              .dense = step.lossless,
                              .check = s.checking};
  s.run.Add(compared);
  if (s.checking) return;
  s.plan.Add(compared);
  ++s.plan_steps;
}

Benefit HelpWatch::Of(const BenefitLedger& ledger, const ExponentBelief& belief) const {
  return ledger.Get(belief, state_.dense.LogRatio(Now()), state_.dense.steps());
}

bool HelpWatch::WantsCheck(const ExponentBelief& belief) const {
  const State& s = state_;
  if (s.checking || s.plan_steps < DenseChecks::kPlanStepsMin) return false;
  return s.checks.IsDue(OfPlan(belief), s.dense.LogRatio(Now()).deviation);
}

bool HelpWatch::CheckDone() const {
  return state_.checking && state_.checks.steps() >= DenseChecks::kStepsWanted;
}

}  // namespace weir
