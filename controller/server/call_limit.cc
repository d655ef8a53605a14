// SPDX-License-Identifier: Apache-2.0
#include "controller/server/call_limit.h"

#include <algorithm>

namespace weir {
namespace {

// One call costs so much time, and so much of it may be owed.
const Duration kCallTime = FromSeconds(1 / CallLimit::kPerSecond);
const Duration kOwedMax = FromSeconds(CallLimit::kBurst / CallLimit::kPerSecond);

}  // namespace

Status CallLimit::Take(const std::string& caller) {
  const TimePoint now = clock_.Now();
  Duration wait{0};
  {
    const MutexLock lock(mutex_);
    if (rested_.size() >= kCallersMax && !rested_.contains(caller)) {
      std::erase_if(rested_, [&](const auto& entry) { return entry.second <= now; });
    }
    const bool has_place = rested_.size() < kCallersMax || rested_.contains(caller);
    TimePoint& rested = rested_[has_place ? caller : ""];
    const TimePoint next = std::max(rested, now) + kCallTime;
    wait = next - now - kOwedMax;
    if (wait <= Duration(0)) {
      rested = next;
      return OkStatus();
    }
  }
  const Status refused =
      ResourceExhausted(StrCat(caller, " calls more often than ", kPerSecond,
                               " times a second; try again in ", ToSeconds(wait), " s"));
  log_.Log(LogLevel::kWarning, "controller", Message(refused));
  return refused;
}

}  // namespace weir
