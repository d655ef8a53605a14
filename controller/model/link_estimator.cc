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
// Samples of one link share errors that no number of them averages away: so much of their variance.
constexpr double kSharedVariance = 0.4;
constexpr double kLogVarianceMin = 0.03 * 0.03;
constexpr double kDoubtDeviations = 3;   // deviations
constexpr int kDoubtsMax = 3;            // in a row, on the same side
constexpr double kScatterWeight = 0.05;  // of the newest sample
constexpr double kDominates = 0.6;       // a sample of this weight decides alone
constexpr double kBoundDeviation = 0.4;  // a burst may pass faster than the link
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

void LinkEstimator::Restart(double now_s, double log_bandwidth, double variance, int windows) {
  log_bandwidth_ = log_bandwidth;
  variance_ = variance;
  windows_ = windows;
  window_since_s_ = now_s;
  has_bandwidth_ = true;
  bandwidth_at_s_ = now_s;
  doubt_.reset();
  shift_.Reset();
}

bool LinkEstimator::AddBandwidth(double now_s, double bytes_per_s, double log_deviation,
                                 const std::string& method) {
  if (!(bytes_per_s > 0) || !std::isfinite(bytes_per_s)) return false;
  const double sample = std::log(bytes_per_s);
  const double noise = std::max(log_deviation * log_deviation, 0.5 * scatter_ * scatter_);
  bandwidth_method_ = method;
  ++bandwidth_samples_;
  if (!has_bandwidth_) {
    Restart(now_s, sample, noise, 0);
    return false;
  }
  const double age_s = std::max(0.0, now_s - bandwidth_at_s_);
  const double aged = std::min(kLogVarianceMax, variance_ + kDriftPerSecond * age_s);
  const double error = sample - log_bandwidth_, expected = aged + noise;
  if (error * error > kDoubtDeviations * kDoubtDeviations * expected) {
    // Busy hosts make single samples slow, each in its own way; a link that changed repeats itself,
    // or at least never returns to what it was. What is in doubt does not become younger.
    const double apart = doubt_.has_value() ? std::fabs(sample - *doubt_) : 1e9;
    const bool same_side = doubt_.has_value() && (*doubt_ > log_bandwidth_) == (error > 0);
    doubts_ = same_side ? doubts_ + 1 : 1;
    if (apart > kDoubtDeviations * std::sqrt(2 * noise) && doubts_ < kDoubtsMax) {
      doubt_ = sample;
      return false;
    }
    Restart(now_s, 0.5 * (sample + *doubt_), std::max(noise, 0.25 * apart * apart), 1);
    return true;
  }
  bandwidth_at_s_ = now_s;
  variance_ = aged;
  doubt_.reset();
  scatter_ += kScatterWeight * (1.25 * std::fabs(error) - scatter_);
  if (shift_.Add(error / std::sqrt(expected)) != 0) {
    Restart(now_s, sample, noise, 0);
    return true;
  }
  const double weight = variance_ / expected;
  log_bandwidth_ += weight * error;
  const double floor = std::min(variance_, kSharedVariance * log_deviation * log_deviation);
  variance_ = std::max({kLogVarianceMin, floor, variance_ * (1 - weight)});
  if (weight > kDominates) {
    windows_ = 0;  // what confirmed the estimate has aged away
    window_since_s_ = now_s;
  } else if (windows_ == 0 || now_s - window_since_s_ >= kEvidenceWindowS) {
    ++windows_;
    window_since_s_ = now_s;
  }
  return false;
}

void LinkEstimator::AddLowerBound(double now_s, double bytes_per_s) {
  if (!(bytes_per_s > 0) || !std::isfinite(bytes_per_s)) return;
  while (!bounds_.empty() && bounds_.back().second <= bytes_per_s) bounds_.pop_back();
  bounds_.emplace_back(now_s, bytes_per_s);
  while (now_s - bounds_.front().first > kBoundWindowS) bounds_.pop_front();
  const bool contradicts =
      has_bandwidth_ &&
      std::log(bytes_per_s) > log_bandwidth_ + kDoubtDeviations * std::sqrt(variance_);
  if (contradicts) AddBandwidth(now_s, bytes_per_s, kBoundDeviation, bandwidth_method_);
}

double LinkEstimator::LowerBound(double now_s) const {
  for (const auto& [at_s, bytes_per_s] : bounds_) {
    if (now_s - at_s <= kBoundWindowS) return bytes_per_s;
  }
  return 0;
}

void LinkEstimator::ForgetRttBefore(double since_s) {
  std::erase_if(rtts_, [&](const RttSample& sample) { return sample.at_s < since_s; });
}

void LinkEstimator::ForgetBoundsBefore(double since_s) {
  std::erase_if(bounds_, [&](const auto& bound) { return bound.first < since_s; });
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
