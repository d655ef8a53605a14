// SPDX-License-Identifier: Apache-2.0
#include "controller/job/change_holds.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

// An estimate that moves by less than this factor may be of the same network.
const double kBandwidthFactorLog = std::log(1.5), kLatencyFactorLog = std::log(2);
constexpr double kJointDeviations = 2;

}  // namespace

void ChangeHolds::Range::Add(const Measured& measured) {
  if (!(measured.value > 0)) return;
  const double log = std::log(measured.value);
  const bool empty = low_log == 0 && high_log == 0;
  low_log = empty ? log : std::min(low_log, log);
  high_log = empty ? log : std::max(high_log, log);
  deviation = std::max(deviation, measured.deviation / measured.value);
}

bool ChangeHolds::Range::Excludes(const Measured& measured, double factor_log) const {
  if (!(measured.value > 0) || (low_log == 0 && high_log == 0)) return false;
  const double log = std::log(measured.value);
  const double joint = std::hypot(deviation, measured.deviation / measured.value);
  const double margin = std::max(factor_log, kJointDeviations * joint);
  return log < low_log - margin || log > high_log + margin;
}

std::vector<ChangeHolds::Entry>::iterator ChangeHolds::Find(const HeldChange& change) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return IsAlike(entry.change, change); });
}

void ChangeHolds::OnBroken(const HeldChange& change, const KnownNetwork& decided_on,
                           const KnownNetwork& network, TimePoint now) {
  Entry entry{
      .change = change, .until = now + kHold, .hold = kHold, .latency = {}, .bandwidth = {}};
  entry.change.failures = 1;
  if (const auto known = Find(change); known != entries_.end()) {
    entry = *known;
    entry.change.to = change.to;
    ++entry.change.failures;
    entry.hold = std::min<Duration>(entry.hold * 2, kHoldMax);
    entry.until = now + entry.hold;
    entries_.erase(known);
  }
  for (const KnownNetwork& seen : {decided_on, network}) {
    entry.latency.Add(seen.latency_s);
    entry.bandwidth.Add(seen.bandwidth_bytes_per_s);
  }
  if (entries_.size() >= kChangesMax) entries_.erase(entries_.begin());
  entries_.push_back(entry);
}

void ChangeHolds::Forget(const HeldChange& change) {
  if (const auto known = Find(change); known != entries_.end()) entries_.erase(known);
}

std::vector<HeldChange> ChangeHolds::Get(const KnownNetwork& network, TimePoint now) {
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.latency.Excludes(network.latency_s, kLatencyFactorLog) ||
           entry.bandwidth.Excludes(network.bandwidth_bytes_per_s, kBandwidthFactorLog);
  });
  std::vector<HeldChange> held;
  for (const Entry& entry : entries_) {
    if (now >= entry.until) continue;
    held.push_back(entry.change);
    held.back().held_s = ToSeconds(entry.until - now);
  }
  return held;
}

}  // namespace weir
