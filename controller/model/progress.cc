// SPDX-License-Identifier: Apache-2.0
// See progress.h.

#include "controller/model/progress.h"

#include <algorithm>
#include <cmath>

#include "controller/model/deterministic_math.h"

namespace weir {
namespace {

// Variance of the slope's change while the clock grows e-fold, in units of the noise.
constexpr std::array<double, ProgressModel::kDrifts> kDriftRates = {0.1, 3, 100, 3000, 1e5};
constexpr double kClockStart = 20;      // steps before the first, so that logarithms begin mildly
constexpr double kSlopeVariance = 1e4;  // before any loss, in units of the noise
constexpr double kNoiseShare = 0.05;    // of the first loss: the noise before any other
constexpr double kDegreesMin = 4, kDegreesMax = 200;
constexpr uint64_t kWarmUpLosses = 10;  // that say nothing about p
constexpr double kOutlier = 16;         // squared deviations
constexpr int kOutliersMax = 5;         // in a row; then the level has changed
constexpr double kSharedByDrifts =
    0.04;                            // of a filter's likelihood with the other drifts, each time
constexpr uint64_t kShareEvery = 4;  // losses
constexpr double kMemory = 1 - 1.0 / 5000;
constexpr double kGainMin = 1e-3, kGainNoticeable = 0.01;
constexpr double kSmoothing = 0.05;
constexpr double kGainSmoothing = 0.02;  // a gain shows in losses after some 50 steps
constexpr uint64_t kPlanLossesMin = 20;
constexpr uint64_t kFrozenLossesMax = 200;
// Those that drift faster follow changes, and say nothing about losses hundreds of steps ahead.
constexpr int kForecastDrifts = 3;
constexpr double kLogLikelihoodMin = -50;

double ExponentOf(int i) { return kExponentStep * i; }

/// Logarithm of 1 + x for x >= 0: most of a loss's cost. The series is off by less than 1e-6.
double LogOnePlus(double x) {
  if (x > 0.1) return DetLog(1 + x);
  return x * (1 - x * (1.0 / 2 - x * (1.0 / 3 - x * (1.0 / 4 - x / 5))));
}

template <size_t N>
double LogSumExp(const std::array<double, N>& values) {
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += DetExp(value - largest);
  return largest + DetLog(sum);
}

}  // namespace

double ExponentBelief::Quantile(double share) const {
  double below = 0;
  for (int i = 0; i < kExponents; ++i) {
    below += weights[i];
    if (below >= share) return ExponentOf(i);
  }
  return ExponentOf(kExponents - 1);
}

double ProgressCurve::At(double gain) const {
  gain = std::clamp(gain, 0.0, 1.0);
  if (gain >= gain_seen || exponent >= prior) return DetPow(gain, exponent);
  return DetPow(gain_seen, exponent) * DetPow(gain / gain_seen, prior);
}

ExponentBelief BeliefOf(const std::vector<double>& log_likelihood, double prior,
                        double prior_deviation) {
  ExponentBelief belief;
  if (!(prior_deviation > 0)) {
    const int nearest =
        std::clamp(static_cast<int>(prior / kExponentStep + 0.5), 0, kExponents - 1);
    belief.weights[nearest] = 1;
    belief.mean = prior;
    return belief;
  }
  const bool learnt = log_likelihood.size() == kExponents;
  std::array<double, kExponents> log_weights{};
  for (int i = 0; i < kExponents; ++i) {
    const double z = (ExponentOf(i) - prior) / prior_deviation;
    log_weights[i] = -0.5 * z * z;
    if (learnt) log_weights[i] += log_likelihood[i];
  }
  const double total = LogSumExp(log_weights);
  double mean = 0, square = 0;
  for (int i = 0; i < kExponents; ++i) {
    belief.weights[i] = DetExp(log_weights[i] - total);
    mean += belief.weights[i] * ExponentOf(i);
    square += belief.weights[i] * ExponentOf(i) * ExponentOf(i);
  }
  belief.mean = learnt ? mean : prior;
  // The grid itself is uncertain by the width of a cell.
  const double cell = kExponentStep * kExponentStep / 12;
  belief.deviation = DetSqrt(std::max(0.0, square - mean * mean) + cell);
  return belief;
}

void ProgressModel::Start(double loss) {
  Filter filter;
  filter.level = loss;
  filter.level_variance = 1;
  filter.slope_variance = kSlopeVariance;
  const double noise = std::max(kNoiseShare * std::fabs(loss), 1e-9);
  filter.noise = noise * noise;
  filters_.fill(filter);
  clocks_.fill(kClockStart);
  degrees_ = kDegreesMin;
}

bool ProgressModel::Update(Filter* filter, double advance, double drift, double loss) const {
  Filter& f = *filter;
  f.level += f.slope * advance;
  f.level_variance += advance * (2 * f.covariance + advance * f.slope_variance);
  f.covariance += advance * f.slope_variance;
  f.slope_variance += drift * advance;
  const double spread = f.level_variance + 1;
  const double error = loss - f.level;
  const double square = error * error / (spread * f.noise);
  const double counted = std::min(square, kOutlier);
  if (losses_ > kWarmUpLosses) {
    f.log_likelihood = kMemory * f.log_likelihood -
                       0.5 * (degrees_ + 1) * LogOnePlus(counted / degrees_) -
                       0.5 * DetLog(spread * f.noise);
  }
  f.noise *= 1 + (counted - 1) / degrees_;
  if (square > kOutlier && losses_ > kWarmUpLosses) return false;
  const double level_weight = f.level_variance / spread, slope_weight = f.covariance / spread;
  f.level += level_weight * error;
  f.slope += slope_weight * error;
  f.slope_variance -= slope_weight * f.covariance;
  f.covariance -= level_weight * f.covariance;
  f.level_variance -= level_weight * f.level_variance;
  return true;
}

void ProgressModel::Add(double gain, std::optional<double> loss) {
  if (!std::isfinite(gain)) return;
  gain = std::clamp(gain, kGainMin, 1.0);
  if (loss.has_value() && !std::isfinite(*loss)) loss.reset();
  if (losses_ == 0 && !loss.has_value()) return;
  if (losses_ == 0) {
    Start(*loss);
    reference_gain_ = gain;
  }
  if (loss.has_value()) {
    Learn(*loss);
    smoothed_gain_ += kGainSmoothing * (gain - smoothed_gain_);
    gain_seen_ = std::min(gain_seen_, smoothed_gain_);
  }
  Advance(gain);
}

void ProgressModel::Advance(double gain) {
  // Steps of the first gain move all clocks alike, so that the curve's bend says nothing about p.
  const double relative = DetLog(gain / reference_gain_);
  informed_ = informed_ || std::fabs(relative) > kGainNoticeable;
  const double ratio = DetExp(kExponentStep * relative);
  double progress = 1;
  for (int i = 0; i < kExponents; ++i, progress *= ratio) {
    advances_[i] += LogOnePlus(progress / clocks_[i]);
    clocks_[i] += progress;
  }
}

void ProgressModel::Learn(double loss) {
  ++losses_;
  int accepted = 0;
  for (int d = 0; d < kDrifts; ++d) {
    for (int i = 0; i < kExponents; ++i) {
      accepted += Update(&filters_[d * kExponents + i], advances_[i], kDriftRates[d], loss);
    }
  }
  updates_ += kFilters;
  degrees_ = std::min(degrees_ + 1, kDegreesMax);
  outliers_ = 2 * accepted < kFilters ? outliers_ + 1 : 0;
  if (outliers_ >= kOutliersMax) {
    // Another level, as after a change of the learning rate or the data: the slope stays.
    for (Filter& filter : filters_) {
      filter.level = loss;
      filter.level_variance = 1;
      filter.covariance = 0;
    }
    outliers_ = 0;
  }
  CompareWithFrozen(loss);
  advances_.fill(0);
  RenewFrozen();
  if (losses_ % kShareEvery == 0) ShareLikelihood();
}

// The drift may change at any loss, as with the learning rate: every filter hands a little of its
// likelihood to those of the same exponent, so that another drift can take over soon.
void ProgressModel::ShareLikelihood() {
  double most = -1e300;
  for (int i = 0; i < kExponents; ++i) {
    std::array<double, kDrifts> of{};
    for (int d = 0; d < kDrifts; ++d) of[d] = filters_[d * kExponents + i].log_likelihood;
    const double total = LogSumExp(of);
    most = std::max(most, total);
    for (int d = 0; d < kDrifts; ++d) {
      double& own = filters_[d * kExponents + i].log_likelihood;
      own = total + DetLog((1 - kSharedByDrifts) * DetExp(own - total) + kSharedByDrifts / kDrifts);
    }
  }
  for (Filter& filter : filters_) filter.log_likelihood -= most;
}

std::vector<double> ProgressModel::LogLikelihood() const {
  if (!informed_ || losses_ <= kWarmUpLosses) return {};
  std::vector<double> out(kExponents);
  for (int i = 0; i < kExponents; ++i) {
    std::array<double, kDrifts> of{};
    for (int d = 0; d < kDrifts; ++d) of[d] = filters_[d * kExponents + i].log_likelihood;
    out[i] = LogSumExp(of);
  }
  const double most = *std::max_element(out.begin(), out.end());
  for (double& value : out) {
    value = std::round(std::max(value - most, kLogLikelihoodMin) * 1000) / 1000;
  }
  return out;
}

size_t ProgressModel::LikeliestDrift() const {
  size_t likeliest = 0;
  double best = 0;
  for (int d = 0; d < kForecastDrifts; ++d) {
    std::array<double, kExponents> of{};
    for (int i = 0; i < kExponents; ++i) of[i] = filters_[d * kExponents + i].log_likelihood;
    const double sum = LogSumExp(of);
    if (d > 0 && sum <= best) continue;
    best = sum;
    likeliest = static_cast<size_t>(d);
  }
  return likeliest;
}

void ProgressModel::BeginPlan() {
  frozen_.reset();
  if (losses_ >= kWarmUpLosses + kPlanLossesMin) Freeze();
}

// While losses keep up with the curve, the comparison is renewed now and then, because a fitted
// curve predicts well for a limited time only.
// The first begins as soon as there is a curve, since the first plan has none to begin with.
void ProgressModel::RenewFrozen() {
  if (losses_ < kWarmUpLosses + kPlanLossesMin) return;
  if (frozen_.has_value() && frozen_->losses < kFrozenLossesMax) return;
  if (frozen_.has_value()) {
    const std::vector<double> likely = LogLikelihood();
    const auto best = std::max_element(likely.begin(), likely.end()) - likely.begin();
    const auto behind = BehindCurve(likely.empty() ? 1 : ExponentOf(static_cast<int>(best)));
    if (behind.has_value() && behind->loss > behind->deviation) return;
  }
  Freeze();
}

void ProgressModel::Freeze() {
  const size_t drift = LikeliestDrift();
  Frozen& frozen = frozen_.emplace(Frozen{});
  std::copy_n(filters_.begin() + static_cast<std::ptrdiff_t>(drift * kExponents), kExponents,
              frozen.filters.begin());
  // A loss that rises is no progress to be expected, however well it was predicted of late.
  for (Filter& filter : frozen.filters) filter.slope = std::min(filter.slope, 0.0);
  frozen.clocks = clocks_;
  frozen.drift = kDriftRates[drift];
}

void ProgressModel::CompareWithFrozen(double loss) {
  if (!frozen_.has_value()) return;
  for (int i = 0; i < kExponents; ++i) {
    const Filter& filter = frozen_->filters[i];
    const double curve = filter.level + filter.slope * DetLog(clocks_[i] / frozen_->clocks[i]);
    double& residual = frozen_->residuals[i];
    const double seen = loss - curve;
    residual = frozen_->losses == 0 ? seen : residual + kSmoothing * (seen - residual);
  }
  ++frozen_->losses;
}

std::optional<ProgressModel::Behind> ProgressModel::BehindCurve(double exponent) const {
  if (!frozen_.has_value() || frozen_->losses < kPlanLossesMin) return std::nullopt;
  const int i = std::clamp(static_cast<int>(exponent / kExponentStep + 0.5), 0, kExponents - 1);
  const Filter& filter = frozen_->filters[i];
  const double advance = DetLog(clocks_[i] / frozen_->clocks[i]);
  const double variance = filter.level_variance + 2 * advance * filter.covariance +
                          advance * advance * filter.slope_variance +
                          frozen_->drift * advance * advance * advance / 3 +
                          1;  // a lag within the noise of one loss is none
  Behind behind;
  behind.loss = frozen_->residuals[i];
  // Curves bend: the slope may change by twice its size while the clock grows e-fold.
  const double bend = filter.slope * advance * advance;
  behind.deviation = DetSqrt(std::max(0.0, variance) * filter.noise + bend * bend);
  behind.curve = filter.level + filter.slope * advance;
  return behind;
}

}  // namespace weir
