// SPDX-License-Identifier: Apache-2.0
// See link_estimator.h.

#include "controller/model/link_estimator.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {
// A link's share drifts by about 3 % in a second, 16 % in half a minute.
constexpr double kDriftPerSecond = 0.03 * 0.03;
constexpr double kLogVarianceMax = 4;
// tcp_info counts only when no active probe was heard for so long.
constexpr double kActiveSilenceS = 10;
}  // namespace

bool LinkEstimator::Fresh(const RttSample& sample, double now_s) const {
  if (sample.loaded && now_s - last_active_s_ < kActiveSilenceS) return false;
  return now_s - sample.at_s <= kRttWindowS;
}

void LinkEstimator::AddRtt(double now_s, double rtt_s, const std::string& method) {
  if (!(rtt_s > 0) || !std::isfinite(rtt_s)) return;
  const bool loaded = method == "tcp_info";
  if (loaded && now_s - last_active_s_ < kActiveSilenceS) return;
  if (!loaded) last_active_s_ = now_s;
  rtts_.push_back({now_s, rtt_s, loaded});
  while (rtts_.size() > kRttSamplesMax) rtts_.pop_front();
  rtt_method_ = method;
  ++rtt_samples_;
}

void LinkEstimator::AddBandwidth(double now_s, double bytes_per_s, double log_deviation,
                                 const std::string& method) {
  if (!(bytes_per_s > 0) || !std::isfinite(bytes_per_s)) return;
  const double sample = std::log(bytes_per_s), noise = log_deviation * log_deviation;
  bandwidth_method_ = method;
  ++bandwidth_samples_;
  const double age_s = has_bandwidth_ ? std::max(0.0, now_s - bandwidth_at_s_) : 0;
  variance_ = std::min(kLogVarianceMax, variance_ + kDriftPerSecond * age_s);
  const double error = sample - log_bandwidth_;
  if (!has_bandwidth_ || error * error > 9 * (variance_ + noise)) {
    log_bandwidth_ = sample;
    variance_ = noise;
  } else {
    const double weight = variance_ / (variance_ + noise);
    log_bandwidth_ += weight * error;
    variance_ *= 1 - weight;
  }
  has_bandwidth_ = true;
  bandwidth_at_s_ = now_s;
}

void LinkEstimator::ForgetRttBefore(double since_s) {
  std::erase_if(rtts_, [&](const RttSample& sample) { return sample.at_s < since_s; });
}

void LinkEstimator::ForgetBandwidthBefore(double since_s) {
  if (bandwidth_at_s_ < since_s) has_bandwidth_ = false;
}

bool LinkEstimator::rtt_is_loaded(double now_s) const {
  return std::none_of(rtts_.begin(), rtts_.end(), [&](const RttSample& sample) {
    return !sample.loaded && Fresh(sample, now_s);
  });
}

std::optional<Measured> LinkEstimator::Rtt(double now_s) const {
  if (rtts_.empty()) return std::nullopt;
  double least = 1e18, most = 0, newest = 0;
  for (const RttSample& sample : rtts_) {
    if (!Fresh(sample, now_s)) continue;
    least = std::min(least, sample.rtt_s);
    most = std::max(most, sample.rtt_s);
    newest = sample.at_s;
  }
  if (most == 0) {  // nothing fresh: the last word stands, with its age
    least = most = rtts_.back().rtt_s;
    newest = rtts_.back().at_s;
  }
  return Measured{least, std::max(0.05 * least, 0.25 * (most - least)), now_s - newest};
}

std::optional<Measured> LinkEstimator::Bandwidth(double now_s) const {
  if (!has_bandwidth_) return std::nullopt;
  const double age_s = std::max(0.0, now_s - bandwidth_at_s_);
  const double variance = std::min(kLogVarianceMax, variance_ + kDriftPerSecond * age_s);
  const double value = std::exp(log_bandwidth_);
  return Measured{value, value * std::sqrt(variance), age_s};
}

}  // namespace weir
