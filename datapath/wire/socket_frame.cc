// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/socket_frame.h"

#include <cstring>

#include "datapath/base/check.h"

namespace weir {

std::string EncodeSocketFrame(std::string_view json) {
  WEIR_CHECK(!json.empty() && json.size() <= kSocketFrameBytesMax);
  const uint32_t size = static_cast<uint32_t>(json.size());
  std::string frame(kSocketFramePrefixBytes, '\0');
  for (size_t i = 0; i < kSocketFramePrefixBytes; ++i) {
    frame[i] = static_cast<char>((size >> (8 * i)) & 0xff);
  }
  frame.append(json);
  return frame;
}

void SocketFrameReader::Append(std::string_view bytes) {
  if (!failed_.ok()) return;  // after an invalid length nothing can be parsed
  buffer_.append(bytes);
}

void SocketFrameReader::Append(std::span<const std::byte> bytes) {
  Append(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

StatusOr<std::optional<std::string>> SocketFrameReader::Next() {
  if (!failed_.ok()) return failed_;
  if (buffered_bytes() < kSocketFramePrefixBytes) return std::optional<std::string>();
  uint32_t size = 0;
  for (size_t i = 0; i < kSocketFramePrefixBytes; ++i) {
    size |= static_cast<uint32_t>(static_cast<unsigned char>(buffer_[offset_ + i])) << (8 * i);
  }
  if (size == 0 || size > kSocketFrameBytesMax) {
    failed_ = DataLoss(
        StrCat("socket frame length: expected 1..", kSocketFrameBytesMax, ", found ", size));
    buffer_.clear();
    offset_ = 0;
    return failed_;
  }
  if (buffered_bytes() < kSocketFramePrefixBytes + size) return std::optional<std::string>();
  std::optional<std::string> text(std::in_place, buffer_, offset_ + kSocketFramePrefixBytes,
                                  static_cast<size_t>(size));
  offset_ += kSocketFramePrefixBytes + size;
  // Compact only when at least half is consumed, so that each byte moves O(1) times.
  if (offset_ * 2 >= buffer_.size()) {
    buffer_.erase(0, offset_);
    offset_ = 0;
  }
  return text;
}

}  // namespace weir
