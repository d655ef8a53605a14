#pragma once
// Thresholds from a distribution fitted in stages, each to what the one before left above its
// threshold (SIDCo). Source: Abdelmoniem et al., "An efficient statistical-based gradient
// compression technique for distributed training systems", MLSys 2021.

#include <cstddef>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {

/// Which distribution the magnitudes are taken to follow: the first stage, then the tails.
enum class TailFit {
  kExponential,      // exponential throughout
  kPareto,           // generalised Pareto by moments throughout
  kGammaThenPareto,  // gamma, then generalised Pareto
};

/// The threshold that `stages` published fits give for `ratio`. Sampled as SamplingFor says. Reads
/// the input once per stage.
float StagedThreshold(const SelectionRequest& request, TailFit fit, int stages);

/// The same with four Pareto stages, each aiming from the count that really is above the last
/// threshold, zeros left out, and a last correction by the count: within 10 % of ratio * n without
/// a controller.
float CountCorrectedThreshold(const SelectionRequest& request);

/// P(a, x) = 1 - tail: x of the regularised lower incomplete gamma function, by bisection.
double InverseGamma(double a, double tail);

/// A published SIDCo variant: its fit, and the number of stages steered by how many elements the
/// last steps kept.
class StagedThresholdCodec : public ThresholdCodec {
 public:
  StagedThresholdCodec(CodecTraits traits, TailFit fit)
      : ThresholdCodec(std::move(traits)), fit_(fit) {}

  std::unique_ptr<CodecState> NewState(size_t n, const EncodeContext& context) const override;

 protected:
  Selection Choose(SelectionRequest request, const EncodeContext& context,
                   SelectionState& state) const override;

 private:
  TailFit fit_;
};

/// Traits of the published variants: how many they keep depends on how the input is distributed.
CodecTraits StagedTraits(std::string name, std::string summary);

}  // namespace weir
