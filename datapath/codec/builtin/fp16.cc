// Half precision: n little-endian IEEE binary16 lanes.
//
// Sums must not overflow. A lane holds x * 2^-ceil(log2 world), clamped to 65504 / world, so that
// the sum of all ranks stays within 65504. The power of two costs no precision above the subnormal
// range. With error feedback, what is clamped or rounded off stays in the residual. Lanes are added
// in float32 and rounded to nearest even at every addition; additions saturate.

#include <cstdint>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/half_scale.h"

namespace weir {
namespace {

class Fp16Codec : public FusedCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext&) const override {
    return n * sizeof(uint16_t);
  }

  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, out.size() * sizeof(uint16_t)));
    const auto* lanes = reinterpret_cast<const uint16_t*>(payload.data());
    const float factor = scale / HalfScale(context.world).scale;
    if (kernels::DecodeAddHalf(lanes, out.size(), factor, out.data())) return OkStatus();
    return DataLoss("fp16 payload: a lane is not finite (offset 0 or later)");
  }

  size_t LaneBytes(const EncodeContext&) const override { return sizeof(uint16_t); }
  void Accumulate(const EncodeContext&, std::span<std::byte> sum,
                  std::span<const std::byte> addend) const override {
    WEIR_CHECK(sum.size() == addend.size() && sum.size() % sizeof(uint16_t) == 0);
    kernels::AccumulateHalf(reinterpret_cast<uint16_t*>(sum.data()),
                            reinterpret_cast<const uint16_t*>(addend.data()),
                            sum.size() / sizeof(uint16_t));
  }

 private:
  /// One pass, O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t bytes = operands.gradient.size() * sizeof(uint16_t);
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
    const HalfScale lane(context.world);
    auto* lanes = reinterpret_cast<uint16_t*>(out.data());
    const kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
          kernels::EncodeHalf(block, lane.scale, lane.limit, lanes + at, rest, pass_sums);
        });
    return LaneResult(sums, out.first(bytes));
  }

  const CodecTraits traits_ = {
      .name = "fp16",
      .summary = "half-precision lanes, scaled so that the sum over all ranks cannot overflow",
      .form = PayloadForm::kLanes,
      // The rounding error has the variance ulp^2 / 12, for log-uniform mantissas: 2^-20 / 12 /
      // 2.164.
      .settings = {{.fixed_bits = 16, .relative_error_squared = 3.67e-8}},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterFp16(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<Fp16Codec>());
}

}  // namespace weir
