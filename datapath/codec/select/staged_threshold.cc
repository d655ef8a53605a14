// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/select/staged_threshold.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weir {
namespace {

using kernels::TailMoments;

constexpr double kFirstRatio = 0.25;  // fraction that the first of several stages keeps
constexpr int kControllerPeriod = 5;  // steps between checks of the mean kept count
constexpr double kStageCountHigh = 1.2, kStageCountLow = 0.8;
constexpr int kCorrectedStages = 4;
constexpr double kCorrectedCountMin = 32;  // least number of elements for a last correction
constexpr double kKappaMin = 1e-6;         // below it, the exponential quantile is used

// The least spread of logarithms; less is within the rounding errors of single precision.
constexpr double kLogSpreadMin = 1e-6;

constexpr int32_t kStagesMax = 64;  // more than any ratio allows

struct StagedState : SelectionState {
  int32_t stages = 1;
  int32_t calls = 0;
  double counts = 0;  // sum of kept / wanted over the calls

 protected:
  void SaveMore(StateWriter& writer) const override {
    writer.Write(stages);
    writer.Write(calls);
    writer.Write(counts);
  }
  Status LoadMore(ByteReader& reader) override {
    WEIR_RETURN_IF_ERROR(ReadWithin(reader, 1, kStagesMax, &stages));
    WEIR_RETURN_IF_ERROR(ReadWithin(reader, 0, kControllerPeriod - 1, &calls));
    return ReadWithin(reader, 0.0, std::numeric_limits<double>::max(), &counts);
  }
};

/// The value that a generalised Pareto variable exceeds with probability `ratio`. Its scale and
/// shape follow from the mean and variance. 0 if there is no spread.
double ParetoQuantile(double mean, double variance, double ratio) {
  if (!(variance > 0) || !(mean > 0)) return 0;
  const double spread = mean * mean / variance;
  const double kappa = 0.5 * (spread - 1), sigma = 0.5 * mean * (spread + 1);
  if (std::abs(kappa) < kKappaMin) return -sigma * std::log(ratio);
  return sigma * (1 - std::pow(ratio, kappa)) / kappa;
}

double ExponentialQuantile(double mean, double ratio) { return -mean * std::log(ratio); }

/// The same for a gamma variable, by the logarithmic moment estimator. mean_log is the mean of the
/// logarithms.
double GammaQuantile(double mean, double mean_log, double ratio) {
  const double t = std::log(mean) - mean_log;
  if (!(t > kLogSpreadMin) || !std::isfinite(t)) return mean;
  const double a = (3 - t + std::sqrt((t - 3) * (t - 3) + 24 * t)) / (12 * t);
  return mean / a * InverseGamma(a, ratio);
}

double Variance(const TailMoments& moments, double count) {
  const double mean = moments.sum / count;
  return moments.sum_squares / count - mean * mean;
}

/// The first threshold. Zeros are counted, as in the published code, except for gamma, because they
/// have no logarithm.
double FirstStage(const Tails& tails, TailFit fit, double ratio, unsigned sampling) {
  const double n = static_cast<double>(tails.n);
  const TailMoments moments = tails.Above(kSmallestNormal, sampling,
                                          /*with_logs=*/fit == TailFit::kGammaThenPareto);
  if (moments.count == 0) return 0;
  switch (fit) {
    case TailFit::kExponential:
      return ExponentialQuantile(moments.sum / n, ratio);
    case TailFit::kPareto:
      return ParetoQuantile(moments.sum / n, Variance(moments, n), ratio);
    case TailFit::kGammaThenPareto: {
      const double count = static_cast<double>(moments.count);
      const double among_nonzeros = std::min(1.0, ratio * n / count);
      return GammaQuantile(moments.sum / count, moments.sum_logs / count, among_nonzeros);
    }
  }
  return 0;
}

}  // namespace

