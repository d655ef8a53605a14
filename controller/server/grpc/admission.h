// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many agents may greet at a time. After a restart all of them come at once; each greeting
// costs a write to the store and the greetings of all of the node's ranks. Those that are too many
// are asked to come back, each at a time of its own, before they have cost anything.

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/random.h"

namespace weir {

struct AdmissionLimits {
  double greetings_per_s = 1000;
  double burst = 500;    // greetings that may come at once
  double lag_max_s = 1;  // nobody is admitted while what was admitted waits for longer
};

/// Thread-safe. O(1).
class Admission {
 public:
  explicit Admission(AdmissionLimits limits, uint64_t seed = 1) : limits_(limits), random_(seed) {}

  /// 0: the agent is heard. Otherwise the seconds after which it shall come back, at least 0.5 and
  /// at most 60. `lag_s`: how long admitted work has been waiting.
  double Admit(TimePoint now, double lag_s);

 private:
  const AdmissionLimits limits_;
  Mutex mutex_;
  Random random_ WEIR_GUARDED_BY(mutex_);
  double next_s_ WEIR_GUARDED_BY(mutex_) = 0;    // when the next greeting is due, at the full rate
  double return_s_ WEIR_GUARDED_BY(mutex_) = 0;  // when the last that was sent away comes back
};

}  // namespace weir
