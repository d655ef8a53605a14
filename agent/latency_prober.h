// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures the round-trip time to every other node, continuously and at low cost: a UDP echo burst
// to all of them, and TCP handshakes with one of them in turn.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "agent/measure/rtt.h"
#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/random.h"
#include "datapath/base/status.h"

namespace weir::agent {

struct LatencyTarget {
  std::string node;
  SocketAddress probe_address;
};

struct LatencyResult {
  std::string node;
  std::string method;  // "udp_echo" or "tcp_connect"
  StatusOr<RttSummary> rtt;
};

/// Thread "weir-latency". Methods are thread-safe.
class LatencyProber {
 public:
  /// `report` is called on the prober's thread and must not wait. `seed` is for nonces and jitter.
  LatencyProber(std::function<void(LatencyResult)> report, uint64_t seed, const Clock& clock);
  /// Stops and joins, within 0.2 s.
  ~LatencyProber();
  LatencyProber(const LatencyProber&) = delete;
  LatencyProber& operator=(const LatencyProber&) = delete;

  /// Replaces the targets; the first round follows soon. `interval` is the time between rounds, at
  /// least 0.1 s, with jitter of 20 %; zero means 5 s.
  void SetTargets(std::vector<LatencyTarget> targets, Duration interval);
  /// While true no round starts, because an active probe fills the queues of this node.
  void SetPaused(bool paused);

 private:
  void Run(const std::stop_token& stop);
  void ProbeRound(const std::vector<LatencyTarget>& targets, const std::stop_token& stop);

  const std::function<void(LatencyResult)> report_;
  const Clock& clock_;
  Random random_;        // used only by the prober's thread
  size_t tcp_turn_ = 0;  // used only by the prober's thread
  std::mutex mutex_;     // std::mutex, because condition_variable_any waits on it with a stop token
  std::condition_variable_any changed_;
  std::vector<LatencyTarget> targets_;
  Duration interval_ = std::chrono::seconds(5);
  bool targets_changed_ = false;
  bool paused_ = false;
  std::jthread thread_;
};

}  // namespace weir::agent
