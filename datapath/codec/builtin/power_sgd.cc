// SPDX-License-Identifier: Apache-2.0
// PowerSGD: sends every matrix M of the bucket as a product P Q^T of low rank. Round 0 sums P = M Q
// over the ranks, and all ranks orthonormalise the sum to the same P'. Round 1 sums Q = M^T P' and
// the parts that are not matrices. The bucket is the sum of P' Q^T. The difference between M and P'
// P'^T M stays in the residual. With a state, Q of the last step, with unit columns, starts the
// next step, which makes the steps a power iteration. The state's first Q, or every Q without a
// state, is drawn from the shared seed. The rank r of a matrix of n rows and m columns is the
// integer nearest to ratio * n * m / (n + m), at least 1. Vectors, small matrices and matrices that
// would not shrink are sent as they are. Without shapes the bucket is one near-square matrix and a
// rest.
// Payload: round 0: for each matrix n rows of r float32; round 1: for each part in order, either r
// rows of m float32 or its elements.
// Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019; deviates: the rank follows from a
// ratio; the start is uniform in place of normal (so that bits which must agree do not depend on
// libm); dense parts are sent in the second round; columns that depend on others are dropped (zero)
// rather than normalised from rounding errors.
// Memory: O(r (n + m)) in addition to payload and residual.

#include <algorithm>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/matrix.h"
#include "datapath/codec/low_rank.h"

namespace weir {
namespace {

/// The product P = M Q of one matrix.
std::vector<float> LeftFactor(const PassOperands& operands, const Factor& factor,
                              const std::vector<float>& q, kernels::Sums* sums) {
  const size_t rank = factor.rank, columns = factor.part.columns;
  std::vector<float> p(factor.first_floats());
  std::vector<double> dots(rank);
  ForEachStretch(
      operands, factor.part, sums, [&](size_t row, size_t column, const float* e, size_t size) {
        if (column == 0) std::fill(dots.begin(), dots.end(), 0.0);
        kernels::AddDotProducts(
            e, size, {.data = q.data() + column, .stride = columns, .count = rank}, dots.data());
        if (column + size < columns) return;
        for (size_t k = 0; k < rank; ++k) {
          p[row * rank + k] = static_cast<float>(dots[k]);
        }
      });
  return p;
}

/// The product Q = M^T P of one matrix, transposed, with rank rows.
std::vector<float> RightFactor(const PassOperands& operands, const Factor& factor,
                               const std::vector<float>& p, kernels::Sums* sums) {
  std::vector<float> q(factor.last_floats(), 0.0f);
  ForEachStretch(operands, factor.part, sums,
                 [&](size_t row, size_t column, const float* e, size_t size) {
                   kernels::AddOuterProduct(p.data() + row * factor.rank, factor.rank, e, size,
                                            factor.part.columns, q.data() + column);
                 });
  return q;
}

/// Computes rest = M - P Q^T and returns its energy.
double SubtractProduct(const PassOperands& operands, const Factor& factor,
                       const std::vector<float>& p, const std::vector<float>& q) {
  kernels::Sums lost;
  std::vector<float> negative(p);
  for (float& v : negative) v = -v;
  ForEachStretch(
      operands, factor.part, nullptr, [&](size_t row, size_t column, float* e, size_t size) {
        kernels::AddCombination(
            negative.data() + row * factor.rank,
            {.data = q.data() + column, .stride = factor.part.columns, .count = factor.rank}, size,
            e);
        const size_t at = factor.part.at + row * factor.part.columns + column;
        kernels::Measure({.gradient = e, .size = size},
                         operands.rest.empty() ? nullptr : operands.rest.data() + at, &lost);
      });
  return lost.energy_in;
}

class PowerSgdCodec : public WithFloatLanes<FusedCodec> {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override {
    const StatusOr<FactorLayout> layout = MakeFactorLayout(traits_, n, context);
    WEIR_CHECK(layout.ok());
    return layout->bytes();
  }

  std::unique_ptr<CodecState> NewState(size_t, const EncodeContext&) const override {
    return std::make_unique<PowerSgdState>();
  }

