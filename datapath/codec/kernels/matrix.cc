// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/kernels/matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/matrix.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

constexpr size_t kLanes = hn::MaxLanes(F32());
constexpr size_t kPartials = kRun / kLanes;

/// Adds the sixteen partial sums in a fixed order.
HWY_INLINE double Total(const VF32 (&partials)[kPartials]) {
  HWY_ALIGN float lanes[kRun];
  for (size_t j = 0; j < kPartials; ++j) hn::Store(partials[j], F32(), lanes + j * kLanes);
  double total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

/// The products of one stretch with kTogether vectors, which share the loads of e.
template <size_t kTogether>
HWY_INLINE void DotsOf(const float* e, size_t size, const float* vectors, size_t stride,
                       double* sums) {
  const F32 d;
  VF32 partials[kTogether][kPartials];
  for (auto& each : partials) {
    for (VF32& partial : each) partial = hn::Zero(d);
  }
  const size_t whole = size & ~(kRun - 1);
  for (size_t i = 0; i < whole; i += kRun) {
    for (size_t j = 0; j < kPartials; ++j) {
      const VF32 v = hn::LoadU(d, e + i + j * kLanes);
      for (size_t k = 0; k < kTogether; ++k) {
        const VF32 w = hn::LoadU(d, vectors + k * stride + i + j * kLanes);
        partials[k][j] = hn::Add(partials[k][j], hn::Mul(v, w));
      }
    }
  }
  for (size_t k = 0; k < kTogether; ++k) {
    double total = Total(partials[k]);
    for (size_t i = whole; i < size; ++i) {
      total += static_cast<double>(e[i]) * vectors[k * stride + i];
    }
    sums[k] += total;
  }
}

void AddDotProducts(const float* e, size_t size, const Vectors& vectors, double* sums) {
  size_t k = 0;
  for (; k + 4 <= vectors.count; k += 4) {
    DotsOf<4>(e, size, vectors.data + k * vectors.stride, vectors.stride, sums + k);
  }
  for (; k < vectors.count; ++k) {
    DotsOf<1>(e, size, vectors.data + k * vectors.stride, vectors.stride, sums + k);
  }
}

void AddCombination(const float* coefficients, const Vectors& vectors, size_t size, float* y) {
  const F32 d;
  size_t i = 0;
  for (; i + kRun <= size; i += kRun) {
    VF32 sums[kPartials];
    for (size_t j = 0; j < kPartials; ++j) sums[j] = hn::LoadU(d, y + i + j * kLanes);
    for (size_t k = 0; k < vectors.count; ++k) {
      const VF32 c = hn::Set(d, coefficients[k]);
      const float* row = vectors.data + k * vectors.stride + i;
      for (size_t j = 0; j < kPartials; ++j) {
        sums[j] = hn::Add(sums[j], hn::Mul(c, hn::LoadU(d, row + j * kLanes)));
      }
    }
    for (size_t j = 0; j < kPartials; ++j) hn::StoreU(sums[j], d, y + i + j * kLanes);
  }
  for (; i < size; ++i) {
    for (size_t k = 0; k < vectors.count; ++k) {
      y[i] += coefficients[k] * vectors.data[k * vectors.stride + i];
    }
  }
}

void AddOuterProduct(const float* coefficients, size_t count, const float* e, size_t size,
                     size_t stride, float* rows) {
  const F32 d;
  for (size_t k = 0; k < count; ++k) {
    float* row = rows + k * stride;
    const VF32 c = hn::Set(d, coefficients[k]);
    size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      const VF32 term = hn::Mul(c, hn::LoadU(d, e + i));
      hn::StoreU(hn::Add(hn::LoadU(d, row + i), term), d, row + i);
    }
    for (; i < size; ++i) row[i] += coefficients[k] * e[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(AddDotProducts);
HWY_EXPORT(AddCombination);
HWY_EXPORT(AddOuterProduct);

void AddDotProducts(const float* e, size_t size, const Vectors& vectors, double* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddDotProducts)(e, size, vectors, sums);
}
void AddCombination(const float* coefficients, const Vectors& vectors, size_t size,
                    float* y) noexcept {
  HWY_DYNAMIC_DISPATCH(AddCombination)(coefficients, vectors, size, y);
}
void AddOuterProduct(const float* coefficients, size_t count, const float* e, size_t size,
                     size_t stride, float* rows) noexcept {
  HWY_DYNAMIC_DISPATCH(AddOuterProduct)(coefficients, count, e, size, stride, rows);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
