// SPDX-License-Identifier: Apache-2.0
#include "controller/job/promise_watch.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr double kOneSided95 = 1.645;
constexpr double kMadToDeviation = 1.4826;
constexpr double kComputeDeviations = 3, kComputeShare = 0.1;
constexpr double kGainMin = 1e-6;
constexpr double kCostlyShare = 0.02;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A robust deviation of single values.
double Deviation(std::vector<double> values, double median) {
  for (double& value : values) value = std::fabs(value - median);
  return kMadToDeviation * Median(std::move(values));
}

}  // namespace

std::optional<Promise> PromiseOf(const Decision& decision, double improvement_min) {
  const DecisionFacts& facts = decision.facts;
  const bool promises =
      facts.rule == DecisionRule::kBetter || facts.rule == DecisionRule::kFirstPlan;
  if (!promises || !facts.switched) return std::nullopt;
  const auto cost_s = [&](double step_s, double gain) {
    return step_s / std::pow(std::max(gain, kGainMin), facts.progress_exponent);
  };
  // Before the first plan ranks run dense.
  const PlanFacts before =
      facts.incumbent.value_or(PlanFacts{.label = "", .step_s = facts.dense_step_s});
  Promise promise{.cost_s = cost_s(facts.chosen.step_s, facts.chosen.gain),
                  .before_s = cost_s(before.step_s, before.gain),
                  .exponent = facts.progress_exponent,
                  .worth_min = improvement_min};
  promise.deviation_s = cost_s(decision.chosen.step_deviation_s, facts.chosen.gain);
  if (!(promise.cost_s < promise.before_s)) return std::nullopt;
  return promise;
}

double PromiseWatch::CostOf(const PromiseStep& step) const {
  return step.step_s / std::pow(std::max(step.gain, kGainMin), promise_.exponent);
}

PromiseWatch::Before PromiseWatch::Summary() const {
  Before before;
  if (recent_.size() < kWindowMin) return before;
  std::vector<double> costs, computes;
  for (const PromiseStep& step : recent_) {
    costs.push_back(CostOf(step));
    computes.push_back(step.compute_s);
  }
  before.cost_s = Median(costs);
  before.deviation_s = Deviation(costs, before.cost_s);
  before.compute_s = Median(computes);
  before.tolerance_s = std::max(kComputeDeviations * Deviation(computes, before.compute_s),
                                kComputeShare * before.compute_s);
  return before;
}

void PromiseWatch::Begin(uint64_t step, const std::optional<Promise>& promise) {
  promise_ = promise.value_or(Promise{});
  before_ = Summary();
  recent_.clear();
  begin_step_ = step;
  paused_ = false;
  over_ = within_ = 0;
  // A prediction of the plan before is no measurement of it.
  state_ = promise.has_value() && before_.cost_s > 0 ? State::kWatched : State::kNone;
}

void PromiseWatch::Forgive() {
  if (state_ == State::kWatched) state_ = State::kNone;
}

std::optional<BrokenPromise> PromiseWatch::OnStep(const PromiseStep& step) {
  const bool settled = step.step >= begin_step_ + kSettleSteps;
  if (paused_ || step.skipped || step.starved || !settled || !(step.step_s > 0))
    return std::nullopt;
  recent_.push_back(step);
  if (recent_.size() > kWindow) recent_.pop_front();
  if (state_ != State::kWatched) return std::nullopt;
  if (step.step > begin_step_ + kProbationSteps) {
    state_ = State::kNone;
    return std::nullopt;
  }
  if (std::fabs(step.compute_s - before_.compute_s) > before_.tolerance_s) return std::nullopt;
  const double cost_s = CostOf(step);
  const double limit_s =
      promise_.cost_s + kOneSided95 * std::hypot(promise_.deviation_s, before_.deviation_s);
  const bool little = cost_s > limit_s && cost_s > (1 - promise_.worth_min) * before_.cost_s;
  const bool costs = cost_s > before_.cost_s + std::max(kOneSided95 * before_.deviation_s,
                                                        kCostlyShare * before_.cost_s);
  over_ = little || costs ? over_ + 1 : 0;
  within_ = over_ > 0 ? 0 : within_ + 1;
  if (within_ >= kSteps) state_ = State::kKept;
  if (over_ < kSteps) return std::nullopt;
  state_ = State::kBroken;
  return BrokenPromise{promise_.cost_s, cost_s, before_.cost_s};
}

}  // namespace weir
