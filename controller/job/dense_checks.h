// SPDX-License-Identifier: Apache-2.0
#pragma once
// When a few dense steps are worth their time: they measure what a plan saves. Pure.

#include <cstdint>

#include "controller/job/benefit.h"

namespace weir {

/// Not thread-safe.
class DenseChecks {
 public:
  static constexpr double kShareMax = 0.005;       // of training time
  static constexpr uint64_t kStepsWanted = 3;      // that are measured in a check
  static constexpr uint64_t kPlanStepsMin = 20;    // of a plan, before it is compared
  static constexpr double kHopelessShare = 0.5;    // saved surely: dense need not be tried
  static constexpr double kKnownDeviation = 0.05;  // of the logarithm: dense's time is known

  /// One step of training took so long; `check`: in a check.
  void OnStep(double step_s, bool check);
  void OnCheckBegun() { steps_ = 0; }

  /// Whether a check fits the budget and says something: dense's time is not known well, and `plan`
  /// does not surely save more than kHopelessShare. `deviation`: of the logarithm of dense's time.
  bool IsDue(const Benefit& plan, double deviation) const;
  uint64_t steps() const { return steps_; }  // of the check under way

 private:
  double total_s_ = 0, checks_s_ = 0;
  uint64_t steps_ = 0;
  // Ranks take some steps to come back from dense; the longest check so far says how many.
  uint64_t longest_ = 8;
};

}  // namespace weir
