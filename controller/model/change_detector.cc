// SPDX-License-Identifier: Apache-2.0
// See change_detector.h.

#include "controller/model/change_detector.h"

#include <algorithm>
#include <cmath>

namespace weir {

void ChangeDetector::Reset() {
  up_ = down_ = 0;
  up_run_ = down_run_ = 0;
}

int ChangeDetector::Add(double standardised) {
  if (!std::isfinite(standardised)) return 0;
  const double z = std::clamp(standardised, -options_.sample_max, options_.sample_max);
  up_ = std::max(0.0, up_ + z - options_.slack);
  down_ = std::max(0.0, down_ - z - options_.slack);
  up_run_ = up_ > 0 ? up_run_ + 1 : 0;
  down_run_ = down_ > 0 ? down_run_ + 1 : 0;
  if (up_ < options_.threshold && down_ < options_.threshold) return 0;
  const int direction = up_ > down_ ? 1 : -1;
  alarm_run_ = direction > 0 ? up_run_ : down_run_;
  Reset();
  return direction;
}

}  // namespace weir
