// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs the probes that the controller schedules, one at a time, each with a deadline.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"
#include "weir/v1/agent.pb.h"

namespace weir::agent {

enum class ProbeMethod { kIperf, kRoute };

/// Parses "iperf3" or "traceroute"; kNotFound lists them.
StatusOr<ProbeMethod> ParseProbeMethod(std::string_view name);
/// The name that ParseProbeMethod accepts.
std::string Name(ProbeMethod method);

struct ProbeTask {
  std::string id;
  std::string node;
  ProbeMethod method = ProbeMethod::kIperf;
  SocketAddress probe_address;  // address of the node's echo responder
  uint16_t iperf_port = 0;
  uint64_t bytes_max = 0;  // already taken from the budget
  TimePoint deadline{};
};

/// Thread "weir-probe". Methods are thread-safe.
class ProbeRunner {
 public:
  struct Options {
    std::string helper_program;
    uint64_t seed = 0;  // for nonces
  };
  /// `done` is called on the runner's thread, once for every task that was started or whose time
  /// ran out in the queue, but not for discarded ones. It must not wait.
  ProbeRunner(Options options, std::function<void(const ProbeTask&, v1::ProbeResult)> done,
              const Clock& clock);
  /// Stops the running probe and joins, within 0.5 s.
  ~ProbeRunner();
  ProbeRunner(const ProbeRunner&) = delete;
  ProbeRunner& operator=(const ProbeRunner&) = delete;

  /// kResourceExhausted when 8 tasks are waiting already.
  Status Enqueue(ProbeTask task);
  /// Stops the running probe and discards the waiting ones, because the controller that asked for
  /// them is gone. Returns the number of bytes that the discarded ones had been granted.
  uint64_t DiscardAll();

 private:
  void Run(const std::stop_token& stop);
  v1::ProbeResult Execute(const ProbeTask& task, const std::stop_token& stop);

  const Options options_;
  const std::function<void(const ProbeTask&, v1::ProbeResult)> done_;
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<ProbeTask> waiting_;
  std::stop_source running_;
  uint64_t next_nonce_;
  std::jthread thread_;
};

}  // namespace weir::agent
