// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bounds how often one caller may call, so that a script that runs wild does not keep agents and
// other people waiting: all calls share the executor's thread.

#include <map>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/base/log_limit.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

namespace weir {

/// Thread-safe.
class CallLimit {
 public:
  static constexpr double kPerSecond = 200;
  static constexpr double kBurst = 2000;  // calls at once after a pause
  static constexpr size_t kCallersMax = 4096;

  explicit CallLimit(const Clock& clock = RealClock()) : clock_(clock), log_(clock, 1) {}

  /// Counts a call of `caller`. kResourceExhausted names it and says when it may call again; such a
  /// call does not count. Callers beyond kCallersMax within a few seconds share one limit.
  /// O(log callers).
  Status Take(const std::string& caller) WEIR_EXCLUDES(mutex_);

 private:
  const Clock& clock_;
  LogLimit log_;
  Mutex mutex_;
  // When each caller has its whole burst again, if it does not call. Those in the past are as good
  // as absent.
  std::map<std::string, TimePoint> rested_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
