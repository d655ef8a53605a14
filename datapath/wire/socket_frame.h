#pragma once
// The local socket between a rank and its agent carries JSON texts, each behind its length. This is
// the cutting of the byte stream; what the texts say is proto/weir/v1/rank.proto. Bytes:
// proto/WIRE.md section 2.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

/// A longer text is kDataLoss: the stream is out of step or hostile, and the connection must close.
inline constexpr size_t kSocketFrameBytesMax = 4u << 20;
/// Bytes in front of every text: its length, unsigned 32-bit little-endian.
inline constexpr size_t kSocketFramePrefixBytes = 4;

/// The frame of one text: prefix and text. `json` holds at most kSocketFrameBytesMax bytes
/// (checked: a longer one is a bug of ours). Thread-safe, O(n).
std::string EncodeSocketFrame(std::string_view json);

/// Cuts a byte stream into texts. Memory is bounded by one frame plus what a caller appends before
/// calling Next again. Not thread-safe.
class SocketFrameReader {
 public:
  /// Adds bytes as they came from the socket, in any portions.
  void Append(std::string_view bytes);
  void Append(std::span<const std::byte> bytes);

  /// The next whole text; nothing when more bytes are needed. kDataLoss when a prefix claims zero
  /// or more than kSocketFrameBytesMax bytes; every later call returns the same error. Amortised
  /// O(n).
  StatusOr<std::optional<std::string>> Next();

  /// Bytes held back for want of the rest of their frame.
  size_t buffered_bytes() const { return buffer_.size() - offset_; }

 private:
  std::string buffer_;
  size_t offset_ = 0;  // start of the first unread frame in buffer_
  Status failed_;
};

}  // namespace weir
