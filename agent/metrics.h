// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agent's /metrics. Labels are bounded: there is no label for a rank, a step or a pair of
// nodes. Links are shown as the minimum, median and maximum over the peers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/measure/gpus.h"
#include "agent/nccl_bridge.h"
#include "datapath/base/status.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::agent {

/// The values of the gauges, set together about once a second.
struct MetricsSnapshot {
  bool controller_connected = false;
  double controller_heartbeat_unix_s = 0;  // last message sent as a heartbeat; 0: none yet
  size_t ranks = 0;
  size_t unauthenticated_ranks = 0;
  size_t connections = 0;
  size_t peers = 0;
  uint64_t probe_budget_bytes = 0;
  std::optional<TlsHealth> tls;               // none for plain text
  std::vector<double> rtt_s;                  // newest per peer
  std::vector<double> loss_ratio;             // newest per peer
  std::vector<double> bandwidth_bytes_per_s;  // newest per peer
  // Counters, cumulative over the process.
  uint64_t controller_connections = 0;
  uint64_t offers = 0, acks = 0, nacks = 0, activations = 0, stale_answers = 0;
  uint64_t refused_connections = 0;
  uint64_t dropped_from_ranks = 0, dropped_to_controller = 0;
  uint64_t iperf_tests_served = 0;
  NcclSnapshot nccl;
  Gpus gpus;
};

/// Thread-safe.
class AgentMetrics {
 public:
  AgentMetrics(const std::string& node, const std::string& version);
  ~AgentMetrics();
  AgentMetrics(const AgentMetrics&) = delete;
  AgentMetrics& operator=(const AgentMetrics&) = delete;

  void Set(const MetricsSnapshot& snapshot);
  /// Counts a message of a rank. `kind` is the name of the field in the oneof.
  void CountRankMessage(const std::string& kind);
  /// Counts a burst of latency probes to one peer.
  void CountLatencyProbe(const std::string& method, bool ok);
  /// Counts a finished scheduled probe. `method` as in LinkSample.
  void CountProbe(const std::string& method, bool ok, uint64_t bytes, double seconds);

  /// The text of the page.
  std::string Text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace weir::agent
