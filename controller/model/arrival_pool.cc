// SPDX-License-Identifier: Apache-2.0
// See arrival_pool.h.

#include "controller/model/arrival_pool.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weir {
namespace {

constexpr double kSlownessQuantile = 0.3;  // of the samples' slowness, weighted by precision
constexpr double kPrecisionMax = 0.2;  // deviation: no few samples outweigh those of other steps
constexpr double kAgreement = 0.3;     // logarithm: samples that agree with the quantile
constexpr double kIndependentSamplesMax =
    4;  // more samples of the same moments share their disturbances
constexpr double kSharedDeviation = 0.06;  // deviation of what all samples share
constexpr double kLonelyDeviation = 0.4;   // deviation if no sample agreed
constexpr double kStillHolds = 0.15;       // share of the samples since a change that deny it
constexpr double kPrecise = 0.18;
constexpr int kPreciseSamplesMin = 2;        // near a slower estimate, or it is not believed
constexpr double kUsableDeviation = 0.8;     // of an estimate that is worth one
constexpr double kSlowerHostDeviations = 3;  // deviations of a host from all of them
constexpr const char* kArrivalMethod = "arrivals";

}  // namespace

double ArrivalPool::WeightOf(const Sample& one) {
  return 1 / (one.deviation * one.deviation + kPrecisionMax * kPrecisionMax);
}

void ArrivalPool::Add(double now_s, const std::string& host, double bytes_per_s, double deviation,
                      bool steady) {
  if (!(bytes_per_s > 0) || !std::isfinite(bytes_per_s) || !(deviation > 0)) return;
  if (steady) hosts_[host].AddBandwidth(now_s, bytes_per_s, deviation, kArrivalMethod);
  if (current_.size() < kSamplesMax) current_.push_back({now_s, std::log(bytes_per_s), deviation});
}

void ArrivalPool::AddProbe(double now_s, double bytes_per_s, double deviation,
                           const std::string& method) {
  if (all_.bandwidth_samples() > 0) all_.AddBandwidth(now_s, bytes_per_s, deviation, method);
}

bool ArrivalPool::EndStep(double now_s) {
  if (current_.empty()) return false;
  steps_.push_back(std::exchange(current_, {}));
  if (steps_.size() > kSteps) steps_.pop_front();
  return Learn(now_s);
}

bool ArrivalPool::Learn(double now_s) {
  std::vector<Sample> samples;
  for (const auto& step : steps_) samples.insert(samples.end(), step.begin(), step.end());
  if (samples.empty()) return false;
  // Fastest first; ties in any order say the same.
  std::sort(samples.begin(), samples.end(),
            [](const Sample& a, const Sample& b) { return a.log_rate > b.log_rate; });
  double total = 0, passed = 0;
  for (const Sample& one : samples) total += WeightOf(one);
  double log_rate = samples.back().log_rate;
  for (const Sample& one : samples) {
    passed += WeightOf(one);
    if (passed < kSlownessQuantile * total) continue;
    log_rate = one.log_rate;
    break;
  }
  double near = 0, count = 0;
  int precise = 0;
  for (const Sample& one : samples) {
    if (std::fabs(one.log_rate - log_rate) > kAgreement) continue;
    near += WeightOf(one);
    ++count;
    precise += one.deviation <= kPrecise ? 1 : 0;
  }
  const double each = std::sqrt(count / near) / std::sqrt(std::min(count, kIndependentSamplesMax));
  const double deviation =
      std::hypot(std::hypot(kSharedDeviation, each), kLonelyDeviation * (1 - near / total));
  // If hosts stall for longer than payloads take, most trains look slow although the link is not. A
  // slow link stretches trains enough to make them precise; without precise trains, the times of
  // collectives have to show that the link became slower.
  const std::optional<Measured> before = all_.Bandwidth(now_s);
  const bool slower = before.has_value() && log_rate < std::log(before->value) - kAgreement;
  if (slower && precise < kPreciseSamplesMin) return false;
  if (!all_.AddBandwidth(now_s, std::exp(log_rate), deviation, kArrivalMethod)) return false;
  all_ = LinkEstimator();  // what these samples say knows more of the new state than those before
  all_.AddBandwidth(now_s, std::exp(log_rate), deviation, kArrivalMethod);
  return true;
}

// Collectives of busy hosts are slow, too, but a link that became slow lets nothing pass as before.
bool ArrivalPool::StillHolds(double until_s, bool another_way) const {
  const std::optional<Measured> estimate = all_.Bandwidth(until_s);
  if (!estimate.has_value()) return false;
  double near = 0, total = 0;
  for (const auto& step : steps_) {
    for (const Sample& one : step) {
      if (one.at_s <= until_s) continue;
      total += WeightOf(one);
      if (std::fabs(one.log_rate - std::log(estimate->value)) < kAgreement) near += WeightOf(one);
    }
  }
  return total > 0 ? near >= kStillHolds * total : another_way;
}

void ArrivalPool::ForgetUpTo(double until_s, bool another_way) {
  if (StillHolds(until_s, another_way)) return;
  const auto old = [until_s](const Sample& one) { return one.at_s <= until_s; };
  std::erase_if(current_, old);
  for (auto& step : steps_) std::erase_if(step, old);
  std::erase_if(steps_, [](const auto& step) { return step.empty(); });
  double newest_s = until_s;
  for (const auto& step : steps_) newest_s = std::max(newest_s, step.back().at_s);
  all_ = LinkEstimator();
  Learn(newest_s);
  for (auto& [name, host] : hosts_) host.Unconfirm();
}

std::optional<Measured> ArrivalPool::Bandwidth(double now_s) const {
  const std::optional<Measured> all = all_.Bandwidth(now_s);
  if (!all.has_value() || all->deviation > kUsableDeviation * all->value) return std::nullopt;
  Measured slowest = *all;
  for (const auto& [name, host] : hosts_) {
    const auto one = host.Bandwidth(now_s);
    if (!one.has_value() || host.bandwidth_windows() < 2 || host.in_doubt()) continue;
    const double joint = std::hypot(one->deviation / one->value, all->deviation / all->value);
    const bool slower = std::log(all->value / one->value) > kSlowerHostDeviations * joint;
    if (slower && one->value < slowest.value) slowest = *one;
  }
  return slowest;
}

}  // namespace weir
