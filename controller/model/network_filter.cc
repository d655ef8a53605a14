// SPDX-License-Identifier: Apache-2.0
// See network_filter.h.

#include "controller/model/network_filter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace weir {
namespace {

enum : size_t { kAlpha, kBeta, kGamma, kShared };
enum : size_t { kOverhead, kAlphaScale, kBetaScale, kPerCollective };

struct Prior {
  double value, log_deviation, drift_per_s, min, max;
};
// Drift: how far the logarithm wanders in one second (standard deviation).
constexpr std::array<Prior, kShared> kSharedPriors = {{
    {1e-3, 2.0, 0.02, 1e-6, 10},       // alpha
    {1e-8, 2.3, 0.03, 1e-12, 1e-2},    // beta
    {2e-10, 1.0, 0.005, 1e-12, 1e-7},  // gamma
}};
constexpr std::array<Prior, kPerCollective> kOwnPriors = {{
    {3e-4, 1.5, 0.03, 1e-6, 1},  // overhead
    {1, 0.2, 0.002, 0.3, 3},     // alpha_scale
    {1, 0.15, 0.002, 0.4, 2.5},  // beta_scale
}};
// Sums of callers may take another way than the job's own messages.
constexpr std::array<Prior, kPerCollective> kCallerPriors = {{
    {1e-4, 1.5, 0.03, 1e-6, 1},  // overhead
    {1, 1.0, 0.01, 1e-3, 1e2},   // alpha_scale
    {1, 1.0, 0.02, 1e-4, 1e2},   // beta_scale
}};
constexpr double kLogDeviationMax = 2.5;
constexpr double kNoiseMin = 0.04, kNoiseMax = 0.5;
constexpr double kClockNoiseS = 1e-4;  // scheduling noise that no relative error covers
// Buckets of one step share its disturbances: more than this many say nothing new.
constexpr double kIndependentSamples = 3;
constexpr double kInnovationHuber = 1.345;
constexpr double kSurprise = 2.5;  // deviations
constexpr double kStepMax = 0.25;  // e-folds of the observation per step of an update
constexpr int kStepsMax = 24;
// An aggregator a little slower than the network leaves some of the time to it: that bend is where
// the filter finds back to beta when the network becomes the slower one.
constexpr double kRateBend = 4;

const Prior& PriorOf(size_t state, const std::vector<CollectiveModel>& collectives) {
  if (state < kShared) return kSharedPriors[state];
  const size_t own = state - kShared;
  const bool by_caller = collectives[own / kPerCollective].by_caller;
  return (by_caller ? kCallerPriors : kOwnPriors)[own % kPerCollective];
}

}  // namespace

void NetworkFilter::SetCollectives(const std::vector<CollectiveModel>& collectives) {
  const std::vector<CollectiveModel> known = std::exchange(collectives_, collectives);
  const std::vector<double> mean = std::exchange(mean_, {});
  const std::vector<double> covariance = std::exchange(covariance_, {});
  const size_t size = std::exchange(size_, kShared + kPerCollective * collectives.size());
  std::vector<int> source(size_, -1);  // where each state comes from
  for (size_t i = 0; i < kShared && size > 0; ++i) source[i] = static_cast<int>(i);
  features_.clear();
  for (size_t c = 0; c < collectives.size(); ++c) {
    features_.push_back({FeaturesOf(collectives[c], world_, layout_),
                         FeaturesOf(collectives[c], world_, BetweenDevices(layout_))});
    for (size_t k = 0; k < known.size(); ++k) {
      if (known[k].name != collectives[c].name) continue;
      for (size_t i = 0; i < kPerCollective; ++i) {
        source[kShared + kPerCollective * c + i] =
            static_cast<int>(kShared + kPerCollective * k + i);
      }
    }
  }
  mean_.resize(size_);
  covariance_.assign(size_ * size_, 0);
  for (size_t i = 0; i < size_; ++i) {
    const Prior& prior = PriorOf(i, collectives_);
    mean_[i] = source[i] >= 0 ? mean[source[i]] : std::log(prior.value);
    P(i, i) = prior.log_deviation * prior.log_deviation;
  }
  for (size_t i = 0; i < size_; ++i) {
    for (size_t j = 0; j < size_; ++j) {
      if (source[i] >= 0 && source[j] >= 0) P(i, j) = covariance[source[i] * size + source[j]];
    }
  }
}

