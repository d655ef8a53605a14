// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frames of the local socket between a rank and its agent: JSON texts, each behind its length.
// This file cuts the byte stream into texts; proto/weir/v1/rank.proto says what they mean. Bytes:
// proto/WIRE.md section 2.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

/// The most bytes of a text. A longer one is kDataLoss, because the stream is then out of step or
/// hostile and the connection must close.
inline constexpr size_t kSocketFrameBytesMax = 4u << 20;
/// Bytes in front of every text: its length, unsigned 32-bit little-endian.
inline constexpr size_t kSocketFramePrefixBytes = 4;

/// The frame of one text: length and text. `json` holds 1 to kSocketFrameBytesMax bytes, which is
/// checked because violating it is a bug of ours. Thread-safe, O(n).
std::string EncodeSocketFrame(std::string_view json);

/// Cuts a byte stream into texts. Memory is bounded by one frame plus what a caller appends before
/// calling Next again. Not thread-safe.
class SocketFrameReader {
 public:
  /// Adds bytes as they arrived from the socket, in pieces of any size.
  void Append(std::string_view bytes);
  void Append(std::span<const std::byte> bytes);

  /// The next complete text, or nothing while more bytes are needed. kDataLoss when a prefix claims
  /// no bytes or more than kSocketFrameBytesMax; every later call returns the same error. Amortised
  /// O(n).
  StatusOr<std::optional<std::string>> Next();

  /// Bytes received that no returned text has used.
  size_t buffered_bytes() const { return buffer_.size() - offset_; }

 private:
  std::string buffer_;
  size_t offset_ = 0;  // start of the first unread frame in buffer_
  Status failed_;
};

}  // namespace weir
