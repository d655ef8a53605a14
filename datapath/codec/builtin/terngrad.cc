// SPDX-License-Identifier: Apache-2.0
// Every element becomes -s, 0 or +s; it is not 0 with probability |x| / s. The scale s is the
// maximum over ranks of the clipped maximum min(max|x|, 2.5 * rms(x)); larger elements are clamped
// to it. It is unbiased except for the clipping, which shrinks the largest elements of heavy tails
// considerably, so the trait says that it is not.
// Payload: n two's complement lanes of -1, 0 or 1 (quantised_lanes.h), wide enough for the sum of
// all ranks: 2 bits for one rank, 4 for up to 7 ranks, 8 for up to 127.
// Source: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep
// learning", NeurIPS 2017, with scaler sharing; deviates: elements are clipped at the shared scale,
// not each rank's own, and the root mean square replaces the standard deviation.

#include <algorithm>
#include <cmath>
#include <limits>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/quantised_lanes.h"

namespace weir {
namespace {

constexpr double kClip = 2.5;

class TernGradCodec : public GridLaneCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  SharedMax LocalMax(std::span<const float> gradient, std::span<const float> residual,
                     const EncodeContext&) const override {
    double squares = 0;
    const kernels::Sums sums =
        ForEachBlock({gradient, residual, {}}, nullptr,
                     [&](const kernels::Block& block, size_t, float*, kernels::Sums* pass_sums) {
                       kernels::Measure(block, nullptr, pass_sums);
                       squares += kernels::SumSquares(block);
                     });
    if (sums.non_finite()) return std::numeric_limits<float>::infinity();
    if (gradient.empty()) return 0;
    const double rms = std::sqrt(squares / static_cast<double>(gradient.size()));
    return static_cast<float>(std::min<double>(sums.max_abs(), kClip * rms));
  }

 protected:
  float Levels(const EncodeContext&) const override { return 1; }

 private:
  // For normal numbers: random rounding loses 2.5 * E|x| - E x^2, and clipping almost nothing.
  static constexpr double kLoss = 1.0;

  const CodecTraits traits_ = {
      .name = "terngrad",
      .summary = "stochastic -1, 0, 1 times a shared, clipped maximum (Wen et al. 2017)",
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .settings =
          {{.fixed_bits = 2, .relative_error_squared = kLoss, .world_max = 1},
           {.fixed_bits = 4, .relative_error_squared = kLoss, .world_min = 2, .world_max = 7},
           {.fixed_bits = 8, .relative_error_squared = kLoss, .world_min = 8, .world_max = 127}},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterTerngrad(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<TernGradCodec>());
}

}  // namespace weir
