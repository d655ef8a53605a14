// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines of log that strangers can cause, so many in a window at most.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "datapath/base/clock.h"
#include "datapath/base/log.h"
#include "datapath/base/mutex.h"

namespace weir {

/// Thread-safe.
class LogLimit {
 public:
  static constexpr int kLinesMax = 20;
  static constexpr Duration kWindow = std::chrono::seconds(10);

  explicit LogLimit(const Clock& clock = RealClock(), int lines_max = kLinesMax)
      : clock_(clock), lines_max_(lines_max) {}

  /// As weir::Log, for the first lines of a window. The first line of the next one says how many
  /// were left out.
  void Log(LogLevel level, std::string_view part, std::string_view message,
           const LogFields& fields = {}) WEIR_EXCLUDES(mutex_) {
    uint64_t left_out = 0;
    {
      MutexLock lock(mutex_);
      if (clock_.Now() >= end_) {
        end_ = clock_.Now() + kWindow;
        lines_ = 0;
        std::swap(left_out, left_out_);
      }
      if (++lines_ > lines_max_) {
        ++left_out_;
        return;
      }
    }
    if (left_out > 0) {
      weir::Log(level, part, StrCat(left_out, " lines like the next one were left out"));
    }
    weir::Log(level, part, message, fields);
  }

 private:
  const Clock& clock_;
  const int lines_max_;
  Mutex mutex_;
  TimePoint end_ WEIR_GUARDED_BY(mutex_){};
  int lines_ WEIR_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ WEIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir
