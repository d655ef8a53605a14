// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes of the plan that failed lately, and how long each is not made again. Pure.

#include <vector>

#include "controller/model/held_change.h"
#include "datapath/base/clock.h"

namespace weir {

/// The network as a job believes it to be.
struct KnownNetwork {
  Measured latency_s, bandwidth_bytes_per_s;
};

/// Changes that failed. Each is held for a time that doubles at each failure, and forgotten when
/// one like it keeps its promise or the network is another. Not thread-safe.
class ChangeHolds {
 public:
  static constexpr Duration kHold{std::chrono::minutes(1)};
  static constexpr Duration kHoldMax{std::chrono::hours(1)};
  static constexpr size_t kChangesMax = 8;  // the oldest is forgotten

  /// `decided_on`, `network`: at the decision and now.
  void OnBroken(const HeldChange& change, const KnownNetwork& decided_on,
                const KnownNetwork& network, TimePoint now);
  void Forget(const HeldChange& change);
  /// Those that are held now. Forgets what failed on another network: one of which latency or
  /// bandwidth is beyond both values that were believed at the decision and at the failure, by
  /// more than their joint interval and a factor. (A plan may teach another value than the plan
  /// before it did. That is no other network.)
  std::vector<HeldChange> Get(const KnownNetwork& network, TimePoint now);

 private:
  struct Range {
    double low_log = 0, high_log = 0, deviation = 0;
    void Add(const Measured& measured);
    bool Excludes(const Measured& measured, double factor_log) const;
  };
  struct Entry {
    HeldChange change;
    TimePoint until;
    Duration hold;
    Range latency, bandwidth;
  };
  std::vector<Entry>::iterator Find(const HeldChange& change);

  std::vector<Entry> entries_;  // the newest last
};

}  // namespace weir
