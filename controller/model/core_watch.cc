// SPDX-License-Identifier: Apache-2.0
#include "controller/model/core_watch.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr double kDeviations = 3;

double LevelOf(const CoreObservation& seen) {
  return std::min(1.0, seen.datapath_wait_ratio + seen.steal_ratio);
}

}  // namespace

double CoreWatch::ExcessOf(const Rank& rank) {
  if (rank.looks <= kWarmLooks) return 0;
  const double excess = LevelOf(rank.newest) - rank.used_to;
  return excess > std::max(kExcessMin, kDeviations * rank.deviation) ? excess : 0;
}

void CoreWatch::Add(double now_s, int rank, const CoreObservation& seen) {
  Rank& known = ranks_[rank];
  known.at_s = now_s;
  if (known.looks > 0 && seen == known.newest) return;
  const double passed_s = std::clamp(now_s - known.changed_at_s, 0.0, kUsedToS);
  known.changed_at_s = now_s;
  known.newest = seen;
  ++known.looks;
  known.wait.Add(seen.wait_ratio);
  known.datapath_wait.Add(seen.datapath_wait_ratio);
  known.steal.Add(seen.steal_ratio);
  known.pressure.Add(seen.pressure_ratio);
  const double level = LevelOf(seen);
  const bool starved = ExcessOf(known) > 0;
  // A job is used to the load with which it began, such as that of its own ranks on one host.
  const bool warm = known.looks > kWarmLooks;
  const double share = warm ? 1 - std::exp(-passed_s / kUsedToS) : 1.0 / known.looks;
  if (!starved) {
    const double off = std::fabs(level - known.used_to);
    known.deviation += (warm ? 0.1 : share) * (off - known.deviation);
  }
  known.used_to += share * (level - known.used_to);
  if (ExcessOf(known) > 0) {
    starved_.insert(rank);
  } else {
    starved_.erase(rank);
  }
}

double CoreWatch::Excess(int rank, double now_s) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || now_s - found->second.at_s > kFreshS) return 0;
  return ExcessOf(found->second);
}

std::map<int, double> CoreWatch::Excesses(double now_s) const {
  std::map<int, double> excesses;
  for (const int rank : starved_) {
    const double excess = Excess(rank, now_s);
    if (excess > 0) excesses[rank] = excess;
  }
  return excesses;
}

std::optional<CoreObservation> CoreWatch::Recent(int rank, double now_s) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || now_s - found->second.at_s > 10 * kFreshS) return std::nullopt;
  const Rank& known = found->second;
  return CoreObservation{.wait_ratio = known.wait.value_or(0),
                         .datapath_wait_ratio = known.datapath_wait.value_or(0),
                         .steal_ratio = known.steal.value_or(0),
                         .pressure_ratio = known.pressure.value_or(0)};
}

}  // namespace weir
