// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/select/value_coding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/base/check.h"
#include "datapath/codec/kernels/quantise.h"

namespace weir {
namespace {

constexpr size_t kMeansBytes = 2 * sizeof(float);

/// The highest level of a magnitude.
int Levels(ValueFormat format) { return format == ValueFormat::kInt8 ? 127 : 7; }
size_t CodeBytes(ValueFormat format, size_t count) {
  return format == ValueFormat::kInt8 ? count : (count + 1) / 2;
}

/// The step from `low` to `high` in `levels`; 0 when they are too close for the reciprocal of a
/// step.
float StepOf(float low, float high, int levels) {
  float step = (high - low) / static_cast<float>(levels);
  if (!(step >= std::numeric_limits<float>::min())) return 0;
  while (!std::isfinite(low + static_cast<float>(levels) * step)) step = std::nextafter(step, 0.0f);
  return step;
}

void EncodeLevels(ValueFormat format, std::span<float> values, std::byte* out) {
  float low = std::numeric_limits<float>::max();
  for (const float value : values) low = std::min(low, std::abs(value));
  std::memcpy(out, &low, sizeof(low));
  out += sizeof(low);
  const int levels = Levels(format);
  uint8_t codes[kValueBlock + 1];
  for (size_t at = 0; at < values.size(); at += kValueBlock) {
    const size_t size = std::min(kValueBlock, values.size() - at);
    float high = low;
    for (size_t i = 0; i < size; ++i) high = std::max(high, std::abs(values[at + i]));
    const float step = StepOf(low, high, levels);
    std::memcpy(out, &step, sizeof(step));
    out += sizeof(step);
    kernels::QuantiseMagnitudes(values.data() + at, size,
                                {.low = low, .step = step, .levels = levels}, codes);
    if (format == ValueFormat::kInt8) {
      std::memcpy(out, codes, size);
    } else {
      codes[size] = 0;
      for (size_t i = 0; i < size; i += 2) {
        out[i / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
      }
    }
    out += CodeBytes(format, size);
  }
}

void EncodeSigns(std::span<float> values, std::byte* out) {
  double sums[2] = {};
  size_t counts[2] = {};
  for (const float value : values) {
    const int negative = std::signbit(value) ? 1 : 0;
    sums[negative] += value;
    ++counts[negative];
  }
  float means[2];
  for (const int side : {0, 1}) {
    means[side] = counts[side] == 0
                      ? 0.0f
                      : static_cast<float>(sums[side] / static_cast<double>(counts[side]));
  }
  std::memcpy(out, means, kMeansBytes);
  out += kMeansBytes;
  std::memset(out, 0, (values.size() + 7) / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    const unsigned negative = std::signbit(values[i]) ? 1 : 0;
    out[i / 8] |= static_cast<std::byte>(negative << (i % 8));
    values[i] -= means[negative];
  }
}

int QuantileBits(ValueFormat format) { return format == ValueFormat::kQuantiles8 ? 8 : 6; }
size_t QuantileBuckets(ValueFormat format, uint64_t count) {
  const uint64_t most = uint64_t{1} << QuantileBits(format);
  return std::clamp(count / kBucketValuesMin, std::min(kBucketsMin, count), most);
}
size_t QuantileCodeBytes(ValueFormat format, uint64_t count) {
  return (count * static_cast<uint64_t>(QuantileBits(format)) + 7) / 8;
}

/// Values sorted into bins. The range of the bit patterns of magnitudes is cut into equal parts,
/// which is nearly logarithmic. Bins of negative values are mirrored and come first.
class QuantileBins {
 public:
  explicit QuantileBins(std::span<const float> values)
      : counts_(2 * kQuantileBins, 0), sums_(2 * kQuantileBins, 0.0) {
    uint32_t largest = 0;
    for (const float value : values) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
      least_ = std::min(least_, magnitude);
      largest = std::max(largest, magnitude);
    }
    while ((largest - least_) >> shift_ >= kQuantileBins) ++shift_;
    for (const float value : values) {
      const uint32_t bin = BinOf(value);
      ++counts_[bin];
      sums_[bin] += value;
      negatives_ += bin < kQuantileBins;
    }
  }

  uint32_t BinOf(float value) const {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFFu;
    const uint32_t part = (magnitude - least_) >> shift_;
    return bits == magnitude ? kQuantileBins + part : kQuantileBins - 1 - part;
  }

  /// Cuts the bins into means.size() buckets with about equal numbers of values, none of which has
  /// both signs if there are two. Fills in their means (zero for a bucket without values) and the
  /// bucket of each bin.
  void Cut(size_t count, std::span<float> means, std::span<uint8_t> bucket_of_bin) const {
    const size_t buckets = means.size(), positives = count - negatives_;
    size_t below = count == 0 ? 0 : (buckets * negatives_ + count / 2) / count;
    if (negatives_ > 0) below = std::max<size_t>(below, 1);
    if (positives > 0) below = std::min(below, buckets - 1);
    std::vector<double> sums(buckets, 0.0);
    std::vector<size_t> sizes(buckets, 0);
    size_t before = 0;
    for (uint32_t bin = 0; bin < 2 * kQuantileBins; ++bin) {
      const bool negative = bin < kQuantileBins;
      if (bin == kQuantileBins) before = 0;
      const size_t side = negative ? below : buckets - below;
      const size_t side_values = negative ? negatives_ : positives;
      // The bucket of the middle value of the bin.
      size_t bucket =
          side == 0 || counts_[bin] == 0 ? 0 : (before + counts_[bin] / 2) * side / side_values;
      bucket = std::min((negative ? 0 : below) + bucket, buckets - 1);
      before += counts_[bin];
      bucket_of_bin[bin] = static_cast<uint8_t>(bucket);
      sums[bucket] += sums_[bin];
      sizes[bucket] += counts_[bin];
    }
    for (size_t i = 0; i < buckets; ++i) {
      means[i] = sizes[i] == 0 ? 0.0f : static_cast<float>(sums[i] / static_cast<double>(sizes[i]));
    }
  }

 private:
  uint32_t least_ = 0x7FFFFFFFu;
  unsigned shift_ = 0;
  size_t negatives_ = 0;
  std::vector<uint32_t> counts_;
  std::vector<double> sums_;
};

void EncodeQuantiles(ValueFormat format, std::span<float> values, std::byte* out) {
  const QuantileBins bins(values);
  std::vector<float> means(QuantileBuckets(format, values.size()));
  std::vector<uint8_t> bucket_of_bin(2 * kQuantileBins);
  bins.Cut(values.size(), means, bucket_of_bin);
  std::memcpy(out, means.data(), means.size() * sizeof(float));
  out += means.size() * sizeof(float);
  const int bits = QuantileBits(format);
  uint8_t codes[kernels::kBlockElements];
  for (size_t at = 0; at < values.size(); at += kernels::kBlockElements) {
    const size_t size = std::min(kernels::kBlockElements, values.size() - at);
    for (size_t i = 0; i < size; ++i) {
      codes[i] = bucket_of_bin[bins.BinOf(values[at + i])];
      values[at + i] -= means[codes[i]];
    }
    kernels::PackBits(codes, size, bits, reinterpret_cast<uint8_t*>(out));
    out += QuantileCodeBytes(format, size);
  }
}

}  // namespace

float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

int HalfExponent(float max_abs, int headroom) {
  int exponent = 0;
  std::frexp(max_abs, &exponent);  // max_abs < 2^exponent
  return std::clamp(15 - headroom - exponent, -126, 120);
}

uint64_t ValueBytes(ValueFormat format, uint64_t count) {
  switch (format) {
    case ValueFormat::kNone:
      return 0;
    case ValueFormat::kHalf:
      return 2 * count;
    case ValueFormat::kFloat:
      return 4 * count;
    case ValueFormat::kInt8:
    case ValueFormat::kInt4:
      if (count == 0) return 0;
      return sizeof(float) * (1 + (count + kValueBlock - 1) / kValueBlock) +
             CodeBytes(format, count);
    case ValueFormat::kTwoMeans:
      return count == 0 ? 0 : kMeansBytes + (count + 7) / 8;
    case ValueFormat::kQuantiles8:
    case ValueFormat::kQuantiles6:
      return sizeof(float) * QuantileBuckets(format, count) + QuantileCodeBytes(format, count);
  }
  return 0;
}

size_t MaxValueBytes(ValueFormat format, size_t count) {
  return ValueBytes(format == ValueFormat::kHalf ? ValueFormat::kFloat : format, count);
}

void EncodeValues(ValueFormat format, std::span<float> values, std::byte* out) {
  if (values.empty()) return;
  switch (format) {
    case ValueFormat::kInt8:
    case ValueFormat::kInt4:
      return EncodeLevels(format, values, out);
    case ValueFormat::kTwoMeans:
      return EncodeSigns(values, out);
    case ValueFormat::kQuantiles8:
    case ValueFormat::kQuantiles6:
      return EncodeQuantiles(format, values, out);
    case ValueFormat::kNone:
    case ValueFormat::kHalf:
    case ValueFormat::kFloat:
      break;
  }
  WEIR_CHECK(!"EncodeValues called for a format that the selection writes itself");
}

ValueDecoder::ValueDecoder(ValueFormat format, int exponent, std::span<const std::byte> payload,
                           size_t at, size_t count)
    : format_(format), exponent_(exponent), payload_(payload), at_(at), left_(count) {
  WEIR_CHECK(at + ValueBytes(format, count) <= payload.size());
  if (IsQuantiles(format)) {
    means_.resize(QuantileBuckets(format, count));
  }
}

Status ValueDecoder::Next(size_t size, float* values) {
  WEIR_CHECK(size <= left_);
  left_ -= size;
  std::memset(values, 0, size * sizeof(float));
  bool finite = true;
  const size_t begin = at_;
  switch (format_) {
    case ValueFormat::kNone:
      return OkStatus();
    case ValueFormat::kHalf: {
      const float factor = PowerOfTwo(-exponent_);
      uint16_t lanes[kernels::kBlockElements];
      for (size_t i = 0; i < size; i += std::size(lanes)) {
        const size_t part = std::min(std::size(lanes), size - i);
        std::memcpy(lanes, payload_.data() + at_, part * sizeof(uint16_t));
        finite = kernels::DecodeAddHalf(lanes, part, factor, values + i) && finite;
        at_ += part * sizeof(uint16_t);
      }
      break;
    }
    case ValueFormat::kFloat:
      finite = kernels::DecodeAddFloat(payload_.data() + at_, size, 1.0f, values);
      at_ += size * sizeof(float);
      break;
    case ValueFormat::kInt8:
    case ValueFormat::kInt4:
      return NextLevels(size, values);
    case ValueFormat::kTwoMeans:
      return NextSigns(size, values);
    case ValueFormat::kQuantiles8:
    case ValueFormat::kQuantiles6:
      return NextQuantiles(size, values);
  }
  if (finite) return OkStatus();
  return DataLoss(StrCat("value that is not finite in the batch at offset ", begin));
}

Status ValueDecoder::NextLevels(size_t size, float* values) {
  if (size == 0) return OkStatus();
  if (!header_read_) {
    std::memcpy(&first_, payload_.data() + at_, sizeof(first_));
    if (!(first_ >= 0) || !std::isfinite(first_)) {
      return DataLoss(StrCat("smallest magnitude at offset ", at_,
                             ": expected finite and not negative, found ", first_));
    }
    at_ += sizeof(first_);
    header_read_ = true;
  }
  const int levels = Levels(format_);
  for (size_t from = 0; from < size; from += kValueBlock) {
    const size_t part = std::min(kValueBlock, size - from);
    float step = 0;
    std::memcpy(&step, payload_.data() + at_, sizeof(step));
    if (!(step >= 0) || !std::isfinite(first_ + static_cast<float>(levels) * step)) {
      return DataLoss(
          StrCat("step size at offset ", at_, ": expected finite and not negative, found ", step));
    }
    at_ += sizeof(step);
    const auto* codes = reinterpret_cast<const uint8_t*>(payload_.data() + at_);
    at_ += CodeBytes(format_, part);
    float* out = values + from;
    if (format_ == ValueFormat::kInt8) {
      for (size_t i = 0; i < part; ++i) {
        const float magnitude = first_ + static_cast<float>(codes[i] & 127) * step;
        out[i] = codes[i] & 128 ? -magnitude : magnitude;
      }
      continue;
    }
    for (size_t i = 0; i < part; ++i) {
      const unsigned code = codes[i / 2] >> (i % 2 * 4);
      const float magnitude = first_ + static_cast<float>(code & 7) * step;
      out[i] = code & 8 ? -magnitude : magnitude;
    }
    if (part % 2 == 1 && codes[part / 2] >> 4 != 0) {
      return DataLoss(StrCat("padding at offset ", at_ - 1, ": expected zero bits"));
    }
  }
  return OkStatus();
}

Status ValueDecoder::NextSigns(size_t size, float* values) {
  if (size == 0) return OkStatus();
  if (!header_read_) {
    std::memcpy(&first_, payload_.data() + at_, sizeof(float));
    std::memcpy(&second_, payload_.data() + at_ + sizeof(float), sizeof(float));
    if (!std::isfinite(first_) || !std::isfinite(second_)) {
      return DataLoss(
          StrCat("means at offset ", at_, ": expected finite, found ", first_, " and ", second_));
    }
    at_ += kMeansBytes;
    header_read_ = true;
  }
  const auto* bits = reinterpret_cast<const uint8_t*>(payload_.data() + at_);
  for (size_t i = 0; i < size; ++i, ++sign_) {
    values[i] = bits[sign_ / 8] >> (sign_ % 8) & 1 ? second_ : first_;
  }
  if (left_ == 0 && sign_ % 8 != 0 && bits[sign_ / 8] >> (sign_ % 8) != 0) {
    return DataLoss(StrCat("padding at offset ", at_ + sign_ / 8, ": expected zero bits"));
  }
  return OkStatus();
}

Status ValueDecoder::NextQuantiles(size_t size, float* values) {
  if (size == 0) return OkStatus();
  if (!header_read_) {
    std::memcpy(means_.data(), payload_.data() + at_, means_.size() * sizeof(float));
    for (const float mean : means_) {
      if (!std::isfinite(mean)) {
        return DataLoss(StrCat("mean of a bucket, from offset ", at_, " on: expected finite"));
      }
    }
    at_ += means_.size() * sizeof(float);
    header_read_ = true;
  }
  const int bits = QuantileBits(format_);
  uint8_t codes[kernels::kBlockElements];
  for (size_t from = 0; from < size; from += std::size(codes)) {
    const size_t part = std::min(std::size(codes), size - from);
    const auto* packed = reinterpret_cast<const uint8_t*>(payload_.data() + at_);
    kernels::UnpackBits(packed, part, bits, codes);
    for (size_t i = 0; i < part; ++i) {
      if (codes[i] >= means_.size()) {
        return DataLoss(StrCat("bucket number in the batch at offset ", at_, ": expected below ",
                               means_.size(), ", found ", int{codes[i]}));
      }
      values[from + i] = means_[codes[i]];
    }
    at_ += QuantileCodeBytes(format_, part);
    const size_t used = part * static_cast<size_t>(bits) % 8;
    if (used != 0 && packed[part * static_cast<size_t>(bits) / 8] >> used != 0) {
      return DataLoss(StrCat("padding at offset ", at_ - 1, ": expected zero bits"));
    }
  }
  return OkStatus();
}

}  // namespace weir
