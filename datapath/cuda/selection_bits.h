// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic of selection payloads that writing and reading share; as
// datapath/codec/select/{index_coding,value_coding}.cc.

#include "datapath/cuda/numbers.h"
#include "datapath/cuda/selection.h"

namespace weir::cuda {

/// A gap of at least this size is sent as this octet and then four octets.
inline constexpr uint32_t kLongGap = 255;
/// Octets are tried from this number of plain bits on.
inline constexpr unsigned kOctetsRiceBitsMin = 6;

/// floor(log2(n / count)), at most 31; 0 for no entries.
WEIR_DEVICE inline unsigned RiceBitsOf(uint64_t n, uint32_t count) {
  if (count == 0) return 0;
  unsigned bits = 0;
  for (uint64_t left = n / count; left > 1 && bits < 31; left /= 2) ++bits;
  return bits;
}

/// Memory at any address, little-endian.
WEIR_DEVICE inline void StoreWord(uint8_t* to, uint32_t word) {
  for (unsigned i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
}
WEIR_DEVICE inline uint32_t LoadWord(const uint8_t* from) {
  uint32_t word = 0;
  for (unsigned i = 0; i < 4; ++i) word |= uint32_t{from[i]} << (8 * i);
  return word;
}
/// ORs the low `count` <= 32 bits of `bits`, whose others are zero, into words at bit `at`.
WEIR_DEVICE inline void PutBits(uint32_t* words, uint64_t at, uint32_t bits, unsigned count) {
  if (bits == 0) return;
  const unsigned shift = at % 32;
  Team::Or(&words[at / 32], bits << shift);
  if (shift + count > 32) Team::Or(&words[at / 32 + 1], bits >> (32 - shift));
}

/// 2^exponent, -126 <= exponent <= 127.
WEIR_DEVICE inline float TwoToThe(int exponent) {
  return FloatOf(static_cast<uint32_t>(exponent + 127) << 23);
}
/// As weir::FitsHalf.
WEIR_DEVICE inline bool FitsHalfLanes(float smallest, float largest, int exponent) {
  return ldexpf(largest, exponent) <= 65504.0f && ldexpf(smallest, exponent) >= 0x1p-24f;
}
/// As HalfExponent without headroom.
WEIR_DEVICE inline int ExponentOfHalf(float largest) {
  int exponent = 0;
  frexpf(largest, &exponent);
  const int wanted = 15 - exponent;
  return wanted < -113 ? -113 : wanted > 120 ? 120 : wanted;
}

/// The bytes of one block of levels with its step.
WEIR_DEVICE inline uint64_t BytesOfLevels(bool wide, unsigned count) {
  return sizeof(float) + (wide ? count : (count + 1) / 2);
}
WEIR_DEVICE inline unsigned BitsOfQuantiles(ValueFormat format) {
  return format == ValueFormat::kQuantiles8 ? 8 : 6;
}
/// The number of buckets of `count` values.
WEIR_DEVICE inline unsigned QuantileBucketsOf(ValueFormat format, uint64_t count) {
  const uint64_t most = uint64_t{1} << BitsOfQuantiles(format);
  const uint64_t least = count < kBucketsMin ? count : kBucketsMin;
  const uint64_t wanted = count / kBucketValuesMin;
  return static_cast<unsigned>(wanted < least ? least : wanted > most ? most : wanted);
}
/// As ValueBytes.
WEIR_DEVICE inline uint64_t BytesOfValues(ValueFormat format, uint64_t count) {
  if (count == 0 || format == ValueFormat::kNone) return 0;
  if (format == ValueFormat::kHalf) return 2 * count;
  if (format == ValueFormat::kFloat) return 4 * count;
  if (format == ValueFormat::kTwoMeans) return 2 * sizeof(float) + (count + 7) / 8;
  if (IsQuantiles(format)) {
    return sizeof(float) * QuantileBucketsOf(format, count) +
           (count * BitsOfQuantiles(format) + 7) / 8;
  }
  return sizeof(float) * (1 + (count + kValueBlock - 1) / kValueBlock) +
         (format == ValueFormat::kInt8 ? count : (count + 1) / 2);
}

/// Replaces the numbers of tiles by the sum of those before each, with one team. `part` is shared
/// memory for kScanMax numbers. Returns the sum of all.
WEIR_DEVICE inline uint64_t ScanTiles(Team& team, uint64_t* part, uint64_t* numbers, size_t tiles) {
  uint64_t total = 0;
  for (size_t at = 0; at < tiles; at += kScanMax) {
    const unsigned size = tiles - at < kScanMax ? static_cast<unsigned>(tiles - at) : kScanMax;
    team.ForEach(size, [&](unsigned i) { part[i] = numbers[at + i]; });
    const uint64_t here = team.Scan(part, size);
    team.ForEach(size, [&](unsigned i) { numbers[at + i] = total + part[i]; });
    total += here;
  }
  return total;
}

}  // namespace weir::cuda
