// SPDX-License-Identifier: Apache-2.0
// Operations on a rotated block: rounding to summable integer lanes, and codebooks whose indices
// are stored as bit planes.

#include "datapath/codec/kernels/hadamard.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/rotated.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

constexpr size_t kLanes = hn::MaxLanes(F32());

using I8 = hn::Rebind<int8_t, F32>;
using I16 = hn::Rebind<int16_t, F32>;

// --- Integer lanes -------------------------------------------------------------------------------

/// The energy lost, where `steps` is the sum of squares of errors in units of the step. Without a
/// step, or with one that is not usable for the block, it is the energy of y.
HWY_INLINE double LostInSteps(double steps, double step, float inverse_step, const float* y,
                              size_t size) {
  const double lost = steps * step * step;
  return inverse_step > 0 && lost < std::numeric_limits<double>::max() ? lost : EnergyOf(y, size);
}

template <class LaneTag, bool kLost, typename Lane>
double QuantiseRotated(const RotatedGrid& grid, uint32_t counter, size_t size, float* y,
                       Lane* out) {
  const F32 d;
  Noise noise(grid.seed, counter);
  const VF32 inverse_step = hn::Set(d, grid.inverse_step), step = hn::Set(d, grid.step);
  const VF32 levels = hn::Set(d, grid.levels);
  Loss lost;
  for (size_t i = 0; i < size; i += kLanes) {
    const VF32 scaled = hn::Mul(hn::Load(d, y + i), inverse_step);
    const VF32 u = noise.Uniform();
    // Clamp before rounding, too, so that large values do not overflow the conversion.
    const VF32 z = ClampTo(scaled, levels);
    const VF32 q = ClampTo(hn::Floor(hn::Add(z, u)), levels);
    hn::StoreU(hn::DemoteTo(LaneTag(), hn::ConvertTo(I32(), q)), LaneTag(), out + i);
    if constexpr (kLost) {
      lost.Add(hn::Sub(scaled, q));
    } else {
      hn::Store(hn::Mul(q, step), d, y + i);
    }
  }
  return kLost ? LostInSteps(lost.Total(), grid.step, grid.inverse_step, y, size) : 0;
}

void QuantiseRotated8(const RotatedGrid& grid, uint32_t counter, size_t size, float* y, int8_t* out,
                      double* lost) {
  if (lost != nullptr) {
    *lost += QuantiseRotated<I8, true>(grid, counter, size, y, out);
  } else {
    QuantiseRotated<I8, false>(grid, counter, size, y, out);
  }
}
void QuantiseRotated16(const RotatedGrid& grid, uint32_t counter, size_t size, float* y,
                       int16_t* out, double* lost) {
  if (lost != nullptr) {
    *lost += QuantiseRotated<I16, true>(grid, counter, size, y, out);
  } else {
    QuantiseRotated<I16, false>(grid, counter, size, y, out);
  }
}

template <class LaneTag, bool kLost, typename Lane>
double QuantiseSparse(const SparseGrid& grid, uint32_t counter, size_t size, float* y, Lane* out) {
  const F32 d;
  const I32 di;
  Noise noise(grid.seed, counter);
  const VF32 inverse_step = hn::Set(d, grid.inverse_step), step = hn::Set(d, grid.step);
  const VF32 centre = hn::Set(d, static_cast<float>(grid.centre));
  const VI32 last_cell = hn::Set(di, 2 * grid.centre - 1);
  Loss lost;
  for (size_t i = 0; i < size; i += kLanes) {
    const VF32 scaled = hn::Mul(hn::Load(d, y + i), inverse_step);
    const VF32 u = noise.Uniform();
    const VF32 z = hn::Add(ClampTo(scaled, centre), centre);
    // Clamp as an integer, too: NaN (from input that counts as lost) may have become anything.
    const VI32 cell = hn::Max(hn::Min(hn::ConvertTo(di, z), last_cell), hn::Zero(di));
    const VI32 packed = hn::GatherIndex(di, grid.cells, cell);
    const VF32 below = hn::ConvertTo(d, hn::And(packed, hn::Set(di, 0xFFFF)));
    const VF32 width = hn::ConvertTo(d, hn::ShiftRight<16>(packed));
    const auto up = hn::Lt(hn::Mul(u, width), hn::Sub(z, below));
    const VF32 q = hn::Sub(hn::Add(below, hn::IfThenElseZero(up, width)), centre);
    hn::StoreU(hn::DemoteTo(LaneTag(), hn::ConvertTo(di, q)), LaneTag(), out + i);
    if constexpr (kLost) {
      lost.Add(hn::Sub(scaled, q));
    } else {
      hn::Store(hn::Mul(q, step), d, y + i);
    }
  }
  return kLost ? LostInSteps(lost.Total(), grid.step, grid.inverse_step, y, size) : 0;
}

