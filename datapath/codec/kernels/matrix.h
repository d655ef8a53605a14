// SPDX-License-Identifier: Apache-2.0
#pragma once
// SIMD kernels of the low-rank and row-selecting codecs: products of a stretch of a matrix row, in
// the first-level cache, with several vectors at once. Every target gives the same bytes.

#include <cstddef>

namespace weir::kernels {

/// `count` vectors of floats, `stride` apart; a stretch of `size` of each is used. Unaligned.
struct Vectors {
  const float* data = nullptr;
  size_t stride = 0;
  size_t count = 0;
};

/// sums[k] += <e, vectors[k]> for k < count. Within a stretch it uses sixteen partial sums in
/// float; size is at most kBlockElements.
void AddDotProducts(const float* e, size_t size, const Vectors& vectors, double* sums) noexcept;

/// y += the sum over k of coefficients[k] * vectors[k], added in order.
void AddCombination(const float* coefficients, const Vectors& vectors, size_t size,
                    float* y) noexcept;

/// rows[k * stride + i] += coefficients[k] * e[i] for k < count.
void AddOuterProduct(const float* coefficients, size_t count, const float* e, size_t size,
                     size_t stride, float* rows) noexcept;

}  // namespace weir::kernels