void NetworkFilter::SetLayout(const NodeLayout& layout) {
  layout_ = layout;
  for (size_t c = 0; c < features_.size(); ++c) {
    features_[c].cost = FeaturesOf(collectives_[c], world_, layout_);
    features_[c].by_devices = FeaturesOf(collectives_[c], world_, BetweenDevices(layout_));
  }
}

void NetworkFilter::SetRateMax(int index, double bytes_per_s) {
  if (index < 0 || index >= static_cast<int>(features_.size())) return;
  features_[index].byte_s_min =
      bytes_per_s > 0 ? std::min(1 / bytes_per_s, kSharedPriors[kBeta].max) : 0;
}

void NetworkFilter::Age(double seconds) {
  if (!(seconds > 0)) return;
  for (size_t i = 0; i < size_; ++i) {
    const Prior& prior = PriorOf(i, collectives_);
    // Values that belong to a collective's implementation never become more uncertain than at
    // first.
    const double limit = i < kShared ? kLogDeviationMax : prior.log_deviation;
    P(i, i) = std::max(P(i, i), std::min(limit * limit, P(i, i) + prior.drift_per_s *
                                                                      prior.drift_per_s * seconds));
  }
}

NetworkFilter::Terms NetworkFilter::TermsOf(const CollectiveSample& sample,
                                            const std::vector<double>& x) const {
  const Features& f = features_[sample.collective];
  const CollectiveFeatures& cost = sample.by_devices ? f.by_devices : f.cost;
  const size_t own = kShared + kPerCollective * sample.collective;
  Terms terms;
  terms.overhead = sample.rounds * std::exp(x[own + kOverhead]);
  const double alpha_scale = std::exp(x[own + kAlphaScale]);
  terms.latency = sample.rounds * cost.latency * alpha_scale * std::exp(x[kAlpha]);
  terms.within_latency = sample.rounds * cost.within_latency_s * alpha_scale;
  const double within = cost.floats_within ? sample.dense_bytes : sample.payload_bytes;
  terms.reduce = sample.rounds * cost.reduce * within * std::exp(x[kGamma]);
  const double beta = std::exp(x[kBeta]);
  const double beta_scale = std::exp(x[own + kBetaScale]);
  terms.bytes = (cost.payload * sample.payload_share * sample.payload_bytes / sample.speedup +
                 cost.index * sample.index_bytes + cost.dense * sample.dense_bytes) *
                beta_scale * std::max(beta, f.byte_s_min);
  terms.within_bytes = cost.within_s_per_byte * within * beta_scale;
  terms.beta_weight = 1 / (1 + std::pow(f.byte_s_min / beta, kRateBend));
  return terms;
}

void NetworkFilter::Gradient(const CollectiveSample& sample, const std::vector<double>& x,
                             std::vector<double>* gradient) const {
  const Terms terms = TermsOf(sample, x);
  const double sum = terms.Sum();
  const size_t own = kShared + kPerCollective * sample.collective;
  (*gradient)[kAlpha] = terms.latency / sum;
  (*gradient)[own + kAlphaScale] = (terms.latency + terms.within_latency) / sum;
  (*gradient)[own + kBetaScale] = (terms.bytes + terms.within_bytes) / sum;
  (*gradient)[kBeta] = terms.beta_weight * terms.bytes / sum;
  (*gradient)[kGamma] = terms.reduce / sum;
  (*gradient)[own + kOverhead] = terms.overhead / sum;
}

double NetworkFilter::Predict(const CollectiveSample& sample) const {
  return TermsOf(sample, mean_).Sum();
}

double NetworkFilter::BetaShare(const CollectiveSample& sample) const {
  const Terms terms = TermsOf(sample, mean_);
  return terms.beta_weight * terms.bytes / terms.Sum();
}

