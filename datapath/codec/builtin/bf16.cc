// SPDX-License-Identifier: Apache-2.0
// bfloat16: n little-endian lanes with the upper 16 bits of float32, rounded to nearest even. The
// exponent range is float32's, so no scaling is needed; sums saturate at the largest finite value.

#include <cstdint>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"

namespace weir {
namespace {

class Bf16Codec : public FusedCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext&) const override {
    return n * sizeof(uint16_t);
  }

  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext&, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, out.size() * sizeof(uint16_t)));
    const auto* lanes = reinterpret_cast<const uint16_t*>(payload.data());
    if (kernels::DecodeAddBrain(lanes, out.size(), scale, out.data())) return OkStatus();
    return DataLoss("bf16 payload: a lane is not finite (offset 0 or later)");
  }

  size_t LaneBytes(const EncodeContext&) const override { return sizeof(uint16_t); }
  void Accumulate(const EncodeContext&, std::span<std::byte> sum,
                  std::span<const std::byte> addend) const override {
    WEIR_CHECK(sum.size() == addend.size() && sum.size() % sizeof(uint16_t) == 0);
    kernels::AccumulateBrain(reinterpret_cast<uint16_t*>(sum.data()),
                             reinterpret_cast<const uint16_t*>(addend.data()),
                             sum.size() / sizeof(uint16_t));
  }

 private:
  /// One pass, O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    const size_t bytes = operands.gradient.size() * sizeof(uint16_t);
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
    auto* lanes = reinterpret_cast<uint16_t*>(out.data());
    const kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
          kernels::EncodeBrain(block, lanes + at, rest, pass_sums);
        });
    return LaneResult(sums, out.first(bytes));
  }

  const CodecTraits traits_ = {
      .name = "bf16",
      .summary = "bfloat16 lanes",
      .form = PayloadForm::kLanes,
      // As for fp16 with three mantissa bits less: 2^-14 / 12 / 2.164.
      .settings = {{.fixed_bits = 16, .relative_error_squared = 2.35e-6}},
      .error_model = ErrorModel::kRelative,
      .contraction = 0.999,
  };
};

}  // namespace

void RegisterBf16(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<Bf16Codec>());
}

}  // namespace weir
