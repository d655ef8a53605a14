// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a new plan keeps the promise for which it was chosen, by its first steps beside the last
// ones of the plan before, and which changes failed lately. Pure.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "controller/model/held_change.h"
#include "controller/solver/solver.h"
#include "datapath/base/clock.h"

namespace weir {

/// A step as PromiseWatch needs it.
struct PromiseStep {
  uint64_t step = 0;
  double step_s = 0, gain = 1;
  double compute_s = 0;  // up to the last bucket
  bool skipped = false;
  bool starved = false;  // see JobModel::starved
};

/// The reason for which a plan was chosen. Costs are the time of a step over its progress in dense
/// steps.
struct Promise {
  double cost_s = 0, deviation_s = 0;  // predicted
  double before_s = 0;                 // predicted of the plan before
  double exponent = 0;                 // a step's progress is its gain to the power of this
  double worth_min = 0;                // share of the cost that is worth a switch
};
/// The promise of the plan that `decision` chose; none: it promises no time.
std::optional<Promise> PromiseOf(const Decision& decision, double improvement_min);

struct BrokenPromise {
  double promised_s = 0, measured_s = 0, before_s = 0;  // the plan before was measured to take
};

/// Not thread-safe. Steps are judged like for like: those that a rank computed longer or shorter
/// than before the switch, those in which it waited for a core, and those in which connections warm
/// up, say nothing of the plan. A
/// promise is broken by kSteps such steps in a row that cost more than those of the plan before, or
/// that are beyond the promise's interval and save too little for a switch; it is kept by kSteps in
/// a row that are neither.
class PromiseWatch {
 public:
  static constexpr int kSteps = 2;
  static constexpr uint64_t kSettleSteps = 2;      // not judged
  static constexpr uint64_t kProbationSteps = 20;  // after which nothing is judged
  static constexpr size_t kWindow = 9, kWindowMin = 3;

  enum class State { kNone, kWatched, kKept, kBroken };

  /// A plan runs since `step`; `promise`: none where it was not chosen for one.
  void Begin(uint64_t step, const std::optional<Promise>& promise);
  /// The plan that ran before a few dense steps comes back.
  void Resume(uint64_t step) { begin_step_ = step, paused_ = false; }
  /// Dense runs for a few steps. They are no part of any plan.
  void Pause() { paused_ = true; }
  /// The network or the policy is another one: nothing can be compared.
  void Forgive();
  std::optional<BrokenPromise> OnStep(const PromiseStep& step);
  State state() const { return state_; }

 private:
  struct Before {
    double cost_s = 0, deviation_s = 0;     // of single steps
    double compute_s = 0, tolerance_s = 0;  // how far the compute time may be from it
  };
  Before Summary() const;
  double CostOf(const PromiseStep& step) const;

  std::deque<PromiseStep> recent_;  // of the running plan
  Before before_;
  Promise promise_;
  State state_ = State::kNone;
  uint64_t begin_step_ = 0;
  bool paused_ = false;
  int over_ = 0, within_ = 0;  // in a row
};

}  // namespace weir
