// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which ranks wait for cores of their hosts, and whether for longer than the job is used to. What
// such waits make slow is no evidence against links and codecs.

#include <map>
#include <optional>
#include <set>

#include "controller/model/job_estimates.h"
#include "controller/model/job_model.h"

namespace weir {

/// Times are seconds on any one monotonic clock. Not thread-safe.
class CoreWatch {
 public:
  static constexpr int kWarmLooks = 4;     // until it is known what the rank is used to
  static constexpr double kUsedToS = 600;  // time constant at which it becomes used to another load
  static constexpr double kFreshS = 3;     // an older word says nothing of the present step
  static constexpr double kExcessMin = 0.1;  // of the time that passes

  /// Agents repeat what they saw until they look again; repetitions are ignored.
  void Add(double now_s, int rank, const CoreObservation& seen);
  /// The share of the time that passes for which the rank's datapath waits for a core, or its core
  /// belongs to another machine, beyond what it is used to; 0: not beyond doubt, or not known.
  double Excess(int rank, double now_s) const;
  /// Those of all ranks that have any. O(ranks that had any lately).
  std::map<int, double> Excesses(double now_s) const;
  /// Smoothed over some seconds, for people; nothing: not known.
  std::optional<CoreObservation> Recent(int rank, double now_s) const;

 private:
  struct Rank {
    CoreObservation newest;
    double at_s = 0, changed_at_s = 0;
    int looks = 0;
    double used_to = 0;    // level: see LevelOf
    double deviation = 0;  // smoothed absolute, of levels that are no excess
    Smoothed wait{0.2}, datapath_wait{0.2}, steal{0.2}, pressure{0.2};
  };
  static double ExcessOf(const Rank& rank);
  std::map<int, Rank> ranks_;
  std::set<int> starved_;  // by the newest look at each rank
};

}  // namespace weir
