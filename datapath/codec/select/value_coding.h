#pragma once
// How the kept values of a selection become bytes. Bytes: proto/WIRE.md section 3.

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
  kInt8 = 3,        // sign and 7 bits of magnitude, one step size per kValueBlock values
  kInt4 = 4,        // sign and 3 bits of magnitude, likewise
  kTwoMeans = 5,    // sign bits; one magnitude for the positive values, one for the negative
  kQuantiles8 = 6,  // numbers of up to 256 buckets that hold equally many values, and their means
  kQuantiles6 = 7,  // likewise up to 64
};
inline constexpr ValueFormat kValueFormatLast = ValueFormat::kQuantiles6;

/// Values that share a step size in kInt8 and kInt4.
inline constexpr size_t kValueBlock = 256;

/// 2^exponent, -126 <= exponent <= 127.
float PowerOfTwo(int exponent);
/// The power of two that brings magnitudes up to max_abs below 2^15, `headroom` powers lower, as
/// far as factor and its reciprocal stay normal.
int HalfExponent(float max_abs, int headroom);

/// Exact size of `count` values. O(1).
uint64_t ValueBytes(ValueFormat format, uint64_t count);
/// Most that `count` values take when `format` is asked for: kHalf may turn into kFloat. O(1).
size_t MaxValueBytes(ValueFormat format, size_t count);

/// Writes values (finite, not zero, magnitudes normal) as kInt8, kInt4, kTwoMeans or quantiles into
/// out (ValueBytes) and replaces each by what the bytes lack of it: value - decoded. With levels,
/// the error is at most half a step and never larger than the value. O(values).
void EncodeValues(ValueFormat format, std::span<float> values, std::byte* out);

/// Reads a value section in order, trusting nothing. `payload` outlives it.
class ValueDecoder {
 public:
  /// Values of `count` begin at byte `at` of the payload, which holds ValueBytes from there.
  ValueDecoder(ValueFormat format, int exponent, std::span<const std::byte> payload, size_t at,
               size_t count);
  /// The next `size` values: a multiple of kValueBlock but for the last call. kDataLoss with the
  /// offset: a value that is not finite, set padding bits, a negative step.
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
  size_t sign_ = 0;           // kTwoMeans: values read
  float first_ = 0;           // kInt8, kInt4: smallest magnitude; kTwoMeans: the positive mean
  float second_ = 0;          // kTwoMeans: the negative mean
  bool header_read_ = false;  // of the formats that begin with one
  std::vector<float> means_;  // of the quantile formats
};

}  // namespace weir
