// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much progress a step of a certain gain makes, learnt from the losses that ranks report.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// A step of gain g makes g^p of a dense step's progress; p is one of these.
inline constexpr int kExponents = 21;
inline constexpr double kExponentStep = 0.1;  // 0, 0.1, ... 2

/// The knowledge of p: a probability for each value of the grid.
struct ExponentBelief {
  std::array<double, kExponents> weights{};  // they sum to 1
  double mean = 1, deviation = 0;
  /// The smallest value of the grid below which at least `share` of the probability lies.
  double Quantile(double share) const;
};

/// The worth of a step by its gain.
struct ProgressCurve {
  double exponent = 1;
  // Below this gain no loss was seen, and the exponent is at least `prior`: what losses did not
  // mind so far they may well mind there.
  double gain_seen = 0;
  double prior = 1;
  /// In dense steps; rises with the gain, from 0 or, for exponent 0, 1.
  double At(double gain) const;
};

/// The belief after losses with that log-likelihood (empty: none), from a normal prior around
/// `prior` that is cut to the grid. prior_deviation 0: p is `prior`, whatever losses say, also off
/// the grid. Pure and deterministic.
ExponentBelief BeliefOf(const std::vector<double>& log_likelihood, double prior,
                        double prior_deviation);

/// Fits one curve of the loss, whose clock runs by gain^p, for every p of the grid at once. Where
/// plans of other gain change the loss's slope, wrong exponents predict the next losses badly;
/// while the gain stays the same nothing is learnt.
///
/// The curve is a line over the logarithm of the clock whose slope drifts. Each p has a Kalman
/// filter of (level, slope) for each of kDrifts rates of drift, with its own estimate of the noise;
/// the predictive densities of the losses, averaged over the drifts, are the likelihood of p.
/// Tried instead: one power law fitted to all losses, which is sharper on power laws and wrong with
/// confidence on every other curve; slopes in matched windows around switches, which need hundreds
/// of steps of each plan and lean to the prior by the curve's bend.
///
/// Not thread-safe. Bounded memory; a step costs kFiltersUpdated updates of a filter of two states.
/// Deterministic: the same calls give the same bits.
class ProgressModel {
 public:
  static constexpr int kDrifts = 5;
  static constexpr int kFilters = kDrifts * kExponents;

  /// One step of that gain, in (0, 1], and the loss that its forward pass saw, if it is known. What
  /// is not finite is as if it was not reported.
  void Add(double gain, std::optional<double> loss);

  /// For each exponent of the grid, at most 0, rounded to 1/1000. Empty: nothing was learnt yet.
  std::vector<double> LogLikelihood() const;
  uint64_t losses() const { return losses_; }
  /// The lowest gain that steps had for long enough to show in losses; 1 until then.
  double gain_seen() const { return gain_seen_; }
  /// Updates of filters so far: what the model has cost.
  uint64_t updates() const { return updates_; }

  /// A plan begins: the curve as fitted so far is what its losses are compared with. While they
  /// keep up, that is renewed every few hundred losses.
  void BeginPlan();
  /// How far the smoothed loss is behind the curve that was fitted before, and the deviation of
  /// that; absolute. Empty: too little is known of the curve, or too few losses were compared.
  struct Behind {
    double loss = 0, deviation = 0, curve = 0;
  };
  /// With the clock run by gain^exponent since then.
  std::optional<Behind> BehindCurve(double exponent) const;

  /// All that was learnt, as a text of some 20 kB; empty: nothing was.
  std::string Save() const;
  /// Goes on from what Save gave, `steps` steps later, of whose losses nothing is known.
  /// kInvalidArgument: it is damaged or of another release; nothing changes.
  Status Restore(std::string_view text, uint64_t steps);

 private:
  struct Filter {
    double level = 0, slope = 0;
    double level_variance = 0, covariance = 0, slope_variance = 0;  // in units of noise
    double noise = 0;                                               // variance of a loss
    double log_likelihood = 0;
  };
  void Start(double loss);
  void Learn(double loss);
  void Advance(double gain);
  /// Predicts and learns the loss; false: it is no value of this curve.
  bool Update(Filter* filter, double advance, double drift, double loss) const;
  void ShareLikelihood();
  void CompareWithFrozen(double loss);
  void RenewFrozen();
  void Freeze();
  size_t LikeliestDrift() const;
  template <typename Visit>
  void VisitNumbers(const Visit& visit);
  bool IsSane() const;

  std::array<Filter, kFilters> filters_{};  // [drift][exponent]
  std::array<double, kExponents> clocks_{};
  std::array<double, kExponents> advances_{};  // of the clocks' logarithms, since the last loss
  double reference_gain_ = 0;
  uint64_t losses_ = 0, updates_ = 0;
  double degrees_ = 0;     // of freedom behind the estimates of noise
  int outliers_ = 0;       // in a row
  bool informed_ = false;  // the gain was not always the same
  double smoothed_gain_ = 1, gain_seen_ = 1;

  /// The curve as it was when the comparison began, of the likeliest drift.
  struct Frozen {
    std::array<Filter, kExponents> filters{};
    std::array<double, kExponents> clocks{};
    double drift = 0;
    std::array<double, kExponents> residuals{};  // smoothed loss less the curve
    uint64_t losses = 0;                         // since then
  };
  std::optional<Frozen> frozen_;
};

}  // namespace weir
