// SPDX-License-Identifier: Apache-2.0
// Half precision: n little-endian IEEE binary16 lanes with a scale that all ranks share.
//
// With M = the maximum over ranks of max|x|, a lane holds x * 2^e, where e is the greatest exponent
// for which M * 2^e is below 2^15 / world, with the world rounded up to a power of two. So no value
// is clamped whatever its scale, the sum of all ranks stays below 2^15, and values down to
// M * 2^-28 * world keep 11 significant bits. The power of two costs no precision. With error
// feedback, what is rounded off stays in the residual. Lanes are added in float32 and rounded to
// nearest even at every addition.

#include <bit>
#include <cstdint>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/select/value_coding.h"

namespace weir {
namespace {

/// Powers of two by which the sum of the ranks' lanes may exceed one lane.
int Headroom(int world) { return std::bit_width(static_cast<unsigned>(world - 1)); }

/// The exponent of the factor from a value to its lane.
int LaneExponent(const EncodeContext& context) {
  return HalfExponent(context.shared_max.one(), Headroom(context.world));
}

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
    const float factor = scale * PowerOfTwo(-LaneExponent(context));
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
    WEIR_RETURN_IF_ERROR(CheckSharedMax(traits_, context));
    const float lane_scale = PowerOfTwo(LaneExponent(context));
    // The greatest number of half precision below 2^15 / world: the greatest floats would otherwise
    // be rounded up to infinity.
    const float limit = 0x1.FFCp-1f * PowerOfTwo(15 - Headroom(context.world));
    auto* lanes = reinterpret_cast<uint16_t*>(out.data());
    kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
          kernels::EncodeHalf(block, lane_scale, limit, lanes + at, rest, pass_sums);
        });
    // The input of some rank was not finite, even if this rank's was.
    if (!context.shared_max.finite()) sums.max_bits = 0x7F800000u;
    return LaneResult(sums, out.first(bytes));
  }

  const CodecTraits traits_ = {
      .name = "fp16",
      .summary = "half-precision lanes, scaled by a shared power of two so that no sum overflows",
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      // The rounding error has the variance ulp^2 / 12, for log-uniform mantissas: 2^-20 / 12 /
      // 2.164.
      // Above 2^13 ranks the greatest floats would need a scale that is not a normal number.
      .settings = {{.fixed_bits = 16, .relative_error_squared = 3.67e-8, .world_max = 1 << 13}},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterFp16(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<Fp16Codec>());
}

}  // namespace weir
