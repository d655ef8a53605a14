// Hard threshold: everything above lambda = 1 / (2 sqrt(k)), k = ratio * n, a number fixed for the
// run. What is kept follows the scale of the gradients: right only where losses, batches and
// learning rates leave that scale alone. Payload: selection (proto/WIRE.md section 3). Source: Sahu
// et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021; deviates:
// when more than twice ratio * n pass, the histogram's threshold for ratio * n takes over, so that
// payloads stay bounded.

#include <cmath>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

class HardThresholdCodec : public ThresholdCodec {
 public:
  HardThresholdCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  /// One pass (three when too many pass), O(n).
  float FindThreshold(const SelectionRequest& request, const EncodeContext&,
                      SelectionState&) const override {
    const double target =
        static_cast<double>(SelectionTarget(request.gradient.size(), request.ratio));
    return target == 0 ? 0 : static_cast<float>(1 / (2 * std::sqrt(target)));
  }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits =
        ThresholdTraits("hard_threshold", "magnitudes above 1/(2 sqrt(k)) (Sahu et al. 2021)");
    traits.error_model = ErrorModel::kUnknown;
    traits.contraction = 0;
    traits.opt_in = true;
    return traits;
  }
};

}  // namespace

void RegisterHardThreshold(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<HardThresholdCodec>());
}

}  // namespace weir
