// SPDX-License-Identifier: Apache-2.0
// The randomised Hadamard transform. Every target runs the levels from the longest stride to the
// shortest, and each coordinate gets the same additions in the same order, so all give the same
// bytes.

#include "datapath/codec/kernels/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/hadamard.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

constexpr size_t kLanes = hn::MaxLanes(F32());

// --- Levels --------------------------------------------------------------------------------------

HWY_INLINE void Butterfly(VF32& a, VF32& b) {
  const VF32 sum = hn::Add(a, b);
  b = hn::Sub(a, b);
  a = sum;
}

#if HWY_TARGET != HWY_SCALAR
/// v with lanes i and i ^ kStride exchanged.
template <size_t kStride>
HWY_INLINE VF32 Exchange(VF32 v) {
  if constexpr (kStride == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kStride == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kStride == kLanes / 2) {
    return hn::ConcatLowerUpper(F32(), v, v);
  } else {
    return hn::SwapAdjacentBlocks(v);
  }
}

/// The sign bit in every lane i for which i & kStride is not 0.
template <size_t kStride>
HWY_INLINE VF32 UpperSigns() {
  constexpr int kShift = kStride == 1 ? 31 : kStride == 2 ? 30 : kStride == 4 ? 29 : 28;
  const VU32 upper = hn::And(hn::Iota(U32(), 0u), hn::Set(U32(), uint32_t{kStride}));
  return hn::BitCast(F32(), hn::ShiftLeft<kShift>(upper));
}

/// One level inside a vector: a + b in the lower lane of a pair, a - b in the upper one.
template <size_t kStride>
HWY_INLINE VF32 LevelInside(VF32 v) {
  return hn::Add(Exchange<kStride>(v), hn::Xor(v, UpperSigns<kStride>()));
}
#endif

/// The last four levels, with strides 8 to 1, of one run of 16.
HWY_INLINE void TransformRun(float* y) {
  constexpr size_t kVectors = kRun / kLanes;
  VF32 v[kVectors];
  for (size_t j = 0; j < kVectors; ++j) v[j] = hn::Load(F32(), y + j * kLanes);
  for (size_t distance = kVectors / 2; distance > 0; distance /= 2) {
    for (size_t j = 0; j < kVectors; ++j) {
      if ((j & distance) == 0) Butterfly(v[j], v[j + distance]);
    }
  }
  for (size_t j = 0; j < kVectors; ++j) {
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kLanes > 8) v[j] = LevelInside<8>(v[j]);
    if constexpr (kLanes > 4) v[j] = LevelInside<4>(v[j]);
    if constexpr (kLanes > 2) v[j] = LevelInside<2>(v[j]);
    if constexpr (kLanes > 1) v[j] = LevelInside<1>(v[j]);
#endif
    hn::Store(v[j], F32(), y + j * kLanes);
  }
}

/// Three levels, with strides of 4, 2 and 1 vectors.
HWY_INLINE void Radix8(VF32 (&v)[8]) {
  Butterfly(v[0], v[4]);
  Butterfly(v[1], v[5]);
  Butterfly(v[2], v[6]);
  Butterfly(v[3], v[7]);
  Butterfly(v[0], v[2]);
  Butterfly(v[1], v[3]);
  Butterfly(v[4], v[6]);
  Butterfly(v[5], v[7]);
  Butterfly(v[0], v[1]);
  Butterfly(v[2], v[3]);
  Butterfly(v[4], v[5]);
  Butterfly(v[6], v[7]);
}

/// Three levels, with strides 4 * step, 2 * step and step >= kRun.
void Radix8Pass(float* y, size_t size, size_t step) {
  for (size_t base = 0; base < size; base += 8 * step) {
    for (size_t i = base; i < base + step; i += kLanes) {
      VF32 v[8];
      for (size_t k = 0; k < 8; ++k) v[k] = hn::Load(F32(), y + i + k * step);
      Radix8(v);
      for (size_t k = 0; k < 8; ++k) hn::Store(v[k], F32(), y + i + k * step);
    }
  }
}

void Radix2Pass(float* y, size_t size, size_t stride) {
  for (size_t base = 0; base < size; base += 2 * stride) {
    for (size_t i = base; i < base + stride; i += kLanes) {
      VF32 a = hn::Load(F32(), y + i), b = hn::Load(F32(), y + i + stride);
      Butterfly(a, b);
      hn::Store(a, F32(), y + i);
      hn::Store(b, F32(), y + i + stride);
    }
  }
}

/// All levels from stride `stride` down.
void LevelsFrom(float* y, size_t size, size_t stride) {
  for (; stride >= 4 * kRun; stride /= 8) Radix8Pass(y, size, stride / 4);
  for (; stride >= kRun; stride /= 2) Radix2Pass(y, size, stride);
  for (size_t i = 0; i < size; i += kRun) TransformRun(y + i);
}

void Hadamard(float* y, size_t size) { LevelsFrom(y, size, size / 2); }

// --- Signs ---------------------------------------------------------------------------------------

