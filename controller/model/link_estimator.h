// SPDX-License-Identifier: Apache-2.0
#pragma once
// Estimates of one directed link: its unloaded round-trip time and the bandwidth that a flow gets.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "controller/model/snapshot.h"

namespace weir {

/// Times are seconds on any one monotonic clock. Not thread-safe.
class LinkEstimator {
 public:
  static constexpr double kRttWindowS = 10;
  static constexpr size_t kRttSamplesMax = 16;

  void AddRtt(double now_s, double rtt_s, const std::string& method);
  /// Kalman filter of log(bandwidth) with the deviation that the method deserves; the variance
  /// grows with age. A sample beyond 3 deviations restarts the filter: links change at once, not
  /// slowly.
  void AddBandwidth(double now_s, double bytes_per_s, double log_deviation,
                    const std::string& method);
  /// Ignores measurements from before `since_s` from now on.
  void ForgetRttBefore(double since_s);
  void ForgetBandwidthBefore(double since_s);

  /// The least of the newest samples: queueing only ever adds. Active probes outrank "tcp_info",
  /// whose round-trip times include the job's own queue. deviation: spread within the window.
  std::optional<Measured> Rtt(double now_s) const;
  /// True when the newest samples come from "tcp_info" only.
  bool rtt_is_loaded(double now_s) const;
  std::optional<Measured> Bandwidth(double now_s) const;

  const std::string& rtt_method() const { return rtt_method_; }
  const std::string& bandwidth_method() const { return bandwidth_method_; }
  uint64_t rtt_samples() const { return rtt_samples_; }
  uint64_t bandwidth_samples() const { return bandwidth_samples_; }

 private:
  struct RttSample {
    double at_s, rtt_s;
    bool loaded;
  };
  bool Fresh(const RttSample& sample, double now_s) const;

  std::deque<RttSample> rtts_;
  double last_active_s_ = -1e9;
  std::string rtt_method_, bandwidth_method_;
  uint64_t rtt_samples_ = 0, bandwidth_samples_ = 0;
  double log_bandwidth_ = 0, variance_ = 0, bandwidth_at_s_ = 0;
  bool has_bandwidth_ = false;
};

}  // namespace weir
