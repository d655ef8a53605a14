// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bounds-checked little-endian reading and writing. Every parser of bytes from others uses it.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "datapath/base/status.h"

namespace weir {

static_assert(std::endian::native == std::endian::little, "wire formats are little-endian");

/// Reads fixed-size values from bytes that it does not own. kDataLoss with the offset when too few
/// are left.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T> Status Read(T* value) {
    if (bytes_.size() - offset_ < sizeof(T)) return Truncated(sizeof(T));
    std::memcpy(value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return OkStatus();
  }

  Status ReadBytes(size_t size, std::span<const std::byte>* out) {
    if (bytes_.size() - offset_ < size) return Truncated(size);
    *out = bytes_.subspan(offset_, size);
    offset_ += size;
    return OkStatus();
  }

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }
  std::span<const std::byte> rest() const { return bytes_.subspan(offset_); }

 private:
  Status Truncated(size_t wanted) const {
    return DataLoss(StrCat("truncated at offset ", offset_, ": expected ", wanted,
                           " more bytes, found ", remaining()));
  }
  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
};

/// Writes fixed-size values into a buffer of the caller. Overflow is a bug of ours: `ok()` becomes
/// false and remains so, and nothing is written past the end.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void Write(const T& value) {
    if (!ok_ || bytes_.size() - offset_ < sizeof(T)) {
      ok_ = false;
      return;
    }
    std::memcpy(bytes_.data() + offset_, &value, sizeof(T));
    offset_ += sizeof(T);
  }

  void WriteBytes(std::span<const std::byte> source) {
    if (!ok_ || bytes_.size() - offset_ < source.size()) {
      ok_ = false;
      return;
    }
    if (!source.empty()) std::memcpy(bytes_.data() + offset_, source.data(), source.size());
    offset_ += source.size();
  }

  size_t offset() const { return offset_; }
  bool ok() const { return ok_; }

 private:
  std::span<std::byte> bytes_;
  size_t offset_ = 0;
  bool ok_ = true;
};

}  // namespace weir
