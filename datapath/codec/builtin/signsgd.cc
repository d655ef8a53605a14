// SPDX-License-Identifier: Apache-2.0
// Signs with majority vote: each rank sends whether x >= 0, and the sum of all ranks becomes the
// majority's sign times world * M, where M is the maximum over ranks of mean|x|, or zero for a tie.
// Payload: n lanes that count positive votes (quantised_lanes.h), of 1 bit for one rank, 2 for up
// to 3 ranks, 4 for up to 15, 8 for up to 255.
// Source: Bernstein et al., "signSGD with majority vote is communication efficient and fault
// tolerant", ICLR 2019; deviates: a magnitude, so that the step keeps the gradient's scale and a
// plan may change codecs between steps.

#include <limits>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/quantised_lanes.h"

namespace weir {
namespace {

class SignSgdCodec : public VoteLaneCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  SharedMax LocalMax(std::span<const float> gradient, std::span<const float> residual,
                     const EncodeContext&) const override {
    double magnitudes = 0;
    const kernels::Sums sums =
        ForEachBlock({gradient, residual, {}}, nullptr,
                     [&](const kernels::Block& block, size_t, float*, kernels::Sums* pass_sums) {
                       uint8_t bits[kernels::kBlockElements / 8];
                       const kernels::Halves halves = kernels::FindSigns(block, bits, pass_sums);
                       magnitudes += halves.positive - halves.negative;
                     });
    if (sums.non_finite()) return std::numeric_limits<float>::infinity();
    if (gradient.empty()) return 0;
    return static_cast<float>(magnitudes / static_cast<double>(gradient.size()));
  }

 protected:
  bool PacksItself() const override { return true; }

  void QuantiseBlock(const EncodeContext& context, const kernels::Block& block, size_t, float* rest,
                     const LaneCodes& codes, kernels::Sums* sums) const override {
    const float magnitude = Magnitude(context);
    const kernels::SignValues values{.negative = -magnitude, .positive = magnitude};
    uint8_t bits[kernels::kBlockElements / 8];
    kernels::Sums own;
    const kernels::Halves halves = kernels::FindSigns(block, bits, &own);
    own.energy_lost = kernels::EnergyBesideSigns(own.energy_in, halves, block.size, values);
    if (rest != nullptr) kernels::SubtractSigns(block, values, rest);
    kernels::SpreadBits(bits, block.size, LaneBits(context), codes.codes8);
    sums->Add(own);
  }

 private:
  const CodecTraits traits_ = {
      .name = "signsgd",
      .summary = "signs, added up by majority vote (Bernstein et al. 2019)",
      // The vote drops the magnitudes of all ranks together.
      .opt_in = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .lanes_are_votes = true,
      // 1 - 2 / pi for normal numbers.
      .settings = VoteSettings(0.3634),
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterSignsgd(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<SignSgdCodec>());
}

}  // namespace weir
