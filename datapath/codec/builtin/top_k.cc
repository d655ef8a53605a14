// SPDX-License-Identifier: Apache-2.0
// Top-k: sends the largest magnitudes of gradient + residual, selected by a threshold. A threshold
// from the last step's histogram makes it one pass over memory. The kept count follows the ratio
// closely but is not exactly k (see selection.h for its bounds), which no receiver needs.
// Payload: a selection header, coded positions, and values of 16 (half or single precision), 8 or 4
// bits (proto/WIRE.md section 3).
// Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
// deviates: the threshold comes from a 4096-bin histogram, and values are rounded with the error
// kept as residual.
// memory=ef21: sends the largest changes of the gradient (ef21.h).

#include "datapath/codec/residual/ef21.h"
#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

class TopKCodec : public ThresholdCodec {
 public:
  explicit TopKCodec(CodecTraits traits) : ThresholdCodec(std::move(traits)) {}
};

CodecTraits TopKTraits() {
  CodecTraits traits =
      ThresholdTraits("top_k", "largest magnitudes with coded positions (Aji and Heafield 2017)");
  traits.settings = ThresholdSettings();
  return traits;
}

}  // namespace

void RegisterTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<TopKCodec>(TopKTraits()));
  registry.Add(id,
               std::make_unique<TopKCodec>(WithEf21(
                   TopKTraits(), "the largest changes of the gradient (Richtarik et al. 2021)")));
}

}  // namespace weir