/// Converts the bits of one word to the signs of the vector whose first element corresponds to bit
/// `first`.
struct SignBits {
  VU32 from_top;  // 31 - lane
  HWY_INLINE SignBits() : from_top(hn::Sub(hn::Set(U32(), 31u), hn::Iota(U32(), 0u))) {}
  HWY_INLINE VF32 Of(const RotationSigns& signs, size_t i) const {
    const VU32 word = hn::Set(U32(), signs.words[i / 32]);
    const VU32 distance = hn::Sub(from_top, hn::Set(U32(), static_cast<uint32_t>(i % 32)));
    const VU32 moved = hn::Shl(word, distance);
    return hn::BitCast(F32(), hn::And(moved, hn::Set(U32(), 0x80000000u)));
  }
};

// --- Whole rotations -----------------------------------------------------------------------------

template <bool kResidual>
HWY_INLINE VF32 LoadSigned(const Block& block, const RotationSigns& signs, const SignBits& bits,
                           VF32 scale, size_t i, InputSums& input) {
  const VF32 e = LoadSum<kResidual>(block, i);
  input.Add(e);
  return hn::Xor(hn::Mul(e, scale), bits.Of(signs, i));
}

template <bool kResidual>
void RotateRuns(const Block& block, const RotationSigns& signs, float* y, Sums* sums) {
  const SignBits bits;
  const VF32 scale = hn::Set(F32(), 1.0f / static_cast<float>(block.size));
  InputSums input;
  if (block.size == kRotationElements) {
    // Do the first three levels while the input is in registers.
    constexpr size_t kStep = kRotationElements / 8;
    for (size_t i = 0; i < kStep; i += kLanes) {
      VF32 v[8];
      for (size_t k = 0; k < 8; ++k) {
        // Processors do not recognise eight interleaved streams, so prefetch them explicitly.
        if (i % kRun == 0) {
          ReadAhead(block.gradient + i + k * kStep, kRotationElements);
          if constexpr (kResidual) ReadAhead(block.residual + i + k * kStep, kRotationElements);
        }
        v[k] = LoadSigned<kResidual>(block, signs, bits, scale, i + k * kStep, input);
      }
      Radix8(v);
      for (size_t k = 0; k < 8; ++k) hn::Store(v[k], F32(), y + i + k * kStep);
    }
    LevelsFrom(y, kRotationElements, kStep / 2);
  } else {
    for (size_t i = 0; i < block.size; i += kLanes) {
      hn::Store(LoadSigned<kResidual>(block, signs, bits, scale, i, input), F32(), y + i);
    }
    Hadamard(y, block.size);
  }
  input.Store(sums);
}

void Rotate(const Block& block, const RotationSigns& signs, float* y, Sums* sums) {
  (block.residual != nullptr ? RotateRuns<true> : RotateRuns<false>)(block, signs, y, sums);
}

template <bool kResidual, bool kRest>
void SubtractSignedRuns(const Block& block, const RotationSigns& signs, const float* y, float* rest,
                        Sums* sums) {
  const SignBits bits;
  Energy lost;
  for (size_t i = 0; i < block.size; i += kLanes) {
    const VF32 decoded = hn::Xor(hn::Load(F32(), y + i), bits.Of(signs, i));
    const VF32 error = hn::Sub(LoadSum<kResidual>(block, i), decoded);
    lost.Add(error);
    if constexpr (kRest) hn::StoreU(error, F32(), rest + i);
  }
  sums->energy_lost += lost.Total();
}

void SubtractSigned(const Block& block, const RotationSigns& signs, const float* y, float* rest,
                    Sums* sums) {
  const auto run =
      block.residual != nullptr
          ? (rest != nullptr ? SubtractSignedRuns<true, true> : SubtractSignedRuns<true, false>)
          : (rest != nullptr ? SubtractSignedRuns<false, true> : SubtractSignedRuns<false, false>);
  run(block, signs, y, rest, sums);
}

void AddSigned(const RotationSigns& signs, const float* y, size_t count, float factor, float* out) {
  const SignBits bits;
  const VF32 scale = hn::Set(F32(), factor);
  const size_t whole = count & ~(kRun - 1);
  for (size_t i = 0; i < whole; i += kLanes) {
    const VF32 x = hn::Xor(hn::Load(F32(), y + i), bits.Of(signs, i));
    const VF32 sum = hn::Add(hn::LoadU(F32(), out + i), hn::Mul(x, scale));
    hn::StoreU(sum, F32(), out + i);
  }
  for (size_t i = whole; i < count; ++i) {
    const bool negative = (signs.words[i / 32] >> (i % 32) & 1) != 0;
    out[i] += (negative ? -y[i] : y[i]) * factor;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(Rotate);
HWY_EXPORT(Hadamard);
HWY_EXPORT(SubtractSigned);
HWY_EXPORT(AddSigned);

void Rotate(const Block& block, const RotationSigns& signs, float* y, Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(Rotate)(block, signs, y, sums);
}
void Hadamard(float* y, size_t size) noexcept { HWY_DYNAMIC_DISPATCH(Hadamard)(y, size); }
void SubtractSigned(const Block& block, const RotationSigns& signs, const float* y, float* rest,
                    Sums* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(SubtractSigned)(block, signs, y, rest, sums);
}
void AddSigned(const RotationSigns& signs, const float* y, size_t count, float factor,
               float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(AddSigned)(signs, y, count, factor, out);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
