// SPDX-License-Identifier: Apache-2.0
// SketchML: sends the largest magnitudes, each as the number of its quantile bucket, which decodes
// to the mean of the bucket's values. Buckets of one sign hold about equally many values. So the
// many small values are represented better than with equal steps (top_k with 8 bits), and the few
// largest ones worse; of the squared norm it loses more. Positions and values are as in any
// selection. Quantiles come from a histogram of 2048 bins per sign between the least and the
// largest kept magnitude, so nothing is sorted.
// Payload: a selection with value format 6 (8 bits) or 7 (6 bits), proto/WIRE.md section 3.
// Source: Jiang et al., "SketchML: accelerating distributed machine learning with data sketches",
// SIGMOD 2018; deviates: exact bucket numbers in place of a MinMaxSketch (which only ever shrinks
// values, and needs hash tables at the receiver), a histogram in place of a quantile sketch, means
// in place of middles, and a dense gradient is cut to its largest elements, where the paper's is
// sparse.

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

class SketchMlCodec : public ThresholdCodec {
 public:
  SketchMlCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  ValueFormat Format(const EncodeContext& context) const override {
    return context.params.bits == 6 ? ValueFormat::kQuantiles6 : ValueFormat::kQuantiles8;
  }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits = ThresholdTraits(
        "sketchml", "largest magnitudes as numbers of quantile buckets (Jiang et al. 2018)");
    // A bucket has at least 64 values, so its mean costs each at most half a bit. Errors are those
    // of normal numbers at a ratio of 0.05.
    traits.settings = {{.bits = 8, .kept_bits = 8.5, .relative_error_squared = 1.1e-4},
                       {.bits = 6, .kept_bits = 6.5, .relative_error_squared = 4.3e-4}};
    return traits;
  }
};

}  // namespace

void RegisterSketchml(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<SketchMlCodec>());
}

}  // namespace weir