double InverseGamma(double a, double tail) {
  // Q(a, x): a series below a + 1, and Lentz's continued fraction above.
  int sign;  // std::lgamma would write it to a global variable
  const double log_gamma = lgamma_r(a, &sign);
  const auto upper = [a, log_gamma](double x) {
    if (x <= 0) return 1.0;
    const double scale = std::exp(a * std::log(x) - x - log_gamma);
    if (x < a + 1) {
      double term = 1 / a, sum = term;
      for (int i = 1; i < 500 && term > sum * 1e-15; ++i) sum += term *= x / (a + i);
      return 1 - scale * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, fraction = d;
    for (int i = 1; i < 500; ++i) {
      const double an = -i * (i - a);
      b += 2;
      d = 1 / (an * d + b);
      c = b + an / c;
      fraction *= c * d;
      if (std::abs(c * d - 1) < 1e-15) break;
    }
    return scale * fraction;
  };
  double low = 0, high = a + 1;
  while (upper(high) > tail && high < 1e9) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    (upper(middle) > tail ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

float StagedThreshold(const Tails& tails, TailFit fit, int stages) {
  const size_t n = tails.n;
  const size_t target = SelectionTarget(n, tails.ratio);
  if (n == 0) return 0;
  const unsigned sampling = SamplingFor(target);
  const double ratio = static_cast<double>(target) / static_cast<double>(n);
  if (stages <= 1 || ratio >= kFirstRatio) {
    return static_cast<float>(FirstStage(tails, fit, ratio, sampling));
  }
  double threshold = FirstStage(tails, fit, kFirstRatio, sampling);
  const double each = std::pow(ratio / kFirstRatio, 1.0 / (stages - 1));
  for (int stage = 1; stage < stages; ++stage) {
    const float limit = std::max(kSmallestNormal, static_cast<float>(threshold));
    const TailMoments moments = tails.Above(limit, sampling);
    if (moments.count == 0) break;
    const double count = static_cast<double>(moments.count);
    // Relative to the smallest exceedance instead of the threshold, as published.
    const double offset = moments.smallest;
    const double mean = limit + moments.sum / count - offset;
    threshold = offset + (fit == TailFit::kExponential
                              ? ExponentialQuantile(mean, each)
                              : ParetoQuantile(mean, Variance(moments, count), each));
  }
  return static_cast<float>(threshold);
}

float CountCorrectedThreshold(const Tails& tails) {
  const size_t n = tails.n;
  const double target = static_cast<double>(SelectionTarget(n, tails.ratio));
  float threshold = kSmallestNormal;
  double expected = static_cast<double>(n);
  for (int left = kCorrectedStages; left > 0; --left) {
    const TailMoments moments = tails.Above(threshold, SamplingFor(static_cast<size_t>(expected)));
    const double count = static_cast<double>(moments.count);
    if (count <= target) break;
    const double ratio = std::pow(target / count, 1.0 / left);
    const double mean = moments.sum / count;
    const double step = ParetoQuantile(mean, Variance(moments, count), ratio);
    const auto next = static_cast<float>(threshold + step);
    if (!(next > threshold)) break;  // there is no spread left, or NaN
    threshold = next;
    expected = ratio * count;
  }
  // Corrects the last fit by the miss of its count, divided by the density just above the
  // threshold, which a Pareto fit of the elements above gives.
  const TailMoments tail = tails.Above(threshold, SamplingFor(static_cast<size_t>(target)));
  const double count = static_cast<double>(tail.count);
  if (count < kCorrectedCountMin) return threshold;
  const double mean = tail.sum / count, variance = Variance(tail, count);
  if (!(variance > 0)) return threshold;
  const double scale = 0.5 * mean * (mean * mean / variance + 1);
  const double corrected = threshold + scale * std::log(count / target);
  return corrected > 0.5 * threshold ? static_cast<float>(corrected) : threshold;
}

CodecTraits StagedTraits(std::string name, std::string summary) {
  CodecTraits traits = ThresholdTraits(std::move(name), std::move(summary));
  traits.error_model = ErrorModel::kUnknown;
  traits.contraction = 0;
  traits.opt_in = true;
  return traits;
}

std::unique_ptr<CodecState> StagedThresholdCodec::NewState(size_t, const EncodeContext&) const {
  return std::make_unique<StagedState>();
}

SelectionRule StagedThresholdCodec::Rule(const Tails& tails, SelectionState& state) const {
  const auto* staged = dynamic_cast<const StagedState*>(&state);
  const int stages = staged != nullptr ? staged->stages : 1;
  return SelectionRule::Above(StagedThreshold(tails, fit_, stages), TooFew::kAccept);
}

void StagedThresholdCodec::LearnCount(const Tails& tails, size_t count, bool overflowed,
                                      SelectionState& state) const {
  auto* staged = dynamic_cast<StagedState*>(&state);
  const size_t target = SelectionTarget(tails.n, tails.ratio);
  if (staged == nullptr || target == 0) return;
  // The count of an overflow is not known, but it is above the upper limit.
  staged->counts += overflowed ? 2.0 : static_cast<double>(count) / static_cast<double>(target);
  if (++staged->calls < kControllerPeriod) return;
  const double mean = staged->counts / kControllerPeriod;
  if (mean > kStageCountHigh) --staged->stages;
  if (mean < kStageCountLow) ++staged->stages;
  const int most = std::max(1, static_cast<int>(std::ceil(-std::log2(tails.ratio))));
  staged->stages = std::clamp(staged->stages, 1, most);
  staged->calls = 0;
  staged->counts = 0;
}

}  // namespace weir
