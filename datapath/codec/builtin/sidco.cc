// SPDX-License-Identifier: Apache-2.0
// SIDCo: thresholds from a distribution fitted to the magnitudes. All variants take moments from a
// sample of the elements where 16384 or more are expected above a threshold.
// Payload: a selection (proto/WIRE.md section 3).
// Source: Abdelmoniem et al., "An efficient statistical-based gradient compression technique for
// distributed training systems", MLSys 2021.
//
// sidco: a generalised Pareto fit in four stages, each of which starts from the true number of
// elements above the last threshold. Deviates: stages use counts of nonzero elements in place of
// the stage controller; the count corrects the last threshold; the histogram's threshold is used
// when fewer than half or more than twice the wanted number pass.
//
// fit=e, fit=gp and fit=p are the published variants: exponential; first gamma, then generalised
// Pareto; generalised Pareto by moments. The number of stages starts at 1 and is checked every 5
// steps: it is reduced by one when more than 1.2 times the wanted number was kept on average, and
// increased by one below 0.8 times. They deviate: stages are counted per bucket, a threshold that
// more than twice the wanted number pass is replaced by the histogram's, and zeros are left out of
// the gamma fit.

#include "datapath/codec/select/staged_threshold.h"

namespace weir {
namespace {

class SidcoCodec : public ThresholdCodec {
 public:
  SidcoCodec() : ThresholdCodec(MakeTraits()) {}

  /// Five passes that only read, mostly sampled; O(n).
  SelectionRule Rule(const Tails& tails, SelectionState&) const override {
    return SelectionRule::Above(CountCorrectedThreshold(tails), TooFew::kRepair);
  }
  bool AsksForTails() const override { return true; }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits = ThresholdTraits(
        "sidco", "threshold from Pareto fits in counted stages (after Abdelmoniem et al. 2021)");
    traits.settings = ThresholdSettings();
    traits.count_tolerance = 0.1;
    return traits;
  }
};

}  // namespace

void RegisterSidco(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<SidcoCodec>());
  const auto add_published = [&](const char* name, const char* fits, TailFit fit) {
    registry.Add(
        id, std::make_unique<StagedThresholdCodec>(
                StagedTraits(name, StrCat("threshold from ", fits, " (Abdelmoniem et al. 2021)")),
                fit));
  };
  add_published("sidco:fit=e", "exponential fits in stages", TailFit::kExponential);
  add_published("sidco:fit=gp", "a gamma fit, then Pareto fits", TailFit::kGammaThenPareto);
  add_published("sidco:fit=p", "Pareto fits in stages", TailFit::kPareto);
}

}  // namespace weir
