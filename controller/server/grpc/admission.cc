// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/admission.h"

#include <algorithm>

namespace weir {
namespace {

constexpr double kWaitMin = 0.5, kWaitMax = 60;
// The share of the rate for those who come back; the rest is for those who come first.
constexpr double kReturnShare = 0.8;

}  // namespace

double Admission::Admit(TimePoint now, double lag_s) {
  const double now_s = ToSeconds(now.time_since_epoch());
  const double interval_s = 1 / limits_.greetings_per_s;
  MutexLock lock(mutex_);
  next_s_ = std::max(next_s_, now_s - limits_.burst * interval_s);
  if (lag_s <= limits_.lag_max_s && next_s_ <= now_s) {
    next_s_ += interval_s;
    return 0;
  }
  return_s_ =
      std::clamp(return_s_ + interval_s / kReturnShare, now_s + kWaitMin + lag_s, now_s + kWaitMax);
  // A little jitter, so that those who were told the same time do not come together.
  return std::min(kWaitMax, (return_s_ - now_s) * (1 + 0.1 * random_.Uniform()));
}

}  // namespace weir
