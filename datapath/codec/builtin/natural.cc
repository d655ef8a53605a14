// SPDX-License-Identifier: Apache-2.0
// Natural compression: |x| is rounded at random to one of the two powers of two around it, so that
// the mean is x and the variance at most x^2 / 8.
// Payload, for blocks of 2048 elements (the last may be shorter), with 9 bits: the signs, 1 bit
// each and padded to an octet, then the biased exponents, one octet each, where 0 means zero. With
// 8 bits: one octet per element, with the sign at bit 7 and below it the biased exponent minus 18,
// where 0 means zero; magnitudes are 2^-108 to 2^18.
// Source: Horvath et al., "Natural compression for distributed deep learning", MSML 2022; deviates:
// a code for zero, and finite values that would round to infinity stay at 2^127.

#include <algorithm>
#include <cstring>

#include "datapath/base/random.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/quantise.h"

namespace weir {
namespace {

constexpr int kFullBits = 9;
constexpr int kInfinity = 255;  // biased exponent of infinity and NaN

size_t SignBytes(size_t elements) { return (elements + 7) / 8; }

class NaturalCodec : public FusedCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override {
    return Bytes(n, context);
  }

  /// O(n). kDataLoss with the offset: the size is wrong, or an exponent is 255.
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, Bytes(out.size(), context)));
    const auto* const begin = reinterpret_cast<const uint8_t*>(payload.data());
    if (!IsFull(context)) {
      kernels::DecodeAddPowers(begin, out.size(), kNarrow.exponent_min, scale, out.data());
      return OkStatus();
    }
    const uint8_t* from = begin;
    for (size_t at = 0; at < out.size(); at += kernels::kBlockElements) {
      const size_t size = std::min(kernels::kBlockElements, out.size() - at);
      uint8_t signs[kernels::kBlockElements];
      uint16_t codes[kernels::kBlockElements];
      kernels::UnpackBits(from, size, 1, signs);
      from += SignBytes(size);
      kernels::JoinOctets(from, signs, size, codes);
      if (const void* found = std::memchr(from, kInfinity, size)) {
        return DataLoss(StrCat("natural payload: exponent 255 (offset ",
                               static_cast<const uint8_t*>(found) - begin, ")"));
      }
      kernels::DecodeAddPowers(codes, size, kFull.exponent_min, scale, out.data() + at);
      from += size;
    }
    return OkStatus();
  }

 private:
  static constexpr kernels::PowersOfTwo kFull{.exponent_min = 0, .exponent_max = 254};
  static constexpr kernels::PowersOfTwo kNarrow{.exponent_min = 18, .exponent_max = 145};

  bool IsFull(const EncodeContext& context) const {
    return FindSetting(traits_, context.params, context.world)->bits == kFullBits;
  }
  size_t Bytes(size_t n, const EncodeContext& context) const {
    // Whole blocks have a multiple of eight elements, so only the end has padding.
    return IsFull(context) ? n + SignBytes(n) : n;
  }

  /// One pass, O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t bytes = Bytes(operands.gradient.size(), context);
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
    const bool full = IsFull(context);
    kernels::PowersOfTwo powers = full ? kFull : kNarrow;
    powers.seed = MixSeed(context.seed, static_cast<uint64_t>(context.rank));
    auto* to = reinterpret_cast<uint8_t*>(out.data());
    const kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
          const auto counter = static_cast<uint32_t>(at);
          if (!full) {
            kernels::EncodePowers(block, powers, counter, to + at, rest, pass_sums);
            return;
          }
          uint8_t* const exponents = to + SignBytes(block.size);
          kernels::SignBits(block, to);
          kernels::EncodeExponents(block, powers, counter, exponents, rest, pass_sums);
          to = exponents + block.size;
        });
    return LaneResult(sums, out.first(bytes));
  }

  const CodecTraits traits_ = {
      .name = "natural",
      .summary = "powers of two, rounded at random (Horvath et al. 2022)",
      .unbiased = true,
      .form = PayloadForm::kOpaque,
      .settings = {{.bits = 9, .fixed_bits = 9, .relative_error_squared = 0.0819},
                   {.bits = 8, .fixed_bits = 8, .relative_error_squared = 0.0819}},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterNatural(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<NaturalCodec>());
}

}  // namespace weir
