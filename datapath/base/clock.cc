// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/clock.h"

namespace weir {
namespace {
class SteadyClock : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  double UnixSeconds() const override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};
}  // namespace

const Clock& RealClock() {
  // Never destroyed, because sessions may outlive static destructors.
  static const Clock* const clock = new SteadyClock;
  return *clock;
}

TimePoint FakeClock::Now() const {
  MutexLock lock(mutex_);
  return TimePoint(now_);
}

double FakeClock::UnixSeconds() const {
  MutexLock lock(mutex_);
  return 1.7e9 + ToSeconds(now_);
}

void FakeClock::Advance(Duration by) {
  MutexLock lock(mutex_);
  now_ += by;
}

}  // namespace weir