void QuantiseSparse8(const SparseGrid& grid, uint32_t counter, size_t size, float* y, int8_t* out,
                     double* lost) {
  if (lost != nullptr) {
    *lost += QuantiseSparse<I8, true>(grid, counter, size, y, out);
  } else {
    QuantiseSparse<I8, false>(grid, counter, size, y, out);
  }
}
void QuantiseSparse16(const SparseGrid& grid, uint32_t counter, size_t size, float* y, int16_t* out,
                      double* lost) {
  if (lost != nullptr) {
    *lost += QuantiseSparse<I16, true>(grid, counter, size, y, out);
  } else {
    QuantiseSparse<I16, false>(grid, counter, size, y, out);
  }
}

template <class LaneTag, typename Lane>
HWY_INLINE void LoadRotated(const Lane* lanes, size_t size, float step, float* y) {
  const VF32 scale = hn::Set(F32(), step);
  for (size_t i = 0; i < size; i += kLanes) {
    const VI32 q = hn::PromoteTo(I32(), hn::LoadU(LaneTag(), lanes + i));
    hn::Store(hn::Mul(hn::ConvertTo(F32(), q), scale), F32(), y + i);
  }
}

void LoadRotated8(const int8_t* lanes, size_t size, float step, float* y) {
  LoadRotated<I8>(lanes, size, step, y);
}
void LoadRotated16(const uint8_t* lanes, size_t size, float step, float* y) {
  // Copied run by run, because the payload need not be aligned for 16-bit lanes.
  HWY_ALIGN int16_t run[kRun];
  for (size_t i = 0; i < size; i += kRun) {
    std::memcpy(run, lanes + i * sizeof(int16_t), sizeof(run));
    LoadRotated<I16>(run, kRun, step, y + i);
  }
}

// --- Four-bit lanes ------------------------------------------------------------------------------

using U8 = hn::CappedTag<uint8_t, kRotationMin / 2>;
using VU8 = hn::Vec<U8>;

void PackNibbles(const int8_t* lanes, size_t size, uint8_t* out) {
  const U8 d;
  const VU8 low_bits = hn::Set(d, 0x0F);
  const auto* bytes = reinterpret_cast<const uint8_t*>(lanes);
  for (size_t i = 0; i < size / 2; i += hn::Lanes(d)) {
    const VU8 low = hn::And(hn::LoadU(d, bytes + i), low_bits);
    const VU8 high = hn::And(hn::LoadU(d, bytes + i + size / 2), low_bits);
    // Multiplies by 16 by doubling, because not every target can shift octets.
    const VU8 twice = hn::Add(high, high), fourfold = hn::Add(twice, twice);
    const VU8 eightfold = hn::Add(fourfold, fourfold);
    hn::StoreU(hn::Or(low, hn::Add(eightfold, eightfold)), d, out + i);
  }
}

