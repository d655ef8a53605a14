// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes the kept values of a selection. Bytes: proto/WIRE.md section 3.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

enum class ValueFormat : uint8_t {
  kNone = 0,        // positions only
  kHalf = 1,        // binary16 times 2^-exponent
  kFloat = 2,       // float32
  kInt8 = 3,        // sign and 7 bits of magnitude; a step size per kValueBlock values
  kInt4 = 4,        // sign and 3 bits of magnitude, likewise
  kTwoMeans = 5,    // sign bits; one magnitude for positive and one for negative values
  kQuantiles8 = 6,  // numbers of up to 256 buckets with equally many values; their means
  kQuantiles6 = 7,  // the same with up to 64 buckets
};
inline constexpr ValueFormat kValueFormatLast = ValueFormat::kQuantiles6;
constexpr bool IsQuantiles(ValueFormat format) {
  return format == ValueFormat::kQuantiles8 || format == ValueFormat::kQuantiles6;
}

/// kQuantiles: the bins of each sign from which buckets are made, and the most buckets. A bin is so
/// narrow that the sum of fewer than 2^28 values in it is exact in double precision.
inline constexpr uint32_t kQuantileBins = 2048;
inline constexpr uint32_t kQuantileBucketsMax = 256;
/// The least number of values per bucket, so that means cost at most half a bit per value unless
/// there are few values, and the number of buckets then.
inline constexpr uint64_t kBucketValuesMin = 64;
inline constexpr uint64_t kBucketsMin = 8;

/// The number of values that share a step size in kInt8 and kInt4.
inline constexpr size_t kValueBlock = 256;

/// 2^exponent, -126 <= exponent <= 127.
float PowerOfTwo(int exponent);
/// The exponent of a power of two that scales magnitudes up to max_abs below 2^15, reduced by
/// `headroom`, as far as the factor and its reciprocal stay normal.
int HalfExponent(float max_abs, int headroom);

/// The exact size of `count` values. O(1).
uint64_t ValueBytes(ValueFormat format, uint64_t count);
/// The most bytes of `count` values when `format` is requested; kHalf may become kFloat. O(1).
size_t MaxValueBytes(ValueFormat format, size_t count);

/// Encodes values (finite, not zero, magnitudes normal) as kInt8, kInt4, kTwoMeans or quantiles
/// into `out` (ValueBytes), and replaces each by its error: value - decoded. With levels, the error
/// is at most half a step and never larger than the value. O(values).
void EncodeValues(ValueFormat format, std::span<float> values, std::byte* out);

/// Reads a section of values in order, trusting nothing. `payload` must outlive it.
class ValueDecoder {
 public:
  /// `count` values begin at byte `at` of the payload, which holds ValueBytes from there on.
  ValueDecoder(ValueFormat format, int exponent, std::span<const std::byte> payload, size_t at,
               size_t count);
  /// The next `size` values, a multiple of kValueBlock except in the last call. kDataLoss with the
  /// offset: a value is not finite, padding bits are set, or a step is negative.
  Status Next(size_t size, float* values);

 private:
  Status NextLevels(size_t size, float* values);
  Status NextSigns(size_t size, float* values);
  Status NextQuantiles(size_t size, float* values);

  ValueFormat format_;
  int exponent_;
  std::span<const std::byte> payload_;
  size_t at_;
  size_t left_;
  size_t sign_ = 0;           // kTwoMeans: number of values read
  float first_ = 0;           // kInt8, kInt4: smallest magnitude; kTwoMeans: the positive mean
  float second_ = 0;          // kTwoMeans: the negative mean
  bool header_read_ = false;  // of formats that begin with one
  std::vector<float> means_;  // of the quantile formats
};

}  // namespace weir