  /// O(n * rank). With a state, the sum of Q becomes the start of the next step.
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    WEIR_ASSIGN_OR_RETURN(const FactorLayout layout,
                          MakeFactorLayout(traits_, out.size(), context));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, layout.bytes()));
    WEIR_RETURN_IF_ERROR(CheckFinite(traits_, payload));
    std::vector<std::vector<float>> next(layout.factors.size());
    size_t first = 0, last = layout.first_floats;
    for (size_t index = 0; index < layout.factors.size(); ++index) {
      const Factor& factor = layout.factors[index];
      next[index] = LoadFloats(payload, last, factor.last_floats());
      last += factor.last_floats();
      float* to = out.data() + factor.part.at;
      if (factor.rank == 0) {
        for (size_t i = 0; i < factor.part.elements(); ++i) to[i] += scale * next[index][i];
        next[index].clear();
        continue;
      }
      std::vector<float> p = LoadFloats(payload, first, factor.first_floats());
      first += factor.first_floats();
      Orthonormalise(factor.rank, p);
      for (float& v : p) v *= scale;
      AddProduct(factor, p, next[index], to);
      NormaliseRows(factor.rank, next[index]);
    }
    if (auto* state = dynamic_cast<PowerSgdState*>(context.state)) state->q = std::move(next);
    return OkStatus();
  }

 private:
  static void AddProduct(const Factor& factor, const std::vector<float>& p,
                         const std::vector<float>& q, float* to) {
    const size_t columns = factor.part.columns;
    for (size_t row = 0; row < factor.part.rows; ++row) {
      for (size_t at = 0; at < columns; at += kernels::kBlockElements) {
        kernels::AddCombination(p.data() + row * factor.rank,
                                {.data = q.data() + at, .stride = columns, .count = factor.rank},
                                std::min(kernels::kBlockElements, columns - at),
                                to + row * columns + at);
      }
    }
  }

  /// Round 0: O(n * rank). Round 1: twice that, and O(rows * rank^2).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    WEIR_ASSIGN_OR_RETURN(const FactorLayout layout,
                          MakeFactorLayout(traits_, operands.gradient.size(), context));
    const size_t first_bytes = layout.first_floats * sizeof(float);
    if (context.round == 0) {
      WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, layout.bytes()));
      return First(operands, context, layout, out.first(first_bytes));
    }
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, layout.bytes() - first_bytes));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, context.previous, first_bytes));
    return Last(operands, context, layout, out.first(layout.bytes() - first_bytes));
  }

  EncodeResult First(const PassOperands& operands, const EncodeContext& context,
                     const FactorLayout& layout, std::span<std::byte> out) const {
    kernels::Sums sums;
    size_t at = 0;
    for (size_t index = 0; index < layout.factors.size(); ++index) {
      const Factor& factor = layout.factors[index];
      if (factor.rank == 0) {
        const size_t begin = factor.part.at, size = factor.part.elements();
        const kernels::Sums dense = MeasureOperands(
            {.gradient = operands.gradient.subspan(begin, size),
             .residual = operands.residual.empty() ? operands.residual
                                                   : operands.residual.subspan(begin, size)},
            nullptr);
        sums.max_bits = std::max(sums.max_bits, dense.max_bits);
        continue;
      }
      const std::vector<float> q = StartOf(factor, index, context);
      StoreFloats(LeftFactor(operands, factor, q, &sums), out, at);
      at += factor.first_floats();
    }
    return LaneResult(sums, out);
  }

  EncodeResult Last(const PassOperands& operands, const EncodeContext& context,
                    const FactorLayout& layout, std::span<std::byte> out) const {
    if (context.statistics != nullptr) MeasureOperands(operands, context.statistics);
    kernels::Sums sums;
    size_t from = 0, at = 0;
    for (const Factor& factor : layout.factors) {
      if (factor.rank == 0) {
        ForEachStretch(operands, factor.part, &sums,
                       [&](size_t row, size_t column, const float* e, size_t size) {
                         const size_t offset = row * factor.part.columns + column;
                         StoreFloats({e, size}, out, at + offset);
                         if (operands.rest.empty()) return;
                         std::fill_n(operands.rest.data() + factor.part.at + offset, size, 0.0f);
                       });
      } else {
        std::vector<float> p = LoadFloats(context.previous, from, factor.first_floats());
        from += factor.first_floats();
        Orthonormalise(factor.rank, p);
        const std::vector<float> q = RightFactor(operands, factor, p, &sums);
        StoreFloats(q, out, at);
        sums.energy_lost += SubtractProduct(operands, factor, p, q);
      }
      at += factor.last_floats();
    }
    return LaneResult(sums, out);
  }

  const CodecTraits traits_ = {
      .name = "power_sgd",
      .summary = "low-rank factors by warm-started power iteration (Vogels et al. 2019)",
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .rounds = 2,
      .settings = {{.kept_bits = 32}},
      .size_in_steps = true,
      .uses_ratio = true,
      .ratio_min = 1e-6,
      .ratio_max = 1,
      // The loss of matrices without structure. The gain of gradients is only known once it runs.
      .error_model = ErrorModel::kUniformSelection,
      // Half the ratio for a matrix with equal singular values, because the rank is rounded.
      .contraction = 0.25,
  };
};

}  // namespace

void RegisterPowerSgd(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<PowerSgdCodec>());
}

}  // namespace weir