void UnpackNibbles(const uint8_t* in, size_t size, int8_t* lanes) {
  for (size_t i = 0; i < size / 2; ++i) {  // simple enough for compilers to vectorise
    lanes[i] = static_cast<int8_t>(((in[i] & 0x0F) ^ 8) - 8);
    lanes[i + size / 2] = static_cast<int8_t>(((in[i] >> 4) ^ 8) - 8);
  }
}

// --- Sums in a fixed order -----------------------------------------------------------------------

constexpr size_t kVectors = kRun / kLanes;

/// Adds sixteen lanes in the order of all targets.
HWY_INLINE double AddLanes(const VF32 (&parts)[kVectors]) {
  HWY_ALIGN float lanes[kRun];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(parts[v], F32(), lanes + v * kLanes);
  double sums[4];
  for (size_t j = 0; j < 4; ++j) {
    sums[j] = (static_cast<double>(lanes[j]) + lanes[j + 4]) +
              (static_cast<double>(lanes[j + 8]) + lanes[j + 12]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

HWY_INLINE void AddProduct(VF32& sum, VF32 a, VF32 b) { sum = hn::Add(sum, hn::Mul(a, b)); }

/// Element i is added to partial sum i % 16, in double and in that order.
double WideSquareSum(const float* y, size_t size) {
  double parts[kRun] = {};
  for (size_t i = 0; i < size; ++i) {
    parts[i % kRun] += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  }
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

double SquareSum(const float* y, size_t size) {
  VF32 parts[kVectors];
  for (VF32& part : parts) part = hn::Zero(F32());
  for (size_t i = 0; i < size; i += kRun) {
    for (size_t v = 0; v < kVectors; ++v) {
      const VF32 value = hn::Load(F32(), y + i + v * kLanes);
      AddProduct(parts[v], value, value);
    }
  }
  // Every target gets the same total, so all take the same branch.
  const double total = AddLanes(parts);
  return total > 0x1p-80 && total < 0x1p100 ? total : WideSquareSum(y, size);
}

// --- Codebooks -----------------------------------------------------------------------------------

/// Looks up the centroids of given numbers.
template <int kCentroids>
struct Centroids {
  static constexpr bool kInRegister = kLanes >= kCentroids && kLanes >= 8;
  VF32 table;
  const float* values;

  HWY_INLINE explicit Centroids(const Codebook& book) : values(book.centroids) {
    HWY_ALIGN float lanes[kRun] = {};
    std::copy_n(book.centroids, kCentroids, lanes);
    table = hn::Load(F32(), lanes);
  }
  HWY_INLINE VF32 Of(VI32 number) const {
    if constexpr (kInRegister) {
      return hn::TableLookupLanes(table, hn::IndicesFromVec(F32(), number));
    } else {
      VF32 centroid = hn::Set(F32(), values[0]);
      for (int c = 1; c < kCentroids; ++c) {
        const auto here = hn::RebindMask(F32(), hn::Eq(number, hn::Set(I32(), c)));
        centroid = hn::IfThenElse(here, hn::Set(F32(), values[c]), centroid);
      }
      return centroid;
    }
  }
};

/// Collects bit kBit of every number into the run's sixteen bits.
template <int kBit>
HWY_INLINE uint32_t PlaneOf(VI32 number, size_t offset) {
  const VI32 top = hn::ShiftLeft<31 - kBit>(number);
  return BitsOf(hn::RebindMask(F32(), hn::Lt(top, hn::Zero(I32()))), offset);
}

template <int kBits>
CodebookSums EncodeBook(const Codebook& book, float inverse_scale, const float* y, size_t size,
                        uint8_t* planes) {
  constexpr int kCentroids = 1 << (kBits - 1);
  const F32 d;
  const VF32 inverse = hn::Set(d, inverse_scale);
  const Centroids<kCentroids> centroids(book);
  VF32 products[kVectors], squares[kVectors];
  for (size_t v = 0; v < kVectors; ++v) products[v] = squares[v] = hn::Zero(d);
  for (size_t i = 0; i < size; i += kRun) {
    uint32_t words[4] = {};
    for (size_t v = 0; v < kVectors; ++v) {
      const size_t j = v * kLanes;
      const VF32 value = hn::Load(d, y + i + j);
      const VF32 magnitude = hn::Abs(value);
      words[kBits - 1] |= BitsOf(hn::Lt(value, hn::Zero(d)), j);
      if constexpr (kBits == 1) {
        products[v] = hn::Add(products[v], magnitude);
        continue;
      }
      const VF32 z = hn::Mul(magnitude, inverse);
      VI32 number = hn::Zero(I32());
      for (int c = 1; c < kCentroids; ++c) {
        const auto above = hn::Gt(z, hn::Set(d, book.boundaries[c - 1]));
        number = hn::Sub(number, hn::VecFromMask(I32(), hn::RebindMask(I32(), above)));
      }
      const VF32 centroid = centroids.Of(number);
      AddProduct(products[v], centroid, magnitude);
      AddProduct(squares[v], centroid, centroid);
      if constexpr (kBits > 1) words[0] |= PlaneOf<0>(number, j);
      if constexpr (kBits > 2) words[1] |= PlaneOf<1>(number, j);
      if constexpr (kBits > 3) words[2] |= PlaneOf<2>(number, j);
    }
    for (int k = 0; k < kBits; ++k) {
      uint8_t* plane = planes + static_cast<size_t>(k) * (size / 8) + i / 8;
      plane[0] = static_cast<uint8_t>(words[k]);
      plane[1] = static_cast<uint8_t>(words[k] >> 8);
    }
  }
  if constexpr (kBits == 1) {
    const double first = book.centroids[0];
    return {.product = first * AddLanes(products),
            .square = first * first * static_cast<double>(size)};
  }
  return {.product = AddLanes(products), .square = AddLanes(squares)};
}

template <int kBits>
void DecodeBook(const Codebook& book, const uint8_t* planes, size_t size, float factor, float* y) {
  constexpr int kCentroids = 1 << (kBits - 1);
  const F32 d;
  const U32 du;
  VF32 values[kCentroids];
  for (int c = 0; c < kCentroids; ++c) values[c] = hn::Set(d, book.centroids[c] * factor);
  const VU32 first_bits = hn::Shl(hn::Set(du, 1u), hn::Iota(du, 0u));
  for (size_t i = 0; i < size; i += kRun) {
    uint32_t words[kBits];
    for (int k = 0; k < kBits; ++k) {
      const uint8_t* plane = planes + static_cast<size_t>(k) * (size / 8) + i / 8;
      words[k] = plane[0] | static_cast<uint32_t>(plane[1]) << 8;
    }
    for (size_t j = 0; j < kRun; j += kLanes) {
      VF32 tree[kCentroids];
      for (int c = 0; c < kCentroids; ++c) tree[c] = values[c];
      for (int k = 0; k < kBits - 1; ++k) {
        const auto set = hn::RebindMask(d, hn::TestBit(hn::Set(du, words[k] >> j), first_bits));
        for (int c = 0; c < kCentroids >> (k + 1); ++c) {
          tree[c] = hn::IfThenElse(set, tree[2 * c + 1], tree[2 * c]);
        }
      }
      const auto negative =
          hn::RebindMask(d, hn::TestBit(hn::Set(du, words[kBits - 1] >> j), first_bits));
      hn::Store(hn::IfThenElse(negative, hn::Neg(tree[0]), tree[0]), d, y + i + j);
    }
  }
}

CodebookSums EncodeCodebook(const Codebook& book, float inverse_scale, const float* y, size_t size,
                            uint8_t* planes) {
  switch (book.bits) {
    case 1:
      return EncodeBook<1>(book, inverse_scale, y, size, planes);
    case 2:
      return EncodeBook<2>(book, inverse_scale, y, size, planes);
    case 3:
      return EncodeBook<3>(book, inverse_scale, y, size, planes);
    default:
      return EncodeBook<4>(book, inverse_scale, y, size, planes);
  }
}

void DecodeCodebook(const Codebook& book, const uint8_t* planes, size_t size, float factor,
                    float* y) {
  switch (book.bits) {
    case 1:
      return DecodeBook<1>(book, planes, size, factor, y);
    case 2:
      return DecodeBook<2>(book, planes, size, factor, y);
    case 3:
      return DecodeBook<3>(book, planes, size, factor, y);
    default:
      return DecodeBook<4>(book, planes, size, factor, y);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(QuantiseRotated8);
HWY_EXPORT(QuantiseRotated16);
HWY_EXPORT(QuantiseSparse8);
HWY_EXPORT(QuantiseSparse16);
HWY_EXPORT(LoadRotated8);
HWY_EXPORT(LoadRotated16);
HWY_EXPORT(PackNibbles);
HWY_EXPORT(UnpackNibbles);
HWY_EXPORT(SquareSum);
HWY_EXPORT(EncodeCodebook);
HWY_EXPORT(DecodeCodebook);

void QuantiseRotated8(const RotatedGrid& grid, uint32_t counter, size_t size, float* y, int8_t* out,
                      double* lost) noexcept {
  HWY_DYNAMIC_DISPATCH(QuantiseRotated8)(grid, counter, size, y, out, lost);
}
void QuantiseRotated16(const RotatedGrid& grid, uint32_t counter, size_t size, float* y,
                       int16_t* out, double* lost) noexcept {
  HWY_DYNAMIC_DISPATCH(QuantiseRotated16)(grid, counter, size, y, out, lost);
}
void QuantiseSparse8(const SparseGrid& grid, uint32_t counter, size_t size, float* y, int8_t* out,
                     double* lost) noexcept {
  HWY_DYNAMIC_DISPATCH(QuantiseSparse8)(grid, counter, size, y, out, lost);
}
void QuantiseSparse16(const SparseGrid& grid, uint32_t counter, size_t size, float* y, int16_t* out,
                      double* lost) noexcept {
  HWY_DYNAMIC_DISPATCH(QuantiseSparse16)(grid, counter, size, y, out, lost);
}
void LoadRotated8(const int8_t* lanes, size_t size, float step, float* y) noexcept {
  HWY_DYNAMIC_DISPATCH(LoadRotated8)(lanes, size, step, y);
}
void LoadRotated16(const void* lanes, size_t size, float step, float* y) noexcept {
  HWY_DYNAMIC_DISPATCH(LoadRotated16)(static_cast<const uint8_t*>(lanes), size, step, y);
}
void PackNibbles(const int8_t* lanes, size_t size, uint8_t* out) noexcept {
  HWY_DYNAMIC_DISPATCH(PackNibbles)(lanes, size, out);
}
void UnpackNibbles(const uint8_t* in, size_t size, int8_t* lanes) noexcept {
  HWY_DYNAMIC_DISPATCH(UnpackNibbles)(in, size, lanes);
}
double SquareSum(const float* y, size_t size) noexcept {
  return HWY_DYNAMIC_DISPATCH(SquareSum)(y, size);
}
CodebookSums EncodeCodebook(const Codebook& book, float inverse_scale, const float* y, size_t size,
                            uint8_t* planes) noexcept {
  if (book.bits >= kCodebookBitsWide) {
    return EncodeWideCodebook(book, inverse_scale, y, size, planes);
  }
  return HWY_DYNAMIC_DISPATCH(EncodeCodebook)(book, inverse_scale, y, size, planes);
}
void DecodeCodebook(const Codebook& book, const uint8_t* planes, size_t size, float factor,
                    float* y) noexcept {
  if (book.bits >= kCodebookBitsWide) return DecodeWideCodebook(book, planes, size, factor, y);
  HWY_DYNAMIC_DISPATCH(DecodeCodebook)(book, planes, size, factor, y);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
