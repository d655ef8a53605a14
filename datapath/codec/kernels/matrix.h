#pragma once
// SIMD kernels of the low-rank and row-selecting codecs: products of one stretch of a matrix row,
// in the first-level cache, with several vectors at once. Every target gives the same bytes.

#include <cstddef>

namespace weir::kernels {

/// `count` vectors of floats, `stride` apart, of which a stretch of `size` is in use. Unaligned.
struct Vectors {
  const float* data = nullptr;
  size_t stride = 0;
  size_t count = 0;
};

/// sums[k] += <e, vectors[k]>, k < count. Inside a stretch in float, sixteen partial sums; size at
/// most kBlockElements.
void AddDotProducts(const float* e, size_t size, const Vectors& vectors, double* sums) noexcept;

/// y += sum over k of coefficients[k] * vectors[k], added one after another.
void AddCombination(const float* coefficients, const Vectors& vectors, size_t size,
                    float* y) noexcept;

/// rows[k * stride + i] += coefficients[k] * e[i], k < count.
void AddOuterProduct(const float* coefficients, size_t count, const float* e, size_t size,
                     size_t stride, float* rows) noexcept;

}  // namespace weir::kernels
