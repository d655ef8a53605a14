// SPDX-License-Identifier: Apache-2.0
// Adaptive quantisation: sends the largest magnitudes, all positive ones as their mean and all
// negative ones as theirs, so that an element costs its position and a sign.
// Payload: a selection with value format 5 (proto/WIRE.md section 3).
// Source: Dryden et al., "Communication quantization for data-parallel training of deep neural
// networks", MLHPC 2016; deviates: one threshold on the magnitude, from the last step's histogram,
// serves both signs; signs are bits beside one list of positions.

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

class AdaqCodec : public ThresholdCodec {
 public:
  AdaqCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  ValueFormat Format(const EncodeContext&) const override { return ValueFormat::kTwoMeans; }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits =
        ThresholdTraits("adaq", "largest magnitudes as two means and signs (Dryden et al. 2016)");
    traits.settings = {{.kept_bits = 1, .relative_error_squared = 0.02}};
    traits.contraction = 0;  // a mean may be far from one large value
    return traits;
  }
};

}  // namespace

void RegisterAdaq(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<AdaqCodec>());
}

}  // namespace weir
