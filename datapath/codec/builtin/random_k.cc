// Random-k: k positions drawn from the shared seed, equal on all ranks, so the float32 values add
// without any index on the wire. Payload: k little-endian float32, in ascending order of position.
// The n positions are cut into k strata of nearly equal size and one position is drawn in each: the
// marginal probability is 1 / stratum size, the positions come out sorted and distinct, and drawing
// costs O(k). Not scaled by n / k: with error feedback the unscaled selection is the contraction.
// Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018; deviates:
// stratified.

#include <cmath>
#include <cstring>

#include "datapath/base/random.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/selection.h"

namespace weir {
namespace {

/// The positions of one (seed, n, k).
class Strata {
 public:
  Strata(uint64_t seed, size_t n, size_t k) : seed_(seed), n_(n), k_(k) {}

  size_t Position(size_t j) const {
    const size_t begin = Edge(j), size = Edge(j + 1) - begin;
    const auto product = static_cast<unsigned __int128>(MixSeed(seed_, j)) * size;
    return begin + static_cast<size_t>(product >> 64);
  }

 private:
  size_t Edge(size_t j) const {
    return static_cast<size_t>(static_cast<unsigned __int128>(j) * n_ / k_);
  }
  uint64_t seed_;
  size_t n_, k_;
};

class RandomKCodec : public Codec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const CodecParams& params) const override {
    return SelectionTarget(n, params.ratio) * sizeof(float);
  }

  /// One pass for the energies, O(n), and O(k) for the values.
  StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                std::span<std::byte> out) const override {
    return Pass({.gradient = x}, context, out);
  }

  StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                            std::span<const float> residual,
                                            std::span<float> residual_out,
                                            const EncodeContext& context,
                                            std::span<std::byte> out) const override {
    return Pass({gradient, residual, residual_out}, context, out);
  }

  /// O(k).
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t k = SelectionTarget(out.size(), context.params.ratio);
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, k * sizeof(float)));
    const Strata strata(context.seed, out.size(), k);
    for (size_t j = 0; j < k; ++j) {
      float value;
      std::memcpy(&value, payload.data() + j * sizeof(float), sizeof(value));
      if (!std::isfinite(value)) {
        return DataLoss(
            StrCat("random_k payload: lane at offset ", j * sizeof(float), " is not finite"));
      }
      out[strata.Position(j)] += scale * value;
    }
    return OkStatus();
  }

  size_t LaneBytes() const override { return sizeof(float); }
  void Accumulate(std::span<std::byte> sum, std::span<const std::byte> addend) const override {
    WEIR_CHECK(sum.size() == addend.size() && sum.size() % sizeof(float) == 0);
    kernels::AccumulateFloat(sum.data(), addend.data(), sum.size() / sizeof(float));
  }

 private:
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t n = operands.gradient.size();
    const size_t k = SelectionTarget(n, context.params.ratio);
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, k * sizeof(float)));
    const Strata strata(context.seed, n, k);
    // The values before the pass: the rest may overwrite the residual.
    double kept = 0;
    for (size_t j = 0; j < k; ++j) {
      const size_t at = strata.Position(j);
      float value = operands.gradient[at];
      if (!operands.residual.empty()) value += operands.residual[at];
      std::memcpy(out.data() + j * sizeof(float), &value, sizeof(value));
      kept += static_cast<double>(value) * value;
    }
    kernels::Sums sums =
        ForEachBlock(operands, context.statistics,
                     [](const kernels::Block& block, size_t, float* rest,
                        kernels::Sums* pass_sums) { kernels::Measure(block, rest, pass_sums); });
    if (!operands.rest.empty()) {
      for (size_t j = 0; j < k; ++j) operands.rest[strata.Position(j)] = 0;
    }
    sums.energy_lost = std::max(0.0, sums.energy_in - kept);
    return LaneResult(sums, out.first(k * sizeof(float)));
  }

  const CodecTraits traits_ = {
      .name = "random_k",
      .summary = "a seeded random subset, equal on all ranks (Stich et al. 2018)",
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .kept_bits = 32,
      .uses_ratio = true,
      .ratio_min = 1e-6,
      .ratio_max = 1,
      .error_model = ErrorModel::kUniformSelection,
  };
};

}  // namespace

void RegisterRandomK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<RandomKCodec>());
}

}  // namespace weir
