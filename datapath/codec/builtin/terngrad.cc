// Every element becomes -s, 0 or +s, s with chance |x| / s. The scale s is the maximum over ranks
// of what clipping leaves: min(max|x|, 2.5 * rms(x)); larger elements are clamped to it. Payload: n
// two's complement lanes of -1, 0 or 1 (quantised_lanes.h), wide enough for the sum of all ranks: 2
// bits alone, 4 up to 7 ranks, 8 up to 127. Unbiased but for the clipping, which shrinks the
// largest elements of heavy tails by much, so that the trait says no. Source: Wen et al.,
// "TernGrad: ternary gradients to reduce communication in distributed deep learning", NeurIPS 2017,
// with scaler sharing; deviates: clipped at the shared scale, not each rank's own, and the root
// mean square stands for the standard deviation.

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
  // On normal numbers: chance costs 2.5 * E|x| - E x^2, clipping next to nothing.
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
