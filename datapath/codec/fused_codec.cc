// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/fused_codec.h"

#include "datapath/base/check.h"
#include "datapath/codec/block_pass.h"

namespace weir {

StatusOr<EncodeResult> FusedCodec::Encode(std::span<const float> x, const EncodeContext& context,
                                          std::span<std::byte> out) const {
  return Pass({.gradient = x}, context, out);
}

StatusOr<EncodeResult> FusedCodec::EncodeWithFeedback(std::span<const float> gradient,
                                                      std::span<const float> residual,
                                                      std::span<float> residual_out,
                                                      const EncodeContext& context,
                                                      std::span<std::byte> out) const {
  return Pass({gradient, residual, residual_out}, context, out);
}

void AccumulateFloatLanes(std::span<std::byte> sum, std::span<const std::byte> addend) {
  WEIR_CHECK(sum.size() == addend.size() && sum.size() % sizeof(float) == 0);
  kernels::AccumulateFloat(sum.data(), addend.data(), sum.size() / sizeof(float));
}

}  // namespace weir
