// SPDX-License-Identifier: Apache-2.0
#pragma once
// Time as a dependency: protocol logic takes a Clock, so tests drive it without sleeping.

#include <chrono>
#include <cstdint>

#include "datapath/base/mutex.h"

namespace weir {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// A monotonic clock. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  /// Seconds since the Unix epoch, which may jump. Only for records that people read.
  virtual double UnixSeconds() const = 0;
};

/// The clock of the machine, shared by the process.
const Clock& RealClock();

/// A clock that only moves when a test tells it to. Thread-safe.
class FakeClock : public Clock {
 public:
  TimePoint Now() const override;
  double UnixSeconds() const override;
  void Advance(Duration by);

 private:
  mutable Mutex mutex_;
  Duration now_ WEIR_GUARDED_BY(mutex_) = std::chrono::seconds(1);
};

inline double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration FromSeconds(double s) { return Duration(static_cast<int64_t>(s * 1e9)); }

}  // namespace weir
