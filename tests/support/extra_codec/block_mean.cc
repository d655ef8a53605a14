// SPDX-License-Identifier: Apache-2.0
// A codec as a newcomer would add one: this file and one line in builtin_codecs.def. Sends the mean
// of every 64 elements as float32 lanes; the residual keeps the rest. Payload: ceil(n / 64)
// float32.

#include <cstring>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"

namespace weir {
namespace {

constexpr size_t kBlock = 64;

class BlockMeanCodec : public WithFloatLanes<Codec> {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext&) const override {
    return (n + kBlock - 1) / kBlock * sizeof(float);
  }

  StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t bytes = MaxEncodedBytes(x.size(), context);
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
    kernels::Sums sums =
        ForEachBlock({.gradient = x}, context.statistics,
                     [](const kernels::Block& block, size_t, float* rest,
                        kernels::Sums* pass_sums) { kernels::Measure(block, rest, pass_sums); });
    double kept = 0;
    for (size_t at = 0; at < x.size(); at += kBlock) {
      const size_t size = std::min(kBlock, x.size() - at);
      double sum = 0;
      for (size_t i = at; i < at + size; ++i) sum += x[i];
      const float mean = static_cast<float>(sum / static_cast<double>(size));
      std::memcpy(out.data() + at / kBlock * sizeof(float), &mean, sizeof(mean));
      kept += static_cast<double>(size) * mean * mean;
    }
    sums.energy_lost = std::max(0.0, sums.energy_in - kept);
    return LaneResult(sums, out.first(bytes));
  }

  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, MaxEncodedBytes(out.size(), context)));
    for (size_t i = 0; i < out.size(); ++i) {
      float mean;
      std::memcpy(&mean, payload.data() + i / kBlock * sizeof(float), sizeof(mean));
      out[i] += scale * mean;
    }
    return OkStatus();
  }

 private:
  const CodecTraits traits_ = {
      .name = "block_mean",
      .summary = "means of 64 neighbours (an example)",
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      // The loss on the gradients of this example's job, as its author measured it.
      .settings = {{.fixed_bits = 0.5, .relative_error_squared = 0.05}},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterBlockMean(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<BlockMeanCodec>());
}

}  // namespace weir
