// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bucket as a list of matrices, and the code that codecs share which compress matrices in rounds:
// iteration over rows of gradient + residual, and payloads of float32.

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/codec.h"

namespace weir {

/// Matrices of fewer elements are sent uncompressed, because compression saves nothing.
inline constexpr size_t kMatrixElementsMin = 128;

/// A part of a bucket, row-major.
struct MatrixPart {
  size_t at = 0;  // index of its first element
  size_t rows = 1;
  size_t columns = 0;
  size_t elements() const { return rows * columns; }
};

/// The matrices of a bucket in order: the tensors of context.shape or, without shapes, one
/// near-square matrix and the rest as a vector. kInvalidArgument when the sizes do not add up to n.
/// O(tensors).
StatusOr<std::vector<MatrixPart>> SplitIntoMatrices(const CodecTraits& traits, size_t n,
                                                    const EncodeContext& context);

/// Calls visit(row, column, e, size) for stretches of at most kBlockElements of every row in order,
/// where e is gradient + residual there. Adds to `sums` unless it is null.
template <typename Visit>
void ForEachStretch(const PassOperands& operands, const MatrixPart& part, kernels::Sums* sums,
                    Visit&& visit) {
  alignas(64) float e[kernels::kBlockElements];
  kernels::Sums ignored;
  for (size_t row = 0; row < part.rows; ++row) {
    for (size_t column = 0; column < part.columns; column += kernels::kBlockElements) {
      const size_t at = part.at + row * part.columns + column;
      const kernels::Block block{
          .gradient = operands.gradient.data() + at,
          .residual = operands.residual.empty() ? nullptr : operands.residual.data() + at,
          .size = std::min(kernels::kBlockElements, part.columns - column)};
      kernels::Measure(block, e, sums != nullptr ? sums : &ignored);
      visit(row, column, e, block.size);
    }
  }
}

/// Energy and maximum of gradient + residual and, where `statistics` is set, its statistics. One
/// pass.
kernels::Sums MeasureOperands(const PassOperands& operands, GradientStatistics* statistics);

/// Reads or writes `count` floats of a payload, beginning with float number `first`. The caller has
/// checked the size.
std::vector<float> LoadFloats(std::span<const std::byte> payload, size_t first, size_t count);
void StoreFloats(std::span<const float> values, std::span<std::byte> payload, size_t first);

/// kDataLoss with the offset of the first float that is not finite, if there is one.
Status CheckFinite(const CodecTraits& traits, std::span<const std::byte> payload);

}  // namespace weir
