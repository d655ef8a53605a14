// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/quantised_buckets.h"

#include <cmath>
#include <cstring>

#include "datapath/base/check.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/kernels/quantise.h"

namespace weir {

int BucketCodec::Bits(const EncodeContext& context) const {
  const CodecSetting* setting = FindSetting(Traits(), context.params, context.world);
  WEIR_CHECK(setting != nullptr);
  return setting->bits;
}

size_t BucketCodec::MaxEncodedBytes(size_t n, const EncodeContext& context) const {
  return Layout(context).Bytes(n);
}

StatusOr<EncodeResult> BucketCodec::Pass(const PassOperands& operands, const EncodeContext& context,
                                         std::span<std::byte> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const BucketLayout layout = Layout(context);
  const size_t bytes = layout.Bytes(operands.gradient.size());
  WEIR_RETURN_IF_ERROR(CheckRoom(Traits(), out, bytes));
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  uint8_t codes[kernels::kBlockElements];
  const kernels::Sums sums = ForEachBlock(
      operands, context.statistics,
      [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
        for (size_t from = 0; from < block.size; from += layout.elements) {
          BucketCodes bucket;
          bucket.block = {.gradient = block.gradient + from,
                          .residual = block.residual == nullptr ? nullptr : block.residual + from,
                          .size = std::min(layout.elements, block.size - from)};
          bucket.at = at + from;
          bucket.rest = rest == nullptr ? nullptr : rest + from;
          uint8_t* const packed = to + layout.scales * sizeof(float);
          bucket.codes = layout.packs_itself ? packed : codes;
          Quantise(context, bucket, pass_sums);
          std::memcpy(to, bucket.scales, layout.scales * sizeof(float));
          if (!layout.packs_itself) {
            kernels::PackBits(codes, bucket.block.size, layout.bits, packed);
          }
          to += layout.BytesOf(bucket.block.size);
        }
      });
  return LaneResult(sums, out.first(bytes));
}

Status BucketCodec::DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context,
                              float scale, std::span<float> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const BucketLayout layout = Layout(context);
  WEIR_RETURN_IF_ERROR(CheckLaneBytes(Traits(), payload, layout.Bytes(out.size())));
  const auto* const begin = reinterpret_cast<const uint8_t*>(payload.data());
  const uint8_t* from = begin;
  uint8_t codes[kernels::kBlockElements];
  float scales[BucketLayout::kScalesMax] = {};
  for (size_t at = 0; at < out.size(); at += layout.elements) {
    const size_t size = std::min(layout.elements, out.size() - at);
    std::memcpy(scales, from, layout.scales * sizeof(float));
    for (size_t i = 0; i < layout.scales; ++i) {
      if (std::isfinite(scales[i])) continue;
      return DataLoss(StrCat(Traits().name, " payload: scale ", scales[i], " (offset ",
                             from - begin + i * sizeof(float), ")"));
    }
    const uint8_t* const packed = from + layout.scales * sizeof(float);
    if (layout.codes_signed) {
      kernels::UnpackSigned(packed, size, layout.bits, reinterpret_cast<int8_t*>(codes));
    } else {
      kernels::UnpackBits(packed, size, layout.bits, codes);
    }
    AddBucket(context, scales, codes, scale, out.subspan(at, size));
    from += layout.BytesOf(size);
  }
  return OkStatus();
}

}  // namespace weir
