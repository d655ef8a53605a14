// SPDX-License-Identifier: Apache-2.0
// QSGD as published: buckets of 512 elements, each scaled by its own Euclidean norm, and s =
// 2^(bits - 1) - 1 levels with stochastic rounding: code = floor(x * s / norm + u), where u is
// uniform in [0, 1), from a hash of (seed, rank, position). It is unbiased, and the variance of a
// bucket of d elements is at most min(d / s^2, sqrt(d) / s) times its squared norm.
// One bit leaves no level beside zero, so it has another rule: the element becomes m, the largest
// magnitude of the bucket, with probability (1 + x / m) / 2, or else -m. That is unbiased, too. Its
// variance is exactly d m^2 / norm^2 - 1 times the squared norm, which for normal numbers is below
// that of 2 bits.
// Payload: for each bucket the norm (with 1 bit: m) and two's complement codes, with 1 bit set for
// m (quantised_buckets.h).
// Source: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and
// encoding", NeurIPS 2017, section 3 and Lemma 3.1 (the largest magnitude as scale: section 4);
// deviates: plain codes instead of Elias codes, and the setting of 1 bit.

#include <array>
#include <cmath>
#include <limits>

#include "datapath/base/random.h"
#include "datapath/codec/kernels/quantise.h"
#include "datapath/codec/quantised_buckets.h"

namespace weir {
namespace {

constexpr size_t kQsgdBucket = 512;
/// For a smaller norm, zeros are sent, because the reciprocal of the step would overflow.
constexpr float kBucketNormMin = 0x1p-100f;

class QsgdBucketedCodec : public BucketCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

 protected:
  BucketLayout Layout(const EncodeContext& context) const override {
    return {.elements = kQsgdBucket,
            .scales = 1,
            .bits = Bits(context),
            .codes_signed = Bits(context) > 1};
  }

  void Quantise(const EncodeContext& context, BucketCodes& bucket,
                kernels::Sums* sums) const override {
    if (Bits(context) == 1) return QuantiseSigns(context, bucket, sums);
    const double norm = std::sqrt(kernels::SumSquares(bucket.block));
    // A norm beyond single precision is limited, so that larger elements are clamped.
    float scale =
        static_cast<float>(std::min(norm, static_cast<double>(std::numeric_limits<float>::max())));
    if (!(scale >= kBucketNormMin)) scale = 0;
    kernels::Grid grid{.levels = Levels(context),
                       .seed = MixSeed(context.seed, static_cast<uint64_t>(context.rank))};
    if (scale > 0) {
      grid.step = scale / grid.levels;
      grid.inverse_step = grid.levels / scale;
    }
    bucket.scales[0] = scale;
    kernels::EncodeGrid(bucket.block, grid, static_cast<uint32_t>(bucket.at),
                        reinterpret_cast<int8_t*>(bucket.codes), bucket.rest, sums);
  }

  void AddBucket(const EncodeContext& context, const float* scales, const uint8_t* codes,
                 float scale, std::span<float> out) const override {
    if (Bits(context) == 1) {
      const float value = scale * scales[0];
      return kernels::DecodeAddAffine(codes, out.size(), -value, 2 * value, out.data());
    }
    kernels::DecodeAddGrid(reinterpret_cast<const int8_t*>(codes), out.size(),
                           scale * (scales[0] / Levels(context)), out.data());
  }

 private:
  /// The setting of 1 bit: adds a uniform number in (-m, m] and sends the sign of the sum.
  void QuantiseSigns(const EncodeContext& context, BucketCodes& bucket, kernels::Sums* sums) const {
    kernels::Sums found;
    kernels::Measure(bucket.block, nullptr, &found);
    // Twice this must be finite; larger elements are clamped.
    float largest = std::min(found.max_abs(), 0.5f * std::numeric_limits<float>::max());
    if (largest < kBucketNormMin) largest = 0;
    bucket.scales[0] = largest;
    kernels::DrawSigns(bucket.block, largest,
                       MixSeed(context.seed, static_cast<uint64_t>(context.rank)),
                       static_cast<uint32_t>(bucket.at), bucket.codes, bucket.rest, sums);
  }

  float Levels(const EncodeContext& context) const {
    return static_cast<float>((1 << (Bits(context) - 1)) - 1);
  }

  static CodecSetting Codes(int bits, double relative_error_squared) {
    return {.bits = bits,
            .fixed_bits = BucketLayout::BitsPerElement(kQsgdBucket, 1, bits),
            .relative_error_squared = relative_error_squared};
  }

  // The losses are for normal numbers: the mean of step^2 * f * (1 - f), where f is the position of
  // |x| between two levels.
  const CodecTraits traits_ = {
      .name = "qsgd_bucketed",
      .summary = "buckets of 512 scaled by their norm, stochastic rounding (Alistarh et al. 2017)",
      .unbiased = true,
      // With few bits the variance is far above the signal.
      .needs_error_feedback = false,
      .form = PayloadForm::kOpaque,
      .settings = {Codes(8, 0.00528), Codes(7, 0.0215), Codes(6, 0.0886), Codes(5, 0.379),
                   Codes(4, 1.58), Codes(3, 5.01), Codes(2, 17), Codes(1, 9.67)},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterQsgdBucketed(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<QsgdBucketedCodec>());
}

}  // namespace weir