double NetworkFilter::LogVariance(const std::vector<CollectiveSample>& samples) const {
  std::vector<double> total(size_, 0.0), one(size_, 0.0);
  double sum = 0;
  for (const CollectiveSample& sample : samples) {
    std::fill(one.begin(), one.end(), 0.0);
    Gradient(sample, mean_, &one);
    const double seconds = Predict(sample);
    for (size_t i = 0; i < size_; ++i) total[i] += seconds * one[i];
    sum += seconds;
  }
  if (!(sum > 0)) return 0;
  double variance = 0;
  for (size_t i = 0; i < size_; ++i) {
    if (total[i] == 0) continue;
    for (size_t j = 0; j < size_; ++j) variance += total[i] * P(i, j) * total[j];
  }
  return std::max(0.0, variance / (sum * sum));
}

void NetworkFilter::Update(const std::vector<CollectiveSample>& samples, bool learns_beta,
                           bool callers_teach) {
  if (samples.empty()) return;
  const double correlation =
      std::max(1.0, static_cast<double>(samples.size()) / kIndependentSamples);
  double predicted = 0, measured = 0;
  for (const CollectiveSample& sample : samples) {
    predicted += Predict(sample);
    measured += sample.seconds;
  }
  // The noise level follows the error of whole steps, except for jumps: those are changes.
  const double error = std::fabs(std::log(measured / predicted));
  const double expected = std::sqrt(noise_ * noise_ + LogVariance(samples));
  if (error < 3 * expected) {
    noise_ = std::clamp(0.95 * noise_ + 0.05 * 1.25 * error, kNoiseMin, kNoiseMax);
  }
  for (const CollectiveSample& sample : samples) {
    const bool teaches = callers_teach || !by_caller(sample.collective);
    UpdateOne(sample, correlation, learns_beta, teaches);
  }
}

void NetworkFilter::UpdateOne(const CollectiveSample& sample, double correlation, bool learns_beta,
                              bool learns_others) {
  const size_t own = kShared + kPerCollective * static_cast<size_t>(sample.collective);
  // Other states count with their uncertainty, but keep it and their values.
  const auto taught = [=](size_t i) {
    return learns_others ? i != kBeta || learns_beta : i >= own && i < own + kPerCollective;
  };
  const double observed = std::log(sample.seconds);
  const double clock = kClockNoiseS / sample.seconds;
  double noise = (noise_ * noise_ + 0.01 + clock * clock) * correlation;
  std::vector<double> x = mean_, h(size_, 0.0), gain(size_, 0.0);
  double spread = 0;  // h P h
  const auto linearise = [&] {
    Gradient(sample, x, &h);
    std::fill(gain.begin(), gain.end(), 0.0);
    for (size_t j = 0; j < size_; ++j) {
      if (h[j] == 0) continue;
      for (size_t i = 0; i < size_; ++i) gain[i] += P(i, j) * h[j];
    }
    spread = 0;
    for (size_t i = 0; i < size_; ++i) spread += h[i] * gain[i];
  };
  linearise();
  const double innovation = observed - std::log(TermsOf(sample, x).Sum());
  const double scale = std::sqrt(spread + noise);
  if (std::fabs(innovation) > kInnovationHuber * scale)
    noise *= std::fabs(innovation) / (kInnovationHuber * scale);
  // The share of each term changes on the way, so the path is followed in small steps, each along
  // the gain that holds there. (Newton's iteration may jump to where another term explains
  // everything.)
  const int steps =
      std::clamp(static_cast<int>(std::ceil(std::fabs(innovation) / kStepMax)), 1, kStepsMax);
  for (int step = 0; step < steps; ++step) {
    const double part = innovation / steps / (spread + noise);
    for (size_t i = 0; i < size_; ++i) x[i] += taught(i) ? gain[i] * part : 0;
    linearise();
  }
  mean_ = x;
  for (size_t i = 0; i < size_; ++i) {
    for (size_t j = 0; j < size_; ++j) {
      if (taught(i) || taught(j)) P(i, j) -= gain[i] * gain[j] / (spread + noise);
    }
  }
  Clamp();
}

