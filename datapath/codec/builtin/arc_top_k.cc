// SPDX-License-Identifier: Apache-2.0
// ARC-Top-K: sends whole rows of every matrix of the bucket, which all ranks choose together. Round
// 0 sums a sketch P = G V of each matrix G. V has four columns of random signs divided by 2, from
// the shared seed, so that the squared length of a row of P estimates that of the row of the summed
// gradient. The max(1, floor(ratio * rows)) longest rows of the sum are kept, the first ones in
// case of a tie. Round 1 sums those rows and the parts that are not matrices. Rows that are left
// out remain in the residual. Vectors, small matrices, and matrices for which sketch and rows would
// not be smaller than the matrix are sent as they are. Without shapes the bucket is one near-square
// matrix and a rest.
// Payload: round 0: for each matrix `rows` times 4 float32; round 1: for each part in order, either
// the kept rows, ascending, or its elements, float32. Entry (j, k) of V is +-1/2: it is negative if
// bit j * 4 + k % 64 of MixSeed(MixSeed(seed, part), (j * 4 + k) / 64) is set.
// Source: "ARC-Top-K", arXiv 2510.26709; deviates: signs in place of normal numbers (they have the
// same variance, and their bits do not depend on libm), plain error feedback.

#include <algorithm>
#include <numeric>

#include "datapath/base/random.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/matrix.h"
#include "datapath/codec/matrices.h"

namespace weir {
namespace {

constexpr size_t kSketch = 4;

/// A part and its number of kept rows, which is 0 if the part is sent as it is.
struct RowChoice {
  MatrixPart part;
  size_t kept = 0;

  size_t first_floats() const { return kept > 0 ? part.rows * kSketch : 0; }
  size_t last_floats() const { return kept > 0 ? kept * part.columns : part.elements(); }
};

struct SketchLayout {
  std::vector<RowChoice> choices;
  size_t first_floats = 0, last_floats = 0;
  size_t bytes() const { return (first_floats + last_floats) * sizeof(float); }
};

size_t KeptRows(const MatrixPart& part, double ratio) {
  if (part.rows < 2 || part.elements() < kMatrixElementsMin) return 0;
  const auto kept =
      std::max<size_t>(1, static_cast<size_t>(ratio * static_cast<double>(part.rows)));
  return part.rows * kSketch + kept * part.columns < part.elements() ? kept : 0;
}

/// V transposed, which has kSketch rows.
std::vector<float> DrawSigns(uint64_t seed, size_t index, size_t columns) {
  const uint64_t stream = MixSeed(seed, index);
  std::vector<float> v(columns * kSketch);
  uint64_t word = 0;
  for (size_t at = 0; at < v.size(); ++at) {
    if (at % 64 == 0) word = MixSeed(stream, at / 64);
    v[at % kSketch * columns + at / kSketch] = (word >> (at % 64) & 1) != 0 ? -0.5f : 0.5f;
  }
  return v;
}

/// The kept rows of one matrix, chosen by the summed sketch, ascending. O(rows).
std::vector<size_t> ChooseRows(const RowChoice& choice, const std::vector<float>& sketch) {
  std::vector<double> length(choice.part.rows, 0.0);
  for (size_t i = 0; i < sketch.size(); ++i) {
    length[i / kSketch] += static_cast<double>(sketch[i]) * sketch[i];
  }
  std::vector<size_t> rows(choice.part.rows);
  std::iota(rows.begin(), rows.end(), size_t{0});
  const auto longer = [&](size_t a, size_t b) {
    return length[a] != length[b] ? length[a] > length[b] : a < b;
  };
  const auto end = rows.begin() + static_cast<ptrdiff_t>(choice.kept);
  std::nth_element(rows.begin(), end - 1, rows.end(), longer);
  rows.erase(end, rows.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

class ArcTopKCodec : public WithFloatLanes<FusedCodec> {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override {
    const StatusOr<SketchLayout> layout = MakeLayout(n, context);
    WEIR_CHECK(layout.ok());
    return layout->bytes();
  }

  /// O(rows + kept elements).
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    WEIR_ASSIGN_OR_RETURN(const SketchLayout layout, MakeLayout(out.size(), context));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, layout.bytes()));
    WEIR_RETURN_IF_ERROR(CheckFinite(traits_, payload));
    size_t first = 0, last = layout.first_floats;
    const auto add = [&](size_t to, size_t size) {
      kernels::DecodeAddFloat(payload.data() + last * sizeof(float), size, scale, out.data() + to);
      last += size;
    };
    for (const RowChoice& choice : layout.choices) {
      if (choice.kept == 0) {
        add(choice.part.at, choice.part.elements());
        continue;
      }
      const std::vector<float> sketch = LoadFloats(payload, first, choice.first_floats());
      first += choice.first_floats();
      for (const size_t row : ChooseRows(choice, sketch)) {
        add(choice.part.at + row * choice.part.columns, choice.part.columns);
      }
    }
    return OkStatus();
  }

