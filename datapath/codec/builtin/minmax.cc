// SPDX-License-Identifier: Apache-2.0
// Buckets of 512 elements on a grid of 2^bits values between the bucket's least and largest,
// rounded to the nearest.
// Payload: for each bucket its least element, the step and codes (quantised_buckets.h); value =
// least + code * step.
// Source: Markov et al., "CGX: adaptive system support for communication-efficient deep learning",
// Middleware 2022 (min-max quantisation); deviates: the step is sent in place of the largest value,
// and sums are not quantised again on the way.

#include <algorithm>
#include <limits>

#include "datapath/codec/kernels/quantise.h"
#include "datapath/codec/quantised_buckets.h"

namespace weir {
namespace {

constexpr size_t kMinmaxBucket = 512;
/// Smaller steps are sent as zero, because their reciprocal would overflow.
constexpr float kStepMin = 0x1p-120f;

class MinMaxCodec : public BucketCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

 protected:
  BucketLayout Layout(const EncodeContext& context) const override {
    return {.elements = kMinmaxBucket, .scales = 2, .bits = Bits(context)};
  }

  void Quantise(const EncodeContext& context, BucketCodes& bucket,
                kernels::Sums* sums) const override {
    const kernels::Extremes extremes = kernels::FindExtremes(bucket.block);
    kernels::AffineGrid grid{.base = extremes.least,
                             .levels = static_cast<float>((1 << Bits(context)) - 1)};
    // The range is limited to that of single precision, because values must stay finite.
    const float step = std::min(extremes.largest / grid.levels - extremes.least / grid.levels,
                                std::numeric_limits<float>::max() / grid.levels);
    if (step >= kStepMin) {
      grid.step = step;
      grid.inverse_step = 1.0f / step;
    }
    bucket.scales[0] = grid.base;
    bucket.scales[1] = grid.step;
    kernels::EncodeAffine(bucket.block, grid, bucket.codes, bucket.rest, sums);
  }

  void AddBucket(const EncodeContext&, const float* scales, const uint8_t* codes, float scale,
                 std::span<float> out) const override {
    kernels::DecodeAddAffine(codes, out.size(), scale * scales[0], scale * scales[1], out.data());
  }

 private:
  static CodecSetting Codes(int bits, double relative_error_squared) {
    return {.bits = bits,
            .fixed_bits = BucketLayout::BitsPerElement(kMinmaxBucket, 2, bits),
            .relative_error_squared = relative_error_squared};
  }

  // The losses are for normal numbers, whose range in a bucket is 6.1 standard deviations on
  // average.
  const CodecTraits traits_ = {
      .name = "minmax",
      .summary = "buckets of 512 on a grid from least to largest (Markov et al. 2022)",
      .needs_error_feedback = true,
      .form = PayloadForm::kOpaque,
      .settings = {Codes(4, 0.0138), Codes(8, 4.78e-05), Codes(7, 0.000193), Codes(6, 0.000783),
                   Codes(5, 0.00324), Codes(3, 0.0635), Codes(2, 0.35), Codes(1, 5.4)},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterMinmax(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<MinMaxCodec>());
}

}  // namespace weir
