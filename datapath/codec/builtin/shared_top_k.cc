// SPDX-License-Identifier: Apache-2.0
// Shared top-k: one rank's selection applies to all ranks, whose float32 values there are then
// added.
// Payload: positions only (a selection header with value format 0, proto/WIRE.md section 3).
// Source: Tyagi and Swany, "Flexible communication for optimal distributed learning over
// unpredictable networks" (AR-Topk), 2023; deviates: threshold selection, coded positions.

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

/// energy_lost is the loss of this rank's own selection. residual_out becomes gradient + residual,
/// including the selected elements: which of them are sent is known only when the ranks have agreed
/// on a selection, so the caller sets those to zero after the exchange.
class SharedTopKCodec : public ThresholdCodec {
 public:
  SharedTopKCodec() : ThresholdCodec(MakeTraits()) {}

  /// kUnimplemented: values are exchanged separately from the payload.
  Status DecodeAdd(std::span<const std::byte>, const EncodeContext&, float,
                   std::span<float>) const override {
    return Unimplemented("shared_top_k payloads hold positions only; use DecodeIndices");
  }

 protected:
  ValueFormat Format(const EncodeContext&) const override { return ValueFormat::kNone; }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits = ThresholdTraits(
        "shared_top_k",
        "one rank's largest magnitudes for all, values added (AR-Topk, Tyagi and Swany 2023)");
    traits.form = PayloadForm::kSharedIndex;
    traits.settings = {{.kept_bits = 32}};
    return traits;
  }
};

}  // namespace

void RegisterSharedTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<SharedTopKCodec>());
}

}  // namespace weir
