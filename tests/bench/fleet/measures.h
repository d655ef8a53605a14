// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts and times that the simulated agents see, collected from all threads.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "datapath/base/mutex.h"

namespace weir::fleet_bench {

/// Thread-safe.
class Measures {
 public:
  void Count(const std::string& what, double by = 1) {
    MutexLock lock(mutex_);
    counts_[what] += by;
  }
  void Time(const std::string& what, double seconds) {
    MutexLock lock(mutex_);
    times_[what].push_back(seconds);
  }

  struct Summary {
    std::map<std::string, double> counts;
    struct Quantiles {
      size_t count = 0;
      double p50 = 0, p99 = 0, max = 0;
    };
    std::map<std::string, Quantiles> times;
  };
  /// Everything since the last call.
  Summary Take() {
    MutexLock lock(mutex_);
    Summary out;
    out.counts = std::move(counts_);
    for (auto& [what, all] : times_) {
      std::sort(all.begin(), all.end());
      const auto at = [&](double share) {
        return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))];
      };
      out.times[what] = {all.size(), at(0.5), at(0.99), all.back()};
    }
    counts_.clear();
    times_.clear();
    return out;
  }

 private:
  Mutex mutex_;
  std::map<std::string, double> counts_ WEIR_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<double>> times_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir::fleet_bench
