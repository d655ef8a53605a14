// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes a set of positions as Rice-coded gaps, gaps of one octet each, or a bitmap, whichever is
// smallest. Bytes: proto/WIRE.md section 3.

#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/base/status.h"

namespace weir {

enum class IndexCoding : uint8_t {
  kBitmap = 1,  // smallest if a third of the positions or more is selected
  kOctets = 2,  // smallest for a few clustered positions
  kRice = 3,    // smallest for random positions
};
inline constexpr IndexCoding kIndexCodingFirst = IndexCoding::kBitmap;
inline constexpr IndexCoding kIndexCodingLast = IndexCoding::kRice;

/// The parameters that a decoder needs in addition to the bytes.
struct IndexFormat {
  IndexCoding coding = IndexCoding::kRice;
  uint8_t rice_bits = 0;  // number of low bits of a gap that are sent uncoded, <= 31
};

/// The worst case of EncodeIndices for any set of at most count_max of n positions. O(1).
size_t MaxIndexBytes(size_t n, size_t count_max);

/// Writes ascending, distinct positions < n (at most 2^32) to `out`, which has at least
/// MaxIndexBytes. Returns the number of bytes written and sets `format`. Within 2 % of the entropy
/// of a random set. O(count), for the bitmap O(n / 8). Sources: Rice, "Some practical universal
/// noiseless coding techniques", JPL 1979, with the quotients separate from the plain bits, so that
/// readers can take many at once. Octets: Jiang et al., "SketchML", SIGMOD 2018 (delta-binary
/// encoding of keys); deviates: one octet or five per gap, in place of two bits that state how
/// many.
size_t EncodeIndices(std::span<const uint32_t> indices, size_t n, std::span<std::byte> out,
                     IndexFormat* format);

/// Reads what EncodeIndices wrote, in batches. Trusts nothing: every position that it returns is
/// below n and above the one before. Not thread-safe; `bytes` must outlive it.
class IndexDecoder {
 public:
  /// `offset` is the offset of `bytes` in their payload, for error messages.
  IndexDecoder(IndexFormat format, std::span<const std::byte> bytes, size_t n, size_t count,
               size_t offset);

  /// Writes the next positions to the front of `out` and returns their number, which is less than
  /// out.size() only at the end. kDataLoss with the offset: a position is past the end, bits are
  /// missing, or the format is wrong.
  StatusOr<size_t> Next(std::span<uint32_t> out);

  /// To be called after the last position: kDataLoss when there are superfluous bits.
  Status Finish();

 private:
  static constexpr size_t kRicePart = 256;
  StatusOr<size_t> NextRice(std::span<uint32_t> out);
  Status RicePart(std::span<uint32_t> out);
  uint64_t TakePlainBits();
  StatusOr<size_t> NextBitmap(std::span<uint32_t> out);
  StatusOr<size_t> NextOctets(std::span<uint32_t> out);
  uint64_t Window(size_t* valid) const;
  Status Error(const char* what) const;

  IndexFormat format_;
  std::span<const std::byte> bytes_;
  size_t n_;
  size_t left_;  // positions not read yet
  size_t offset_;
  size_t bit_ = 0;         // read position; Rice: that of the quotients
  size_t plain_bit_ = 0;   // Rice: that of the plain bits
  uint64_t next_min_ = 0;  // the smallest valid value of the next position
};

}  // namespace weir
