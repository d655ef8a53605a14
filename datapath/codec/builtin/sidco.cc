// SIDCo with counted stages: a generalised Pareto fit in four stages, each aiming from the number
// of elements that really is above the last threshold. Payload: selection (proto/WIRE.md section
// 3). Source: Abdelmoniem et al., "An efficient statistical-based gradient compression technique
// for distributed training systems", MLSys 2021; deviates: counted stages over the nonzero elements
// in place of the stage controller, a last correction by the count, moments from a sample of the
// elements where 16384 or more are expected above a threshold, the histogram's threshold when fewer
// than half or more than twice the wanted number pass.

#include "datapath/codec/select/staged_threshold.h"

namespace weir {
namespace {

class SidcoCodec : public ThresholdCodec {
 public:
  SidcoCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  /// Five reading passes, mostly sampled, and one that selects; O(n).
  Selection Choose(SelectionRequest request, const EncodeContext&,
                   SelectionState& state) const override {
    return SelectAbove(request, CountCorrectedThreshold(request), TooFew::kRepair, state);
  }

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
}

}  // namespace weir