void NetworkFilter::ObserveState(size_t index, double value, double log_deviation) {
  const double error = std::log(value) - mean_[index];
  const double noise = log_deviation * log_deviation;
  if (error * error > kSurprise * kSurprise * (P(index, index) + noise)) {
    P(index, index) += 0.25 * error * error;
  }
  const double spread = P(index, index) + noise;
  std::vector<double> column(size_);
  for (size_t i = 0; i < size_; ++i) column[i] = P(i, index);
  for (size_t i = 0; i < size_; ++i) mean_[i] += column[i] / spread * error;
  for (size_t i = 0; i < size_; ++i) {
    for (size_t j = 0; j < size_; ++j) P(i, j) -= column[i] * column[j] / spread;
  }
  Clamp();
}

void NetworkFilter::ObserveAlpha(double seconds, double log_deviation) {
  if (size_ > 0 && seconds > 0) ObserveState(kAlpha, seconds, log_deviation);
}

void NetworkFilter::ObserveBandwidth(double bytes_per_s, double log_deviation) {
  if (size_ > 0 && bytes_per_s > 0) ObserveState(kBeta, 1 / bytes_per_s, log_deviation);
}

void NetworkFilter::PinBandwidth(double bytes_per_s, double log_deviation) {
  if (size_ == 0 || !(bytes_per_s > 0)) return;
  mean_[kBeta] = -std::log(bytes_per_s);
  for (size_t i = 0; i < size_; ++i) P(i, kBeta) = P(kBeta, i) = 0;
  P(kBeta, kBeta) = log_deviation * log_deviation;
  Clamp();
}

void NetworkFilter::Inflate(double alpha_log_deviation, double beta_log_deviation) {
  if (size_ == 0) return;
  P(kAlpha, kAlpha) += alpha_log_deviation * alpha_log_deviation;
  P(kBeta, kBeta) += beta_log_deviation * beta_log_deviation;
}

void NetworkFilter::Clamp() {
  for (size_t i = 0; i < size_; ++i) {
    const Prior& prior = PriorOf(i, collectives_);
    mean_[i] = std::clamp(mean_[i], std::log(prior.min), std::log(prior.max));
    P(i, i) = std::max(P(i, i), 1e-6);
  }
}

double NetworkFilter::alpha_s() const {
  return size_ > 0 ? std::exp(mean_[kAlpha]) : kSharedPriors[kAlpha].value;
}
double NetworkFilter::beta_s_per_byte() const {
  return size_ > 0 ? std::exp(mean_[kBeta]) : kSharedPriors[kBeta].value;
}
double NetworkFilter::gamma_s_per_byte() const {
  return size_ > 0 ? std::exp(mean_[kGamma]) : kSharedPriors[kGamma].value;
}
double NetworkFilter::alpha_log_deviation() const {
  return size_ > 0 ? std::sqrt(P(kAlpha, kAlpha)) : kSharedPriors[kAlpha].log_deviation;
}
double NetworkFilter::beta_log_deviation() const {
  return size_ > 0 ? std::sqrt(P(kBeta, kBeta)) : kSharedPriors[kBeta].log_deviation;
}

void NetworkFilter::Calibrate(int index, CollectiveModel* model) const {
  const size_t own = kShared + kPerCollective * index;
  model->overhead_s = std::exp(mean_[own + kOverhead]);
  model->alpha_scale = std::exp(mean_[own + kAlphaScale]);
  model->beta_scale = std::exp(mean_[own + kBetaScale]);
  model->gamma_scale = 1;
  // For a payload of one megabyte: what this collective's own terms leave open, and half the noise
  // of single steps, because a plan runs for many.
  CollectiveSample typical;
  typical.collective = index;
  typical.payload_bytes = typical.dense_bytes = 1e6;
  const Terms terms = TermsOf(typical, mean_);
  const double sum = terms.Sum();
  const double shares[kPerCollective] = {terms.overhead / sum,
                                         (terms.latency + terms.within_latency) / sum,
                                         (terms.bytes + terms.within_bytes) / sum};
  double variance = 0.25 * noise_ * noise_;
  for (size_t i = 0; i < kPerCollective; ++i)
    variance += shares[i] * shares[i] * P(own + i, own + i);
  model->relative_deviation = std::min(1.0, std::sqrt(variance));
}

}  // namespace weir
