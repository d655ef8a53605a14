// SPDX-License-Identifier: Apache-2.0
#pragma once
// Link estimates without extra traffic, from TCP_INFO of the datapath's connections as ranks report
// it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "datapath/base/clock.h"

namespace weir::agent {

/// A mean with a variance, both exponentially weighted.
class ExponentialEstimate {
 public:
  /// `weight`: that of the newest sample, 0 < weight <= 1.
  explicit ExponentialEstimate(double weight) : weight_(weight) {}
  void Add(double value);
  uint32_t samples() const { return samples_; }
  double mean() const { return mean_; }
  double deviation() const;

 private:
  double weight_;
  uint32_t samples_ = 0;
  double mean_ = 0;
  double variance_ = 0;
};

/// A rank's observations of its connection to one peer. Counters are cumulative per connection.
struct PathObservation {
  double rtt_s = 0;
  double rtt_min_s = 0;
  double delivery_rate_bytes_per_s = 0;
  bool application_limited = false;
  uint64_t bytes_acked = 0;
  double busy_s = 0;
  double receive_window_limited_s = 0;
  double send_buffer_limited_s = 0;
};

/// One connection: the observer (a local rank, by any name) and the peer.
struct PathKey {
  std::string observer;
  std::string peer;
  friend auto operator<=>(const PathKey&, const PathKey&) = default;
};

/// The facts about the link to one node since the last sample.
struct PassiveSample {
  std::string node;
  double rtt_s = 0;  // least smoothed round trip of the window; 0: none
  double rtt_deviation_s = 0;
  double bandwidth_bytes_per_s = 0;  // 0: none
  double bandwidth_deviation_bytes_per_s = 0;
  bool application_limited = false;  // the bandwidth is the one in use, a lower bound
  uint32_t samples = 0;
};

/// Combines observations per node.
/// Round trip: the minimum over the window, because a smoothed round trip under load includes the
/// sender's own queue, and the kernel's minimum lasts 300 s and would hide an increase for as long.
/// Bandwidth: the mean of the delivery rates that the application did not limit. The kernel repeats
/// an older, higher rate while the application is the limit, so those are discarded. Only when a
/// window has no other rates, it is the acknowledged bytes over the time that the connection was
/// busy and not held back by its windows, marked as application-limited. With several connections
/// to a node the largest counts, as a lower bound of the link.
/// Pure; not thread-safe. Bounds: 4,096 connections, 1,024 nodes; further ones are not recorded.
class PassiveEstimator {
 public:
  /// Gives at most one sample per node and `interval`.
  explicit PassiveEstimator(Duration interval = std::chrono::seconds(1)) : interval_(interval) {}

  /// Records an observation. Each number that is not finite or is negative is ignored. Returns a
  /// sample when the node's interval is over.
  std::optional<PassiveSample> Observe(const PathKey& path, const std::string& node,
                                       const PathObservation& observation, TimePoint now);
  /// Drops everything from `observer`, which is gone.
  void Forget(const std::string& observer);
  size_t connection_count() const { return connections_.size(); }

 private:
  struct Connection {
    ExponentialEstimate rtt{0.25};
    ExponentialEstimate bandwidth{0.25};
    PathObservation last;
    bool has_last = false;
  };
  struct Window {
    TimePoint emitted{};
    bool emitted_once = false;
    double rtt_min_s = 0;
    double rtt_deviation_s = 0;
    double bandwidth_bytes_per_s = 0;
    double bandwidth_deviation_bytes_per_s = 0;
    double used_bytes_per_s = 0;  // from counters; application-limited
    uint32_t samples = 0;
  };
  void AddRtt(const PathObservation& observation, Connection& connection, Window& window);
  void AddBandwidth(const PathObservation& observation, Connection& connection, Window& window);

  const Duration interval_;
  std::map<PathKey, Connection> connections_;
  std::map<std::string, Window> windows_;
};

}  // namespace weir::agent
