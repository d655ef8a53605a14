// SPDX-License-Identifier: Apache-2.0
// signSGD with momentum: m = 0.9 m + 0.1 x, and each rank votes with the sign of m; otherwise like
// signsgd, where M is the maximum over ranks of mean|m|. The moving sum replaces the optimiser's
// momentum, which must be off.
// Payload: as for signsgd.
// Source: Bernstein et al., "signSGD: compressed optimisation for non-convex problems", ICML 2018
// (algorithm 2); deviates: a magnitude.

#include <algorithm>
#include <limits>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/quantised_lanes.h"

namespace weir {
namespace {

constexpr float kDecay = 0.9f, kWeight = 0.1f;

class SignumCodec : public VoteLaneCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  SharedMax LocalMax(std::span<const float> gradient, std::span<const float> residual,
                     const EncodeContext& context) const override {
    double magnitudes = 0;
    float moved[kernels::kBlockElements];
    const kernels::Sums sums =
        ForEachBlock({gradient, residual, {}}, nullptr,
                     [&](const kernels::Block& block, size_t at, float*, kernels::Sums* pass_sums) {
                       Move(context, block, at, moved);
                       const kernels::Block moving{.gradient = moved, .size = block.size};
                       kernels::Measure(moving, nullptr, pass_sums);
                       const kernels::Halves halves = kernels::SumHalves(moving);
                       magnitudes += halves.positive - halves.negative;
                     });
    if (sums.non_finite()) return std::numeric_limits<float>::infinity();
    if (gradient.empty()) return 0;
    return static_cast<float>(magnitudes / static_cast<double>(gradient.size()));
  }

 protected:
  void QuantiseBlock(const EncodeContext& context, const kernels::Block& block, size_t at,
                     float* rest, const LaneCodes& codes, kernels::Sums* sums) const override {
    float moved[kernels::kBlockElements + kSlack];
    Move(context, block, at, moved);
    std::fill_n(moved + block.size, kSlack, 0.0f);
    if (!context.momentum.next.empty()) {
      std::copy_n(moved, block.size, context.momentum.next.data() + at);
    }
    kernels::EncodeVotes(block, {.magnitude = Magnitude(context), .voters = moved}, codes.codes8,
                         rest, sums);
  }

 private:
  static constexpr size_t kSlack = 16;

  /// Computes the block's part of the moving sum after this step.
  static void Move(const EncodeContext& context, const kernels::Block& block, size_t at,
                   float* moved) {
    const std::span<const float> current = context.momentum.current;
    kernels::MixMomentum(block, current.empty() ? nullptr : current.data() + at, kDecay, kWeight,
                         moved);
  }

  const CodecTraits traits_ = {
      .name = "signum",
      .summary = "signs of a moving sum of gradients, by majority vote (Bernstein et al. 2018)",
      .needs_momentum = true,
      .opt_in = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .lanes_are_votes = true,
      .settings = VoteSettings(0),
      .error_model = ErrorModel::kUnknown,  // it compares a moving sum with a gradient
  };
};

}  // namespace

void RegisterSignum(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<SignumCodec>());
}

}  // namespace weir
