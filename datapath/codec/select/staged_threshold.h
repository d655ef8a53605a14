// SPDX-License-Identifier: Apache-2.0
#pragma once
// Thresholds from a distribution that is fitted in stages, each to the elements above the threshold
// of the stage before (SIDCo). Source: Abdelmoniem et al., "An efficient statistical-based gradient
// compression technique for distributed training systems", MLSys 2021.

#include <cstddef>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {

/// The assumed distribution of the magnitudes: in the first stage, and in the tails.
enum class TailFit {
  kExponential,      // exponential throughout
  kPareto,           // generalised Pareto by moments throughout
  kGammaThenPareto,  // gamma, then generalised Pareto
};

/// The threshold of `stages` published fits for the ratio. Sampled according to SamplingFor. Reads
/// the input once per stage.
float StagedThreshold(const Tails& tails, TailFit fit, int stages);

/// The same with four Pareto stages. Each starts from the true count above the last threshold,
/// zeros are left out, and the count corrects the last threshold. The result is within 10 % of
/// ratio * n without a controller.
float CountCorrectedThreshold(const Tails& tails);

/// The x with P(a, x) = 1 - tail for the regularised lower incomplete gamma function P, by
/// bisection.
double InverseGamma(double a, double tail);

/// A published SIDCo variant: its fit, with a number of stages that follows the kept counts of the
/// last steps.
class StagedThresholdCodec : public ThresholdCodec {
 public:
  StagedThresholdCodec(CodecTraits traits, TailFit fit)
      : ThresholdCodec(std::move(traits)), fit_(fit) {}

  std::unique_ptr<CodecState> NewState(size_t n, const EncodeContext& context) const override;

  SelectionRule Rule(const Tails& tails, SelectionState& state) const override;
  bool AsksForTails() const override { return true; }
  void LearnCount(const Tails& tails, size_t count, bool overflowed,
                  SelectionState& state) const override;

 private:
  TailFit fit_;
};

/// The traits of the published variants, whose kept count depends on the distribution of the input.
CodecTraits StagedTraits(std::string name, std::string summary);

}  // namespace weir
