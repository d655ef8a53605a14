// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes and reads the bytes of a codec's state. They come from files, so readers check every
// value.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "datapath/base/byte_cursor.h"

namespace weir {

/// The first octet of every saved state. A codec that changes its layout uses the next number.
inline constexpr uint8_t kCodecStateVersion = 1;

/// A growing sequence of little-endian values that begins with the version. Not thread-safe.
class StateWriter {
 public:
  StateWriter() { Write(kCodecStateVersion); }

  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void Write(const T& value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }

  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// kDataLoss unless the next octet is kCodecStateVersion.
inline Status ReadStateVersion(ByteReader& reader) {
  uint8_t version = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&version));
  if (version == kCodecStateVersion) return OkStatus();
  return DataLoss(StrCat("codec state: version ", int{version}, " at offset ", reader.offset() - 1,
                         ", expected ", int{kCodecStateVersion}));
}

/// Reads a number. kDataLoss with its offset unless it is in [low, high]; NaN is not.
template <typename T>
Status ReadWithin(ByteReader& reader, T low, T high, T* value) {
  WEIR_RETURN_IF_ERROR(reader.Read(value));
  if (*value >= low && *value <= high) return OkStatus();
  return DataLoss(StrCat("codec state: ", *value, " at offset ", reader.offset() - sizeof(T),
                         ", expected ", low, " to ", high));
}

/// kDataLoss when bytes are left.
inline Status CheckStateEnd(const ByteReader& reader) {
  if (reader.remaining() == 0) return OkStatus();
  return DataLoss(
      StrCat("codec state: ", reader.remaining(), " surplus bytes at offset ", reader.offset()));
}

}  // namespace weir
