// SPDX-License-Identifier: Apache-2.0
// Random-k: k positions are drawn from the shared seed, the same on all ranks, so the float32
// values add without any index on the wire. The n positions are cut into k strata of nearly equal
// size, and one position is drawn in each. The marginal probability is 1 / stratum size, the
// positions are sorted and distinct, and drawing costs O(k). Values are not scaled by n / k,
// because with error feedback the unscaled selection is the contraction.
// Payload: k little-endian float32, in ascending order of position.
// Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018; deviates:
// stratified.
// memory=ef21: sends changes of the gradient at these positions (ef21.h).

#include <cmath>
#include <cstring>
#include <utility>

#include "datapath/base/random.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/residual/ef21.h"
#include "datapath/codec/select/selection.h"

namespace weir {
namespace {

constexpr size_t kDrawBatch = 256;

/// Draws the positions of one (seed, n, k) in order. Edge j of the strata is floor(j * n / k),
/// which is computed by adding quotient and remainder of n / k instead of a division for each.
class Strata {
 public:
  Strata(uint64_t seed, size_t n, size_t k)
      : seed_(seed), quotient_(k == 0 ? 0 : n / k), remainder_(k == 0 ? 0 : n % k), k_(k) {}

  /// May be called k times.
  size_t Next() {
    const size_t begin = edge_;
    edge_ += quotient_;
    carry_ += remainder_;
    if (carry_ >= k_) {
      carry_ -= k_;
      ++edge_;
    }
    const auto product = static_cast<unsigned __int128>(MixSeed(seed_, drawn_++)) * (edge_ - begin);
    return begin + static_cast<size_t>(product >> 64);
  }

 private:
  const uint64_t seed_;
  const size_t quotient_, remainder_, k_;
  size_t edge_ = 0, carry_ = 0;
  uint64_t drawn_ = 0;
};

class RandomKCodec : public WithFloatLanes<FusedCodec> {
 public:
  explicit RandomKCodec(CodecTraits traits) : traits_(std::move(traits)) {}

  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override {
    return SelectionTarget(n, context.params.ratio) * sizeof(float);
  }

  /// O(k).
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t k = SelectionTarget(out.size(), context.params.ratio);
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, k * sizeof(float)));
    Strata strata(context.seed, out.size(), k);
    // Positions are drawn one batch before their values are added, so that memory can be
    // prefetched.
    size_t places[2][kDrawBatch];
    const auto draw = [&](size_t batch) {
      const size_t from = std::min(k, batch * kDrawBatch), count = std::min(kDrawBatch, k - from);
      for (size_t i = 0; i < count; ++i) {
        places[batch % 2][i] = strata.Next();
        __builtin_prefetch(&out[places[batch % 2][i]], 1);
      }
      return count;
    };
    size_t count = draw(0);
    for (size_t batch = 0, j = 0; count > 0; ++batch) {
      const size_t next = draw(batch + 1);
      for (size_t i = 0; i < count; ++i, ++j) {
        float value;
        std::memcpy(&value, payload.data() + j * sizeof(float), sizeof(value));
        if (!std::isfinite(value)) {
          return DataLoss(StrCat(traits_.name, " payload: lane at offset ", j * sizeof(float),
                                 " is not finite"));
        }
        out[places[batch % 2][i]] += scale * value;
      }
      count = next;
    }
    return OkStatus();
  }

 private:
  /// One pass for the energies, O(n), and O(k) for the values.
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t n = operands.gradient.size();
    const size_t k = SelectionTarget(n, context.params.ratio);
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, k * sizeof(float)));
    Strata strata(context.seed, n, k);
    double kept = 0;
    size_t j = 0, next = k > 0 ? strata.Next() : n;
    kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
          // Comes first, because it brings the block into the cache.
          kernels::Measure(block, rest, pass_sums);
          for (; next < at + block.size; next = ++j < k ? strata.Next() : n) {
            const size_t place = next - at;
            float value = 0;
            if (rest != nullptr) {
              value = std::exchange(rest[place], 0.0f);
            } else {
              value = block.gradient[place];
              if (block.residual != nullptr) value += block.residual[place];
            }
            std::memcpy(out.data() + j * sizeof(float), &value, sizeof(value));
            kept += static_cast<double>(value) * value;
          }
        });
    sums.energy_lost = std::max(0.0, sums.energy_in - kept);
    return LaneResult(sums, out.first(k * sizeof(float)));
  }

  const CodecTraits traits_;
};

CodecTraits RandomKTraits() {
  return {
      .name = "random_k",
      .summary = "a seeded random subset, equal on all ranks (Stich et al. 2018)",
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .settings = {{.kept_bits = 32}},
      .uses_ratio = true,
      .ratio_min = 1e-6,
      .ratio_max = 1,
      .error_model = ErrorModel::kUniformSelection,
      // Rounding the count down at most halves it.
      .contraction = 0.5,
  };
}

}  // namespace

void RegisterRandomK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<RandomKCodec>(RandomKTraits()));
  registry.Add(id, std::make_unique<RandomKCodec>(WithEf21(
                       RandomKTraits(),
                       "changes of the gradient at seeded positions (Richtarik et al. 2021)")));
}

}  // namespace weir
