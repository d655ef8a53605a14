// SPDX-License-Identifier: Apache-2.0
#include "controller/job/dense_checks.h"

#include <algorithm>

namespace weir {

void DenseChecks::OnStep(double step_s, bool check) {
  if (!(step_s > 0)) return;
  total_s_ += step_s;
  if (!check) return;
  checks_s_ += step_s;
  longest_ = std::max(longest_, ++steps_);
}

bool DenseChecks::IsDue(const Benefit& plan, double deviation) const {
  if (!(plan.dense_step_s > 0) || plan.verdict == BenefitVerdict::kUnknown) return false;
  if (plan.saved_share_low > kHopelessShare || deviation < kKnownDeviation) return false;
  const double dense_s = plan.dense_step_s + 2 * plan.dense_step_deviation_s;
  return checks_s_ + static_cast<double>(longest_) * dense_s <= kShareMax * total_s_;
}

}  // namespace weir
