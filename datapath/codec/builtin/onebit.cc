// SPDX-License-Identifier: Apache-2.0
// Sends one bit per element, which selects the mean of the negative elements of its block of 2048
// or that of the others.
// Payload: for each block the two means (negative first) and codes of 1 bit, set for e >= 0
// (quantised_buckets.h).
// Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel
// distributed training of speech DNNs", Interspeech 2014; deviates: blocks in place of the columns
// of a matrix.

#include "datapath/codec/kernels/quantise.h"
#include "datapath/codec/quantised_buckets.h"

namespace weir {
namespace {

class OneBitCodec : public BucketCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

 protected:
  BucketLayout Layout(const EncodeContext&) const override {
    return {.scales = 2, .bits = 1, .packs_itself = true};
  }

  void Quantise(const EncodeContext&, BucketCodes& bucket, kernels::Sums* sums) const override {
    kernels::Sums own;
    const kernels::Halves halves = kernels::FindSigns(bucket.block, bucket.codes, &own);
    const size_t others = bucket.block.size - halves.negatives;
    const double negative =
        halves.negatives == 0 ? 0.0 : halves.negative / static_cast<double>(halves.negatives);
    const double positive = others == 0 ? 0.0 : halves.positive / static_cast<double>(others);
    bucket.scales[0] = static_cast<float>(negative);
    bucket.scales[1] = static_cast<float>(positive);
    const kernels::SignValues values{.negative = bucket.scales[0], .positive = bucket.scales[1]};
    own.energy_lost = kernels::EnergyBesideSigns(own.energy_in, halves, bucket.block.size, values);
    if (bucket.rest != nullptr) kernels::SubtractSigns(bucket.block, values, bucket.rest);
    sums->Add(own);
  }

  void AddBucket(const EncodeContext&, const float* scales, const uint8_t* codes, float scale,
                 std::span<float> out) const override {
    // The means are scaled one by one, because the difference of two large means may overflow.
    const float negative = scale * scales[0], positive = scale * scales[1];
    kernels::DecodeAddAffine(codes, out.size(), negative, positive - negative, out.data());
  }

 private:
  const CodecTraits traits_ = {
      .name = "onebit",
      .summary = "signs, as the mean of a block's negative or other elements (Seide et al. 2014)",
      .needs_error_feedback = true,
      .form = PayloadForm::kOpaque,
      // 1 - 2 / pi for normal numbers.
      .settings = {{.fixed_bits = BucketLayout::BitsPerElement(kernels::kBlockElements, 2, 1),
                    .relative_error_squared = 0.3634}},
      .error_model = ErrorModel::kRelative,
      // As for ef_signsgd.
      .contraction = 1.0 / 4096,
  };
};

}  // namespace

void RegisterOnebit(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<OneBitCodec>());
}

}  // namespace weir
