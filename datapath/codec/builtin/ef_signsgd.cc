// SPDX-License-Identifier: Apache-2.0
// Sends one bit per element, scaled by the mean magnitude of its block of 2048. It is a
// contraction, for use with error feedback.
// Payload: for each block the scale and codes of 1 bit, set for e >= 0 (quantised_buckets.h).
// Source: Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
// schemes", ICML 2019 (algorithm 1); deviates: a scale for every block instead of one for the
// tensor, as in Zheng et al., NeurIPS 2019. That makes it one pass over memory, and reduces the
// loss where magnitudes differ along the tensor.

#include "datapath/codec/kernels/quantise.h"
#include "datapath/codec/quantised_buckets.h"

namespace weir {
namespace {

class EfSignSgdCodec : public BucketCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

 protected:
  BucketLayout Layout(const EncodeContext&) const override {
    return {.scales = 1, .bits = 1, .packs_itself = true};
  }

  void Quantise(const EncodeContext&, BucketCodes& bucket, kernels::Sums* sums) const override {
    kernels::Sums own;
    const kernels::Halves halves = kernels::FindSigns(bucket.block, bucket.codes, &own);
    const auto scale = static_cast<float>((halves.positive - halves.negative) /
                                          static_cast<double>(bucket.block.size));
    bucket.scales[0] = scale;
    const kernels::SignValues values{.negative = -scale, .positive = scale};
    own.energy_lost = kernels::EnergyBesideSigns(own.energy_in, halves, bucket.block.size, values);
    if (bucket.rest != nullptr) kernels::SubtractSigns(bucket.block, values, bucket.rest);
    sums->Add(own);
  }

  void AddBucket(const EncodeContext&, const float* scales, const uint8_t* codes, float scale,
                 std::span<float> out) const override {
    const float value = scale * scales[0];
    kernels::DecodeAddAffine(codes, out.size(), -value, 2 * value, out.data());
  }

 private:
  const CodecTraits traits_ = {
      .name = "ef_signsgd",
      .summary = "signs times the mean magnitude of a block (Karimireddy et al. 2019)",
      .needs_error_feedback = true,
      .form = PayloadForm::kOpaque,
      // 1 - 2 / pi for normal numbers.
      .settings = {{.fixed_bits = BucketLayout::BitsPerElement(kernels::kBlockElements, 1, 1),
                    .relative_error_squared = 0.3634}},
      .error_model = ErrorModel::kRelative,
      // If a block has only one element that is not zero, 1 / 2048 of it is sent.
      .contraction = 1.0 / 4096,
  };
};

}  // namespace

void RegisterEfSignsgd(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<EfSignSgdCodec>());
}

}  // namespace weir
