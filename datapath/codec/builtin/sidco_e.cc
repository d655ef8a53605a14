// SIDCo as published, an exponential distribution fitted to the magnitudes. The number of stages
// starts at 1 and is looked at every 5 steps: one less when more than 1.2 times the wanted number
// was kept on average, one more below 0.8. Payload: selection (proto/WIRE.md section 3). Source:
// Abdelmoniem et al., "An efficient statistical-based gradient compression technique for
// distributed training systems", MLSys 2021; deviates: stages are counted per bucket, moments come
// from a sample of the elements where 16384 or more are wanted, a threshold that more than
// twice the wanted number pass is replaced by the histogram's.

#include "datapath/codec/select/staged_threshold.h"

namespace weir {

void RegisterSidcoE(Registry<Codec>& registry, uint8_t id) {
  registry.Add(
      id, std::make_unique<StagedThresholdCodec>(
              StagedTraits("sidco_e",
                           "threshold from exponential fits in stages (Abdelmoniem et al. 2021)"),
              TailFit::kExponential));
}

}  // namespace weir
