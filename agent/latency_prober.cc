// SPDX-License-Identifier: Apache-2.0
#include "agent/latency_prober.h"

#include <algorithm>
#include <utility>

#include "agent/measure/tcp_connect_rtt.h"
#include "agent/measure/udp_echo.h"

namespace weir::agent {
namespace {

constexpr Duration kIntervalMin = std::chrono::milliseconds(100);
constexpr Duration kIntervalDefault = std::chrono::seconds(5);

}  // namespace

LatencyProber::LatencyProber(std::function<void(LatencyResult)> report, uint64_t seed,
                             const Clock& clock)
    : report_(std::move(report)),
      clock_(clock),
      random_(seed),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

LatencyProber::~LatencyProber() {
  thread_.request_stop();
  thread_.join();
}

void LatencyProber::SetTargets(std::vector<LatencyTarget> targets, Duration interval) {
  const std::lock_guard lock(mutex_);
  targets_ = std::move(targets);
  interval_ = interval == Duration::zero() ? kIntervalDefault : std::max(interval, kIntervalMin);
  targets_changed_ = true;
  changed_.notify_all();
}

void LatencyProber::SetPaused(bool paused) {
  const std::lock_guard lock(mutex_);
  paused_ = paused;
  changed_.notify_all();
}

void LatencyProber::Run(const std::stop_token& stop) {
  NameThread("weir-latency");
  while (!stop.stop_requested()) {
    std::vector<LatencyTarget> targets;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !paused_ && !targets_.empty(); })) return;
      targets_changed_ = false;
      targets = targets_;
    }
    ProbeRound(targets, stop);
    std::unique_lock lock(mutex_);
    // Jitter keeps the agents of a cluster from probing in step.
    const auto pause = Duration(static_cast<int64_t>(static_cast<double>(interval_.count()) *
                                                     (0.8 + 0.4 * random_.Uniform())));
    changed_.wait_for(lock, stop, pause, [this] { return targets_changed_; });
  }
}

void LatencyProber::ProbeRound(const std::vector<LatencyTarget>& targets,
                               const std::stop_token& stop) {
  std::vector<SocketAddress> addresses;
  for (const LatencyTarget& target : targets) addresses.push_back(target.probe_address);
  UdpEchoOptions options;
  options.nonce = random_.Next();
  auto results = MeasureUdpEcho(addresses, options, clock_, stop);
  if (stop.stop_requested()) return;
  for (size_t i = 0; i < targets.size(); ++i) {
    report_(LatencyResult{targets[i].node, "udp_echo", std::move(results[i])});
  }
  const LatencyTarget& turn = targets[tcp_turn_++ % targets.size()];
  auto tcp = MeasureTcpConnect(turn.probe_address, TcpConnectOptions{}, clock_, stop);
  if (stop.stop_requested()) return;
  report_(LatencyResult{turn.node, "tcp_connect", std::move(tcp)});
}

}  // namespace weir::agent
