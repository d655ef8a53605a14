// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/passive.h"

#include <algorithm>
#include <cmath>

namespace weir::agent {
namespace {

constexpr size_t kConnectionsMax = 4096;
constexpr size_t kNodesMax = 1024;
// Below these limits, a rate from counters depends on the application more than on the link.
constexpr uint64_t kCounterBytesMin = 256 * 1024;
constexpr double kCounterBusyMin_s = 0.02;

bool IsPositive(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

void ExponentialEstimate::Add(double value) {
  if (samples_++ == 0) {
    mean_ = value;
    return;
  }
  // West's incremental algorithm for exponential weights.
  const double difference = value - mean_;
  const double increment = weight_ * difference;
  mean_ += increment;
  variance_ = (1 - weight_) * (variance_ + difference * increment);
}

double ExponentialEstimate::deviation() const { return std::sqrt(std::max(variance_, 0.0)); }

std::optional<PassiveSample> PassiveEstimator::Observe(const PathKey& path, const std::string& node,
                                                       const PathObservation& observation,
                                                       TimePoint now) {
  if (!connections_.contains(path) && connections_.size() >= kConnectionsMax) return std::nullopt;
  if (!windows_.contains(node) && windows_.size() >= kNodesMax) return std::nullopt;
  Connection& connection = connections_[path];
  Window& window = windows_[node];
  AddRtt(observation, connection, window);
  AddBandwidth(observation, connection, window);
  connection.last = observation;
  connection.has_last = true;
  ++window.samples;

  if (window.emitted_once && now - window.emitted < interval_) return std::nullopt;
  PassiveSample sample;
  sample.node = node;
  sample.rtt_s = window.rtt_min_s;
  sample.rtt_deviation_s = window.rtt_deviation_s;
  sample.samples = window.samples;
  if (window.bandwidth_bytes_per_s > 0) {
    sample.bandwidth_bytes_per_s = window.bandwidth_bytes_per_s;
    sample.bandwidth_deviation_bytes_per_s = window.bandwidth_deviation_bytes_per_s;
  } else if (window.used_bytes_per_s > 0) {
    sample.bandwidth_bytes_per_s = window.used_bytes_per_s;
    sample.bandwidth_deviation_bytes_per_s = 0.5 * window.used_bytes_per_s;
    sample.application_limited = true;
  }
  window = Window{};
  window.emitted = now;
  window.emitted_once = true;
  if (sample.rtt_s == 0 && sample.bandwidth_bytes_per_s == 0) return std::nullopt;
  return sample;
}

void PassiveEstimator::AddRtt(const PathObservation& observation, Connection& connection,
                              Window& window) {
  if (!IsPositive(observation.rtt_s)) return;
  connection.rtt.Add(observation.rtt_s);
  if (window.rtt_min_s == 0 || observation.rtt_s < window.rtt_min_s) {
    window.rtt_min_s = observation.rtt_s;
    window.rtt_deviation_s = std::max(connection.rtt.deviation(), 0.05 * observation.rtt_s);
  }
}

void PassiveEstimator::AddBandwidth(const PathObservation& observation, Connection& connection,
                                    Window& window) {
  if (!observation.application_limited && IsPositive(observation.delivery_rate_bytes_per_s)) {
    connection.bandwidth.Add(observation.delivery_rate_bytes_per_s);
    const double mean = connection.bandwidth.mean();
    if (mean > window.bandwidth_bytes_per_s) {
      window.bandwidth_bytes_per_s = mean;
      window.bandwidth_deviation_bytes_per_s =
          std::max(connection.bandwidth.deviation(), 0.05 * mean);
    }
    return;
  }
  const PathObservation& last = connection.last;
  // Counters that have decreased belong to a new connection.
  if (!connection.has_last || observation.bytes_acked < last.bytes_acked ||
      observation.busy_s < last.busy_s) {
    return;
  }
  const uint64_t bytes = observation.bytes_acked - last.bytes_acked;
  const double busy = (observation.busy_s - last.busy_s) -
                      (observation.receive_window_limited_s - last.receive_window_limited_s) -
                      (observation.send_buffer_limited_s - last.send_buffer_limited_s);
  if (bytes < kCounterBytesMin || !std::isfinite(busy) || busy < kCounterBusyMin_s) return;
  window.used_bytes_per_s = std::max(window.used_bytes_per_s, static_cast<double>(bytes) / busy);
}

void PassiveEstimator::Forget(const std::string& observer) {
  std::erase_if(connections_, [&](const auto& entry) { return entry.first.observer == observer; });
}

}  // namespace weir::agent