 private:
  StatusOr<SketchLayout> MakeLayout(size_t n, const EncodeContext& context) const {
    WEIR_ASSIGN_OR_RETURN(const std::vector<MatrixPart> parts,
                          SplitIntoMatrices(traits_, n, context));
    SketchLayout layout;
    for (const MatrixPart& part : parts) {
      layout.choices.push_back({.part = part, .kept = KeptRows(part, context.params.ratio)});
      layout.first_floats += layout.choices.back().first_floats();
      layout.last_floats += layout.choices.back().last_floats();
    }
    return layout;
  }

  /// Round 0: one pass, O(n). Round 1: two, O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    WEIR_ASSIGN_OR_RETURN(const SketchLayout layout, MakeLayout(operands.gradient.size(), context));
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
                     const SketchLayout& layout, std::span<std::byte> out) const {
    kernels::Sums sums;
    size_t to = 0;
    for (size_t index = 0; index < layout.choices.size(); ++index) {
      const RowChoice& choice = layout.choices[index];
      const size_t columns = choice.part.columns;
      std::vector<float> signs, sketch(choice.first_floats());
      if (choice.kept > 0) signs = DrawSigns(context.seed, index, columns);
      double dots[kSketch] = {};
      ForEachStretch(operands, choice.part, &sums,
                     [&](size_t row, size_t column, const float* e, size_t size) {
                       if (choice.kept == 0) return;
                       if (column == 0) std::fill_n(dots, kSketch, 0.0);
                       kernels::AddDotProducts(
                           e, size,
                           {.data = signs.data() + column, .stride = columns, .count = kSketch},
                           dots);
                       if (column + size < columns) return;
                       for (size_t k = 0; k < kSketch; ++k) {
                         sketch[row * kSketch + k] = static_cast<float>(dots[k]);
                       }
                     });
      StoreFloats(sketch, out, to);
      to += sketch.size();
    }
    return LaneResult(sums, out);
  }

  EncodeResult Last(const PassOperands& operands, const EncodeContext& context,
                    const SketchLayout& layout, std::span<std::byte> out) const {
    kernels::Sums sums = MeasureOperands(operands, context.statistics);
    if (sums.non_finite()) return LaneResult(sums, out);
    size_t from = 0, to = 0;
    kernels::Sums lost;
    for (const RowChoice& choice : layout.choices) {
      std::vector<bool> kept(choice.part.rows, choice.kept == 0);
      if (choice.kept > 0) {
        const std::vector<float> sketch = LoadFloats(context.previous, from, choice.first_floats());
        from += choice.first_floats();
        for (const size_t row : ChooseRows(choice, sketch)) kept[row] = true;
      }
      ForEachStretch(
          operands, choice.part, nullptr, [&](size_t row, size_t column, float* e, size_t size) {
            if (kept[row]) {
              StoreFloats({e, size}, out, to);
              to += size;
              std::fill_n(e, size, 0.0f);
            }
            const size_t at = choice.part.at + row * choice.part.columns + column;
            kernels::Measure({.gradient = e, .size = size},
                             operands.rest.empty() ? nullptr : operands.rest.data() + at, &lost);
          });
    }
    sums.energy_lost = lost.energy_in;
    return LaneResult(sums, out);
  }

  const CodecTraits traits_ = {
      .name = "arc_top_k",
      .summary = "rows of matrices by a summed sketch (arXiv 2510.26709)",
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .rounds = 2,
      .settings = {{.kept_bits = 32}},
      .size_in_steps = true,
      .uses_ratio = true,
      .ratio_min = 1e-6,
      .ratio_max = 1,
      // The loss of matrices with similar rows. The gain of gradients is only known once it runs.
      .error_model = ErrorModel::kUniformSelection,
      // Rounding the number of rows down at most halves it.
      .contraction = 0.45,
  };
};

}  // namespace

void RegisterArcTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<ArcTopKCodec>());
}

}  // namespace weir
