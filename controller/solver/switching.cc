// SPDX-License-Identifier: Apache-2.0
// See switching.h.

#include "controller/solver/switching.h"

#include <algorithm>
#include <array>

#include "controller/model/deterministic_math.h"

namespace weir {
namespace {

struct Point {
  double z, weight;
};
// A standard normal distribution in five points; the variance of these weights is 0.99.
constexpr std::array<Point, 5> kPoints = {
    {{-2, 0.0545}, {-1, 0.2442}, {0, 0.4026}, {1, 0.2442}, {2, 0.0545}}};
// An estimate with a deviation of more e-folds than this carries no information.
constexpr double kLogDeviationMax = 1.5;
constexpr double kLogDeviationMin = 0.01;
// One standard deviation of what a codec loses, in shares of the loss: where it was measured on the
// bucket, by the curve that ranks measure, and as codecs declare it.
constexpr double kLossMeasured = 0.02, kLossByCurve = 0.1, kLossDeclared = 0.2;
// A share of the gain, where ranks share positions and what that costs was not measured.
constexpr double kPositionsUnmeasured = 0.1;

double LogDeviation(const Measured& measured) {
  if (!(measured.value > 0)) return 0;
  const double relative = std::max(0.0, measured.deviation) / measured.value;
  return std::clamp(relative, kLogDeviationMin, kLogDeviationMax);
}

NetworkState Shifted(const NetworkState& network, double alpha_log, double beta_log) {
  NetworkState shifted = network;
  shifted.alpha_s *= DetExp(alpha_log);
  shifted.beta_s_per_byte *= DetExp(beta_log);
  return shifted;
}

double ScoreOf(const Objective& objective, const Policy& policy,
               const CandidateEstimate& estimate) {
  return objective.Score(policy, std::span(&estimate, 1))[0];
}

struct Scored {
  double score = 0;
  double slope = 0;  // of the score per second of exposed communication
  double gain_slope = 0;
};

/// Whether the choice, or one like it but for the ratio, was measured on the bucket.
bool WasMeasured(const Snapshot& snapshot, size_t bucket, const ChoiceModel& choice) {
  const auto same = [&](const auto& seen) {
    return seen.codec == choice.codec && seen.bits == choice.bits &&
           seen.collective == choice.collective;
  };
  const auto& seen = snapshot.buckets[bucket].measured_gains;
  return std::any_of(seen.begin(), seen.end(), same) ||
         (bucket < snapshot.incumbent.size() && same(snapshot.incumbent[bucket]));
}

/// One standard deviation of the plan's gain by the errors of each codec of the snapshot.
std::vector<double> GainDeviations(const CandidateSpace& space, const CostedPlan& plan) {
  const Snapshot& snapshot = space.snapshot();
  std::vector<double> deviations(snapshot.codecs.size());
  for (size_t b = 0; b < plan.choices.size(); ++b) {
    const ChoiceModel& choice = plan.choices[b];
    const CodecModel* codec = FindCodec(snapshot.codecs, choice.codec, choice.bits);
    if (codec == nullptr || !codec->lossy || !(space.elements_total() > 0)) continue;
    const CollectiveModel& collective =
        snapshot.collectives[static_cast<size_t>(plan.collective_indices[b])];
    const double gain = plan.costs[b].gain, lost = std::max(0.0, 1 - gain);
    double deviation = lost * (codec->error_model == "selection" ? kLossByCurve : kLossDeclared);
    const double prior = collective.exchange.gain_prior;
    if (prior != 1 && collective.gain_scale == prior) deviation += kPositionsUnmeasured * gain;
    if (WasMeasured(snapshot, b, choice)) deviation = lost * kLossMeasured;
    deviations[static_cast<size_t>(codec - snapshot.codecs.data())] +=
        deviation * static_cast<double>(snapshot.buckets[b].elements) / space.elements_total();
  }
  return deviations;
}

Scored ScoreOf(const Objective& objective, const Policy& policy, const WeighedCurve& progress,
               const CostedPlan& plan, const PlanEstimate& of) {
  Scored scored;
  CandidateEstimate estimate = EstimateOf(plan, of, progress);
  scored.score = ScoreOf(objective, policy, estimate);
  CandidateEstimate less = estimate;
  const double loss = 0.02 * estimate.gain;
  less.gain -= loss;
  less.progress = progress.At(less.gain, less.sync);
  if (loss > 0) scored.gain_slope = (scored.score - ScoreOf(objective, policy, less)) / loss;
  if (estimate.exposed_s <= 0) return scored;
  const double nudge = 0.05 * std::max(estimate.exposed_s, 1e-6);
  estimate.exposed_s += nudge;
  estimate.step_s += nudge;
  scored.slope = (ScoreOf(objective, policy, estimate) - scored.score) / nudge;
  return scored;
}

/// A plan with what its score depends on.
struct Side {
  const Scored& scored;
  const PlanEstimate& estimate;
  const std::vector<double>& gain_deviations;
};

/// Deviation of `challenger - incumbent` from errors that the network's state does not
/// explain.
double ModelDeviation(const CandidateSpace& space, const Side& x, const Side& y) {
  const Scored &challenger = x.scored, &incumbent = y.scored;
  const PlanEstimate &a = x.estimate, &b = y.estimate;
  double variance = 0;
  for (size_t c = 0; c < x.gain_deviations.size(); ++c) {
    const double difference =
        challenger.gain_slope * x.gain_deviations[c] - incumbent.gain_slope * y.gain_deviations[c];
    variance += difference * difference;
  }
  for (size_t c = 0; c < a.network_s_by_collective.size(); ++c) {
    const double difference = challenger.slope * a.network_s_by_collective[c] -
                              incumbent.slope * b.network_s_by_collective[c];
    variance += difference * difference;
  }
  const double codec = challenger.slope * a.codec_deviation_s;
  const double codec_other = incumbent.slope * b.codec_deviation_s;
  const double compute =
      (challenger.slope - incumbent.slope) * space.snapshot().compute_s.deviation;
  return DetSqrt(variance + codec * codec + codec_other * codec_other + compute * compute);
}

}  // namespace

CandidateEstimate EstimateOf(const CostedPlan& plan, const PlanEstimate& estimate,
                             const WeighedCurve& progress) {
  CandidateEstimate view;
  view.step_s = estimate.times.step_s;
  view.exposed_s = estimate.times.exposed_s;
  view.communication_s = estimate.times.communication_s;
  view.gain = plan.gain;
  view.sync = plan.sync;
  view.progress = progress.At(plan.gain, plan.sync);
  const bool uniform = !plan.choices.empty() &&
                       std::all_of(plan.choices.begin(), plan.choices.end(),
                                   [&](const ChoiceModel& c) { return c == plan.choices[0]; });
  if (uniform) view.ratio = plan.choices[0].ratio;
  return view;
}

double ImprovementProbability(const CandidateSpace& space, const Objective& objective,
                              const Policy& policy, const std::vector<WeighedCurve>& curves,
                              const CostedPlan& challenger, const CostedPlan& incumbent) {
  const NetworkState nominal = NetworkOf(space.snapshot());
  const double alpha_deviation = LogDeviation(space.snapshot().latency_s);
  const double beta_deviation = LogDeviation(space.snapshot().bandwidth_bytes_per_s);
  const std::vector<double> gains = GainDeviations(space, challenger),
                            other_gains = GainDeviations(space, incumbent);
  double probability = 0, weights = 0;
  for (const Point& alpha : kPoints) {
    for (const Point& beta : kPoints) {
      const NetworkState network =
          Shifted(nominal, alpha.z * alpha_deviation, beta.z * beta_deviation);
      const PlanEstimate a = EvaluatePlan(space, challenger, network);
      const PlanEstimate b = EvaluatePlan(space, incumbent, network);
      for (const WeighedCurve& one : curves) {
        const Scored x = ScoreOf(objective, policy, one, challenger, a);
        const Scored y = ScoreOf(objective, policy, one, incumbent, b);
        const double margin = y.score - x.score;
        const double deviation = ModelDeviation(space, {x, a, gains}, {y, b, other_gains});
        const double weight = alpha.weight * beta.weight * one.weight;
        probability += weight * (deviation > 0 ? DetNormalCdf(margin / deviation)
                                 : margin > 0  ? 1
                                               : 0);
        weights += weight;
      }
    }
  }
  return probability / weights;
}

double StepDeviation(const CandidateSpace& space, const CostedPlan& plan) {
  const NetworkState nominal = NetworkOf(space.snapshot());
  const double alpha = LogDeviation(space.snapshot().latency_s);
  const double beta = LogDeviation(space.snapshot().bandwidth_bytes_per_s);
  const auto step = [&](double a, double b) {
    return EvaluatePlan(space, plan, Shifted(nominal, a, b)).times.step_s;
  };
  const double by_alpha = 0.5 * (step(alpha, 0) - step(-alpha, 0));
  const double by_beta = 0.5 * (step(0, beta) - step(0, -beta));
  const PlanEstimate estimate = EvaluatePlan(space, plan, nominal);
  double variance = by_alpha * by_alpha + by_beta * by_beta;
  if (estimate.times.exposed_s > 0) {
    for (const double deviation : estimate.network_s_by_collective)
      variance += deviation * deviation;
    variance += estimate.codec_deviation_s * estimate.codec_deviation_s;
  }
  const double compute = space.snapshot().compute_s.deviation;
  return DetSqrt(variance + compute * compute);
}

double DwellSeconds(const Policy& policy, int recent_switches) {
  double dwell = policy.dwell_min_s;
  for (int i = policy.flaps_max; i < recent_switches && dwell < policy.flap_window_s; ++i) {
    dwell = std::max(dwell, 0.5) * 2;
  }
  return std::min(dwell, std::max(policy.flap_window_s, policy.dwell_min_s));
}

}  // namespace weir
