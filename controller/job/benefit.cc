// SPDX-License-Identifier: Apache-2.0
#include "controller/job/benefit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace weir {
namespace {

constexpr double kStepSpread = 0.1;     // of the logarithm of one dense step's time, at least
constexpr double kWeightMax = 16;       // measurements that count
constexpr double kDriftPerHour = 0.08;  // of the logarithm, as one deviation
constexpr uint64_t kMeasuredStepsMin = 2;
// Eleven equally likely values of a standard normal: its quantiles at 1/22, 3/22, ...
constexpr double kNormal[] = {-1.6906, -1.0968, -0.7479, -0.4728, -0.2299, 0,
                              0.2299,  0.4728,  0.7479,  1.0968,  1.6906};

std::string Percent(double share) {
  char text[32];
  const double percent = 100 * share;
  std::snprintf(text, sizeof(text),
                std::fabs(percent) < 0.95 && percent != 0 ? "%.1f %%" : "%.0f %%", percent);
  return text;
}

double HalfWidth(const Benefit& of) {
  return std::max(of.saved_share_high - of.saved_share, of.saved_share - of.saved_share_low);
}

std::string Signed(const Benefit& of, double sign) {
  return Percent(sign * of.saved_share) + " +- " + Percent(HalfWidth(of));
}

/// The value below which `share` of the weight lies, of values in ascending order.
double Quantile(const std::vector<std::pair<double, double>>& values, double share) {
  double below = 0, total = 0;
  for (const auto& [value, weight] : values) total += weight;
  for (const auto& [value, weight] : values) {
    below += weight;
    if (below >= share * total) return value;
  }
  return values.back().first;
}

}  // namespace

std::string BenefitText(const Benefit& benefit) {
  std::string text;
  switch (benefit.verdict) {
    case BenefitVerdict::kUnknown:
      return "not compared with dense yet";
    case BenefitVerdict::kDense:
      return "runs dense";
    case BenefitVerdict::kSaves:
      text = "saves " + Signed(benefit, 1) + " of the time";
      break;
    case BenefitVerdict::kCosts:
      text = "costs " + Signed(benefit, -1) + " of the time";
      break;
    case BenefitVerdict::kUnclear:
      text = "saves nothing that is certain: " + Signed(benefit, 1) + " of the time";
      break;
  }
  if (benefit.basis == BenefitBasis::kPredicted) text += ", dense predicted";
  return text;
}

void DenseCalibration::Add(double measured_s, double predicted_s, double now_s, uint64_t steps) {
  if (!(measured_s > 0) || !(predicted_s > 0) || steps == 0) return;
  const double ratio = std::log(measured_s / predicted_s);
  const double count = static_cast<double>(std::min<uint64_t>(steps, 8));
  weight_ = std::min(weight_ + count, kWeightMax);
  const double share = count / weight_;
  const double off = ratio - mean_;
  mean_ += share * off;
  spread_ += share * (off * off * (1 - share) - spread_);
  steps_ += steps;
  newest_s_ = now_s;
}

Measured DenseCalibration::LogRatio(double now_s) const {
  const double prior = kPriorDeviation * kPriorDeviation;
  if (weight_ <= 0) return {0, kPriorDeviation, 0};
  const double age_s = std::max(0.0, now_s - newest_s_);
  const double drift = kDriftPerHour * kDriftPerHour * age_s / 3600;
  const double noise = std::max(spread_, kStepSpread * kStepSpread) / weight_ + drift;
  // Measurement and prediction, each by what it is worth.
  const double share = prior / (prior + noise);
  return {share * mean_, std::sqrt(share * noise), age_s};
}

void BenefitLedger::Add(const ComparedStep& step) {
  if (!(step.step_s > 0) || !(step.predicted_dense_s > 0)) return;
  newest_predicted_s_ = step.predicted_dense_s;
  if (step.check) checks_s_ += step.step_s;
  if (step.dense) {
    dense_s_ += step.step_s;
    return;
  }
  compressed_s_ += step.step_s;
  predicted_s_ += step.predicted_dense_s;
  const double factor = std::pow(std::clamp(step.gain, 1e-3, 1.0), kExponentStep);
  double due = step.predicted_dense_s;
  for (double& sum : due_s_) {
    sum += due;
    due *= factor;
  }
}

Benefit BenefitLedger::Get(const ExponentBelief& belief, const Measured& log_ratio,
                           uint64_t measured_steps) const {
  Benefit out;
  const double ratio = std::exp(log_ratio.value);
  out.compared_s = total_s();
  out.dense_step_s = newest_predicted_s_ * ratio;
  out.dense_step_deviation_s = out.dense_step_s * log_ratio.deviation;
  out.measured_steps = measured_steps;
  if (measured_steps >= kMeasuredStepsMin) out.basis = BenefitBasis::kMeasured;
  if (!(total_s() > 0)) return out;
  out.dense_checks_share = checks_s_ / total_s();
  if (!(compressed_s_ > 0)) {
    out.verdict = BenefitVerdict::kDense;
    return out;
  }
  std::vector<std::pair<double, double>> shares;
  double mean = 0, dense_s = 0;
  for (int i = 0; i < kExponents; ++i) {
    const double likely = belief.weights[static_cast<size_t>(i)];
    if (likely <= 0) continue;
    for (const double z : kNormal) {
      const double due_s = due_s_[static_cast<size_t>(i)];
      const double dense = dense_s_ + due_s * std::exp(log_ratio.value + z * log_ratio.deviation);
      const double share = 1 - total_s() / dense;
      shares.emplace_back(share, likely);
      mean += likely * share;
      dense_s += likely * dense;
    }
  }
  double weights = 0;
  for (const auto& entry : shares) weights += entry.second;
  std::sort(shares.begin(), shares.end());
  out.saved_share = mean / weights;
  out.saved_share_low = std::min(Quantile(shares, 0.05), out.saved_share);
  out.saved_share_high = std::max(Quantile(shares, 0.95), out.saved_share);
  out.saved_s = dense_s / weights - total_s();
  out.step_saved_share = 1 - total_s() / (dense_s_ + ratio * predicted_s_);
  out.verdict = out.saved_share_low > 0    ? BenefitVerdict::kSaves
                : out.saved_share_high < 0 ? BenefitVerdict::kCosts
                                           : BenefitVerdict::kUnclear;
  return out;
}

}  // namespace weir
