// SPDX-License-Identifier: Apache-2.0
#pragma once
// One estimate for all hosts of how fast payloads arrived at them, step by step.
// Nearly everything that disturbs such a sample makes it slower than the link: a host whose cores
// are taken, a window that was exhausted, other traffic. So many hosts' samples of a few steps say
// together what each of them does not.

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/model/link_estimator.h"
#include "controller/model/snapshot.h"

namespace weir {

/// Times are seconds on any one monotonic clock. Not thread-safe.
class ArrivalPool {
 public:
  static constexpr size_t kSamplesMax = 256;  // of a step; further ones are ignored
  static constexpr size_t kSteps = 4;         // with samples

  /// How fast `host` took payloads in. deviation: of the logarithm of the rate. steady: nothing but
  /// the link can have made it what it is, so that it says something of this host alone, too.
  void Add(double now_s, const std::string& host, double bytes_per_s, double deviation,
           bool steady);
  /// A bandwidth probe between hosts that have samples; ignored before.
  void AddProbe(double now_s, double bytes_per_s, double deviation, const std::string& method);
  /// Every rank has reported the step. Returns whether the estimate started again, because what
  /// arrives differs for good from what did. O(samples log samples).
  bool EndStep(double now_s);
  /// The network seems to have changed after `until_s`, so what arrived until then says nothing;
  /// unless payloads still arrive as before. another_way: round trips changed, too, which explains
  /// slow collectives as well, so that only other samples end the estimate.
  void ForgetUpTo(double until_s, bool another_way = false);

  /// The bandwidth of all hosts, or of one that was seen in two windows to be slower beyond the
  /// joint interval; nothing: not known well enough.
  std::optional<Measured> Bandwidth(double now_s) const;

 private:
  struct Sample {
    double at_s, log_rate, deviation;
  };
  static double WeightOf(const Sample& one);
  /// Whether the estimate started again.
  bool Learn(double now_s);
  bool StillHolds(double until_s, bool another_way) const;

  std::vector<Sample> current_;            // since the last step ended
  std::deque<std::vector<Sample>> steps_;  // that had samples, oldest first; at most kSteps
  LinkEstimator all_;
  std::map<std::string, LinkEstimator> hosts_;
};

}  // namespace weir
