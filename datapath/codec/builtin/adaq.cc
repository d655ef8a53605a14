// Adaptive quantisation: the largest magnitudes, all positive ones sent as their mean and all
// negative ones as theirs, so that an element costs its position and a sign. Payload: selection
// with value format 5 (proto/WIRE.md section 3). Source: Dryden et al., "Communication quantization
// for data-parallel training of deep neural networks", MLHPC 2016; deviates: one threshold on the
// magnitude serves both signs, from the last step's histogram; signs are bits beside one list of
// positions.

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

class AdaqCodec : public ThresholdCodec {
 public:
  AdaqCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  ValueFormat Format(const EncodeContext&) const override { return ValueFormat::kTwoMeans; }

  /// One pass with a warm state, else two; O(n).
  Selection Choose(SelectionRequest request, const EncodeContext&,
                   SelectionState& state) const override {
    return SelectLargest(request, state);
  }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits =
        ThresholdTraits("adaq", "largest magnitudes as two means and signs (Dryden et al. 2016)");
    traits.settings = {{.kept_bits = 1, .relative_error_squared = 0.02}};
    traits.contraction = 0;  // two means may be far from one value among many
    return traits;
  }
};

}  // namespace

void RegisterAdaq(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<AdaqCodec>());
}

}  // namespace weir
