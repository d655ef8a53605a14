// SPDX-License-Identifier: Apache-2.0
#include "controller/job/loss_guard.h"

#include <algorithm>
#include <cmath>

namespace weir {

void LossGuard::Begin(double gain, uint32_t every) {
  gain_ = std::clamp(gain, 0.0, 1.0);
  every_ = every;
  armed_ = gain_ < 1 || every > 1;
  steps_ = 0;
  behind_share_ = 0;
}

std::optional<ProgressModel::Behind> LossGuard::OnStep(
    const std::optional<ProgressModel::Behind>& behind, double tolerance, int patience_steps) {
  if (!behind.has_value()) return std::nullopt;
  const double curve = std::fabs(behind->curve);
  behind_share_ = curve > 0 ? behind->loss / curve : 0;
  if (!armed_ || !(tolerance > 0)) return std::nullopt;
  const bool late = behind->loss > tolerance * curve + 2 * behind->deviation;
  steps_ = late ? steps_ + 1 : 0;
  if (steps_ < patience_steps) return std::nullopt;
  armed_ = false;
  return behind;
}

}  // namespace weir
