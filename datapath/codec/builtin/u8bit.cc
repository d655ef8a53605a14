// SPDX-License-Identifier: Apache-2.0
// Eight bits of the dynamic tree: represents |x| / max, where max is the largest magnitude of its
// block of 2048, as a decade and one of equal parts of the decade, so that small values keep their
// order of magnitude.
// Payload: for each block max and codes of 8 bits (quantised_buckets.h, kernels/quantise.h).
// Source: Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (dynamic
// tree quantisation); deviates: a maximum for every block instead of one for the tensor, and a part
// is represented by its middle at the upper end, too.

#include <array>

#include "datapath/codec/kernels/quantise.h"
#include "datapath/codec/quantised_buckets.h"

namespace weir {
namespace {

/// For a smaller maximum, zeros are sent, because its reciprocal would overflow.
constexpr float kU8MaxAbsMin = 0x1p-100f;

/// The value of each code for max = 1.
constexpr std::array<float, 256> TreeValues() {
  std::array<float, 256> values{};
  for (const kernels::TreeDecade& decade : kernels::kTreeDecades) {
    const int parts = static_cast<int>(decade.parts);
    for (int part = 0; part < parts; ++part) {
      const float middle = (static_cast<float>(part) + 0.5f) * decade.width;
      values[parts + part] = decade.begin + middle;
      values[128 + parts + part] = -(decade.begin + middle);
    }
  }
  return values;
}

class U8BitCodec : public BucketCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

 protected:
  BucketLayout Layout(const EncodeContext&) const override { return {.scales = 1, .bits = 8}; }

  void Quantise(const EncodeContext&, BucketCodes& bucket, kernels::Sums* sums) const override {
    kernels::Sums found;
    kernels::Measure(bucket.block, nullptr, &found);
    kernels::DynamicTree tree;
    if (found.max_abs() >= kU8MaxAbsMin) {
      tree.scale = found.max_abs();
      tree.inverse_scale = 1.0f / tree.scale;
    }
    bucket.scales[0] = tree.scale;
    kernels::EncodeTree(bucket.block, tree, bucket.codes, bucket.rest, sums);
  }

  void AddBucket(const EncodeContext&, const float* scales, const uint8_t* codes, float scale,
                 std::span<float> out) const override {
    static constexpr std::array<float, 256> kValues = TreeValues();
    std::array<float, 256> table;
    const float factor = scale * scales[0];
    for (size_t code = 0; code < table.size(); ++code) table[code] = kValues[code] * factor;
    kernels::DecodeAddTable(codes, out.size(), table.data(), out.data());
  }

 private:
  const CodecTraits traits_ = {
      .name = "u8bit",
      .summary = "decade and part of it in 8 bits (Dettmers 2016)",
      .needs_error_feedback = true,
      .form = PayloadForm::kOpaque,
      // For normal numbers.
      .settings = {{.fixed_bits = BucketLayout::BitsPerElement(kernels::kBlockElements, 1, 8),
                    .relative_error_squared = 0.000157}},
      .error_model = ErrorModel::kRelative,
      .contraction = 0.9,
  };
};

}  // namespace

void RegisterU8bit(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<U8BitCodec>());
}

}  // namespace weir
