// SPDX-License-Identifier: Apache-2.0
// The identity codec: unchanged float32 lanes. It gives a dense all-reduce, with which every other
// codec is compared. Payload: n little-endian float32.

#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"

namespace weir {
namespace {

class IdentityCodec : public WithFloatLanes<FusedCodec> {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext&) const override {
    return n * sizeof(float);
  }

  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext&, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, out.size() * sizeof(float)));
    if (kernels::DecodeAddFloat(payload.data(), out.size(), scale, out.data())) return OkStatus();
    return DataLoss("identity payload: a lane is not finite (offset 0 or later)");
  }

 private:
  /// One pass, O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    const size_t bytes = operands.gradient.size() * sizeof(float);
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
    const kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
          kernels::MeasureToBytes(block, out.data() + at * sizeof(float), pass_sums);
          if (rest != nullptr) std::fill_n(rest, block.size, 0.0f);
        });
    return LaneResult(sums, out.first(bytes));
  }

  const CodecTraits traits_ = {
      .name = "identity",
      .summary = "float32 lanes, uncompressed",
      .lossy = false,
      .unbiased = true,
      .form = PayloadForm::kLanes,
      .settings = {{.fixed_bits = 32}},
      .error_model = ErrorModel::kExact,
  };
};

}  // namespace

void RegisterIdentity(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<IdentityCodec>());
}

}  // namespace weir
