// SPDX-License-Identifier: Apache-2.0
#pragma once
// Estimates of one directed link: its unloaded round-trip time and the bandwidth that a flow gets.

#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "controller/model/change_detector.h"
#include "controller/model/snapshot.h"

namespace weir {

/// Times are seconds on any one monotonic clock. Not thread-safe.
class LinkEstimator {
 public:
  static constexpr double kRttWindowS = 10;
  static constexpr size_t kRttSamplesMax = 16;
  /// Samples less than this apart may share one disturbance of their hosts.
  static constexpr double kEvidenceWindowS = 2;

  void AddRtt(double now_s, double rtt_s, const std::string& method);
  /// Kalman filter of log(bandwidth) with the deviation that the method deserves, or that samples
  /// turn out to have if that is more; the variance grows with age. A sample beyond 3 deviations
  /// changes nothing unless the next one repeats it, or two more are on the same side: then the
  /// filter starts again from the last two, because links change at once, not slowly. A lasting
  /// shift below that is found by its sum. Returns whether the filter started again.
  bool AddBandwidth(double now_s, double bytes_per_s, double log_deviation,
                    const std::string& method);
  /// Takes the speed of a flow that may have been limited by its windows or its application: the
  /// link is at least that fast. It only contradicts estimates that are below it.
  void AddLowerBound(double now_s, double bytes_per_s);
  /// Ignores measurements from before `since_s` from now on.
  void ForgetRttBefore(double since_s);
  void ForgetBoundsBefore(double since_s);
  /// The network changed: the estimate stays until samples say more, but nothing confirms it.
  void Unconfirm() { windows_ = 0; }

  /// The least of the newest samples: queueing only ever adds. Active probes outrank "tcp_info",
  /// whose round-trip times include the job's own queue. deviation: spread within the window.
  std::optional<Measured> Rtt(double now_s) const;
  /// True when the newest samples come from "tcp_info" only.
  bool rtt_is_loaded(double now_s) const;
  std::optional<Measured> Bandwidth(double now_s) const;
  /// The greatest bound of the last kBoundWindowS; 0: none.
  double LowerBound(double now_s) const;
  static constexpr double kBoundWindowS = 10;
  /// In how many windows of kEvidenceWindowS samples confirmed the present estimate, which itself
  /// was made by others.
  int bandwidth_windows() const { return windows_; }
  /// Whether the newest sample disagrees with the estimate, so that another one has to decide.
  bool in_doubt() const { return doubt_.has_value(); }
  /// The newest word on the bandwidth: the sample in doubt, else the estimate; 0: none.
  double newest_bandwidth() const {
    return has_bandwidth_ ? std::exp(doubt_.value_or(log_bandwidth_)) : 0;
  }

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
  void Restart(double now_s, double log_bandwidth, double variance, int windows);

  std::deque<RttSample> rtts_;
  double last_active_s_ = -1e9;
  std::string rtt_method_, bandwidth_method_;
  uint64_t rtt_samples_ = 0, bandwidth_samples_ = 0;
  double log_bandwidth_ = 0, variance_ = 0, bandwidth_at_s_ = 0;
  double scatter_ = 0;  // smoothed absolute error of what the next sample is
  bool has_bandwidth_ = false;
  int windows_ = 0;
  double window_since_s_ = 0;
  std::optional<double> doubt_;  // logarithm of the newest sample, which disagreed
  int doubts_ = 0;               // in a row, on the same side of the estimate
  ChangeDetector shift_;
  std::deque<std::pair<double, double>> bounds_;  // when, and bytes per second; descending
};

}  // namespace weir
