// SPDX-License-Identifier: Apache-2.0
#pragma once
// Watches whether losses keep up with the curve that was fitted before the plan began. Pure.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "controller/model/progress.h"

namespace weir {

/// Not thread-safe.
class LossGuard {
 public:
  /// A plan begins that keeps `gain` of the gradient and synchronises every so many steps; 1 and 1:
  /// it is dense, and nothing is watched.
  void Begin(double gain, uint32_t every = 1);
  /// One step with what the model says of it. `tolerance`: share of the curve that losses may be
  /// behind, beyond twice the curve's own deviation; 0: nothing is watched. The finding after
  /// `patience_steps` in a row; then it stays quiet until the next plan.
  std::optional<ProgressModel::Behind> OnStep(const std::optional<ProgressModel::Behind>& behind,
                                              double tolerance, int patience_steps);
  /// The least gain of the next gentler plan: half of what the plan loses.
  double GentlerGain() const { return 1 - (1 - gain_) / 2; }
  /// The most steps between synchronisations of the next gentler plan: a quarter.
  uint32_t GentlerEvery() const { return std::max(1u, every_ / 4); }
  uint32_t every() const { return every_; }
  /// The newest, as a share of the curve; 0 while nothing is known.
  double behind_share() const { return behind_share_; }

 private:
  double gain_ = 1;
  uint32_t every_ = 1;
  bool armed_ = false;
  int steps_ = 0;  // in a row
  double behind_share_ = 0;
};

}  // namespace weir
