// SPDX-License-Identifier: Apache-2.0
#pragma once
// The SIMD kernels of the codecs, dispatched at run time to the best instruction set of the
// machine. They work on blocks of at most kBlockElements, which are small enough that several
// kernels can visit a block while it is in the first-level cache. Every target gives the same
// bytes, except for energies, whose last bits depend on the order of addition.

#include <cstddef>
#include <cstdint>

namespace weir::kernels {

/// The number of elements of a block; a multiple of kSampleGroup.
inline constexpr size_t kBlockElements = 2048;
/// When a histogram is sampled, one run of kSampleRun elements is counted in every group of this
/// many.
inline constexpr size_t kSampleGroup = 128;
inline constexpr size_t kSampleRun = 16;
/// The space that Select needs after the last entry that it keeps.
inline constexpr size_t kSelectSlack = 64;

/// The number of the run of a group that a sampled histogram counts. It is a hash instead of a
/// constant, because the lengths of tensors' rows are often multiples of the group.
constexpr uint64_t SampledRun(uint64_t group) { return group * 0x9E3779B97F4A7C15ull >> 61; }
constexpr bool IsSampled(uint64_t position) {
  return SampledRun(position / kSampleGroup) == position % kSampleGroup / kSampleRun;
}

/// The results of a pass; kernels add to them.
struct Sums {
  double energy_in = 0;    // sum of squares of gradient + residual
  double energy_lost = 0;  // sum of squares of the errors of the payload
  uint32_t max_bits = 0;   // pattern of the largest |gradient + residual|, or of a NaN

  bool non_finite() const { return max_bits >= 0x7F800000u; }
  float max_abs() const;  // +infinity when non_finite
  void Add(const Sums& other);
};

/// One block of a pass over e = gradient + residual. Pointers may be unaligned unless stated.
struct Block {
  const float* gradient = nullptr;
  const float* residual = nullptr;  // null: zeros
  size_t size = 0;                  // <= kBlockElements
};

/// Counts |e| of the block into 4096 bins by the top 12 bits of the pattern, each element with
/// `weight`. `first_group` is the position of the block in units of kSampleGroup. With `sampled`,
/// one run per group is counted, the same on every machine.
void Histogram(const Block& block, bool sampled, uint64_t first_group, uint32_t weight,
               uint32_t* bins) noexcept;

/// Computes energy and largest magnitude of e, and stores e when `out` is set (it may equal
/// gradient or residual).
void Measure(const Block& block, float* out, Sums* sums) noexcept;

/// Like Measure, but stores e as unaligned float32 bytes.
void MeasureToBytes(const Block& block, void* out, Sums* sums) noexcept;

/// The values that Select stores as the rest.
struct SelectRest {
  float* rest = nullptr;  // null: nothing; may equal residual
  /// The rest of selected elements: zero, e itself, or e minus its half-precision value at `scale`.
  enum class Kept { kNothing, kWhole, kHalfError } kept = Kept::kNothing;
  float scale = 1;  // a power of two
  /// Uses non-temporal stores; `rest` is aligned to 64 bytes. FlushStreams must be called before
  /// another thread may read.
  bool streamed = false;
};
/// Appends (base + position, e) of every |e| > threshold to `indices` and `values` (with space for
/// size + kSelectSlack), stores e as `rest` says, and returns the number appended. energy_lost is
/// not changed.
size_t Select(const Block& block, float threshold, uint32_t base, const SelectRest& rest,
              uint32_t* indices, float* values, Sums* sums) noexcept;
/// Copies with non-temporal stores; `to` is aligned to 64 bytes. FlushStreams must be called before
/// another thread may read.
void CopyPast(const float* from, float* to, size_t size) noexcept;
void FlushStreams() noexcept;

/// The elements above a threshold t: moments of the excess y = |e| - t. Kernels add to it.
struct TailMoments {
  uint64_t count = 0;
  double sum = 0;                     // of y
  double sum_squares = 0;             // of y
  float smallest = 3.402823466e+38f;  // of |e|
  float largest = 0;                  // of |e|
  double sum_logs = 0;                // of ln |e|; by LogsAbove
};
/// Adds the elements of the block with |e| > threshold; NaN does not count. With `sampled`, only
/// the runs that Histogram counts. The last bits of the sums depend on the target.
void MomentsAbove(const Block& block, float threshold, bool sampled, uint64_t first_group,
                  TailMoments* moments) noexcept;
/// The same for sum_logs only. `threshold` is a normal number.
void LogsAbove(const Block& block, float threshold, bool sampled, uint64_t first_group,
               TailMoments* moments) noexcept;

/// next = factor * current + gradient; `next` may be `current`.
void AddMomentum(const float* gradient, const float* current, size_t size, float factor,
                 float* next) noexcept;

/// A grid of magnitudes low + q * step for 0 <= q <= levels. levels + 1 is a power of two, and the
/// next bit of a code is the sign.
struct MagnitudeGrid {
  float low = 0;
  float step = 0;  // 0: `low` is the only level
  int levels = 127;
};
/// Rounds |values| to the nearest grid point and replaces the values by their errors.
void QuantiseMagnitudes(float* values, size_t size, const MagnitudeGrid& grid,
                        uint8_t* codes) noexcept;

/// Half precision, rounded to nearest even: out = fp16(clamp(e * scale, +-limit)), where limit <=
/// 65504 and scale is a power of two. `rest`, if set, is e - out / scale, exactly.
void EncodeHalf(const Block& block, float scale, float limit, uint16_t* out, float* rest,
                Sums* sums) noexcept;
/// out[i] += factor * fp16 in[i]. Returns false when a lane is NaN or infinite; `out` is a partial
/// sum then.
bool DecodeAddHalf(const uint16_t* in, size_t size, float factor, float* out) noexcept;
/// sum += addend in half precision, saturating at +-65504.
void AccumulateHalf(uint16_t* sum, const uint16_t* addend, size_t size) noexcept;
/// Sums of squares of values and of their rounding errors.
struct RoundingEnergy {
  double values = 0;
  double errors = 0;
};
/// out[i] = fp16(values[i] * scale), and errors[i] is the error of values[i]; `errors` may be
/// `values`. All three arrays have space up to the next multiple of 16, which is used.
RoundingEnergy RoundToHalf(const float* values, size_t size, float scale, uint16_t* out,
                           float* errors) noexcept;

/// bfloat16, rounded to nearest even. Finite values that would round to infinity saturate.
void EncodeBrain(const Block& block, uint16_t* out, float* rest, Sums* sums) noexcept;
bool DecodeAddBrain(const uint16_t* in, size_t size, float factor, float* out) noexcept;
void AccumulateBrain(uint16_t* sum, const uint16_t* addend, size_t size) noexcept;

/// out[i] += factor * in[i]; `in` may be unaligned bytes. Returns false when an input is NaN or
/// infinite.
bool DecodeAddFloat(const void* in, size_t size, float factor, float* out) noexcept;
/// sum[i] += addend[i] over unaligned float32 lanes.
void AccumulateFloat(void* sum, const void* addend, size_t size) noexcept;
/// x[i] *= scale. Returns false when an element is NaN or infinite, before or after. Nothing is
/// written where scale is 1.
bool ScaleFinite(float* x, size_t size, float scale) noexcept;

}  // namespace weir::kernels
