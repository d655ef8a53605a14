// SPDX-License-Identifier: Apache-2.0
// Codebooks of many levels, in which the level of a coordinate is looked up by its cell.

#include <algorithm>
#include <limits>

#include "datapath/codec/kernels/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/codebook.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

constexpr size_t kLanes = hn::MaxLanes(F32());

/// Sixteen partial sums in double. Element i is added to number i % 16, whatever the length of
/// vectors.
struct PartialSums {
  static constexpr size_t kDoubles = hn::MaxLanes(F64());
  VF64 parts[kRun / kDoubles];

  HWY_INLINE PartialSums() {
    for (VF64& part : parts) part = hn::Zero(F64());
  }
  /// Products of two floats are exact in double, so fused and separate additions give the same.
  HWY_INLINE void Add(size_t offset, VF32 a, VF32 b) {
    VF64* part = parts + offset / kDoubles;
#if HWY_TARGET == HWY_SCALAR
    part[0] = hn::MulAdd(hn::PromoteTo(F64(), a), hn::PromoteTo(F64(), b), part[0]);
#else
    const F32Half half;
    part[0] = hn::MulAdd(hn::PromoteTo(F64(), hn::LowerHalf(half, a)),
                         hn::PromoteTo(F64(), hn::LowerHalf(half, b)), part[0]);
    part[1] = hn::MulAdd(hn::PromoteTo(F64(), hn::UpperHalf(half, a)),
                         hn::PromoteTo(F64(), hn::UpperHalf(half, b)), part[1]);
#endif
  }
  HWY_INLINE double Total() const {
    HWY_ALIGN double all[kRun];
    for (size_t j = 0; j < kRun / kDoubles; ++j) hn::Store(parts[j], F64(), all + j * kDoubles);
    double total = 0;
    for (const double each : all) total += each;
    return total;
  }
};

/// The bits of a mask, shifted to the place of the vector in its run.
HWY_INLINE uint32_t PlaneBits(hn::Mask<F32> mask, size_t offset) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(F32(), mask, bytes);
  return (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8) << offset;
}

CodebookSums EncodeWideCodebook(const Codebook& book, float inverse_scale, const float* y,
                                size_t size, uint8_t* planes) {
  const F32 d;
  const I32 di;
  const VF32 inverse = hn::Set(d, inverse_scale), cells = hn::Set(d, 64.0f);
  const VF32 last = hn::Set(d, static_cast<float>(kCodebookCells - 1));
  const int bits = book.bits;
  PartialSums products, squares;
  for (size_t i = 0; i < size; i += kRun) {
    uint32_t words[kCodebookBitsMax] = {};
    for (size_t j = 0; j < kRun; j += kLanes) {
      const VF32 v = hn::Load(d, y + i + j);
      const VF32 magnitude = hn::Abs(v);
      const VF32 z = hn::Mul(magnitude, inverse);
      const VI32 at = hn::ConvertTo(di, hn::Min(hn::Mul(z, cells), last));
      // Clamp as an integer, too, because the conversion of NaN may give anything.
      const VI32 cell = hn::Max(hn::Min(at, hn::Set(di, kCodebookCells - 1)), hn::Zero(di));
      // There is at most one boundary inside a cell.
      VI32 number = hn::GatherIndex(di, book.below, cell);
      const auto above = hn::Gt(z, hn::GatherIndex(d, book.boundaries, number));
      number = hn::Sub(number, hn::BitCast(di, hn::VecFromMask(d, above)));
      const VF32 centroid = hn::GatherIndex(d, book.centroids, number);
      products.Add(j, centroid, magnitude);
      squares.Add(j, centroid, centroid);
      for (int k = 0; k < bits - 1; ++k) {
        const auto set = hn::TestBit(number, hn::Set(di, 1 << k));
        words[k] |= PlaneBits(hn::RebindMask(d, set), j);
      }
      words[bits - 1] |= PlaneBits(hn::Lt(v, hn::Zero(d)), j);
    }
    for (int k = 0; k < bits; ++k) {
      uint8_t* plane = planes + static_cast<size_t>(k) * (size / 8) + i / 8;
      plane[0] = static_cast<uint8_t>(words[k]);
      plane[1] = static_cast<uint8_t>(words[k] >> 8);
    }
  }
  return {.product = products.Total(), .square = squares.Total()};
}

void DecodeWideCodebook(const Codebook& book, const uint8_t* planes, size_t size, float factor,
                        float* y) {
  const F32 d;
  const I32 di;
  const U32 du;
  const int count = 1 << (book.bits - 1);
  float values[1 << kCodebookBitsMax];
  for (int c = 0; c < count; ++c) {
    values[c] = book.centroids[c] * factor;
    values[count + c] = -values[c];
  }
  const VU32 first_bits = hn::Shl(hn::Set(du, 1u), hn::Iota(du, 0u));
  for (size_t i = 0; i < size; i += kRun) {
    for (size_t j = 0; j < kRun; j += kLanes) {
      VU32 number = hn::Zero(du);
      for (int k = 0; k < book.bits; ++k) {
        const uint8_t* plane = planes + static_cast<size_t>(k) * (size / 8) + i / 8;
        const uint32_t word = plane[0] | static_cast<uint32_t>(plane[1]) << 8;
        const auto set = hn::TestBit(hn::Set(du, word >> j), first_bits);
        number = hn::Or(number, hn::IfThenElseZero(set, hn::Set(du, 1u << k)));
      }
      hn::Store(hn::GatherIndex(d, values, hn::BitCast(di, number)), d, y + i + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(EncodeWideCodebook);
HWY_EXPORT(DecodeWideCodebook);

CodebookSums EncodeWideCodebook(const Codebook& book, float inverse_scale, const float* y,
                                size_t size, uint8_t* planes) noexcept {
  return HWY_DYNAMIC_DISPATCH(EncodeWideCodebook)(book, inverse_scale, y, size, planes);
}
void DecodeWideCodebook(const Codebook& book, const uint8_t* planes, size_t size, float factor,
                        float* y) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeWideCodebook)(book, planes, size, factor, y);
}

Codebook MakeCodebook(int bits, const float* centroids) {
  const int count = 1 << (bits - 1);
  Codebook book{.bits = bits};
  for (int c = 0; c < count; ++c) {
    book.centroids[c] = centroids[c];
    if (c > 0) book.boundaries[c - 1] = (centroids[c - 1] + centroids[c]) / 2;
  }
  if (bits < kCodebookBitsWide) return book;
  for (int cell = 0; cell < kCodebookCells; ++cell) {
    const float begin = static_cast<float>(cell) / 64;
    book.below[cell] = static_cast<int32_t>(
        std::lower_bound(book.boundaries, book.boundaries + count - 1, begin) - book.boundaries);
  }
  book.boundaries[count - 1] = std::numeric_limits<float>::infinity();
  return book;
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
