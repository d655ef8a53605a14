#pragma once
// The private data of a connection's request and of its answer: the ranks at both ends, and how
// much memory each side offers. Bytes: proto/WIRE.md section 1.

#include <array>
#include <cstdint>
#include <span>

#include "datapath/base/status.h"

namespace weir::verbs {

/// The receive memory that one side of a connection gives the other.
struct Window {
  uint32_t slot_bytes = 0;  // one message fits in one slot
  uint32_t slots = 0;       // data messages that may be under way unanswered
};

inline constexpr uint32_t kSlotBytesMin = 4096;  // an abort frame fits
inline constexpr uint32_t kSlotBytesMax = 1 << 20;
inline constexpr uint32_t kSlotsMin = 4;
inline constexpr uint32_t kSlotsMax = 1024;

/// The sender, and the rank that the sender expects at the other end.
struct Hello {
  uint64_t job = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t expected_peer = 0;  // UINT32_MAX: the sender accepted
  Window window;
};

inline constexpr size_t kHelloBytes = 40;  // a request over RoCE carries at most 56
/// The longest text of an answer that refuses.
inline constexpr size_t kRefusalBytesMax = 148;

std::array<std::byte, kHelloBytes> EncodeHello(const Hello& hello);

/// Ignores bytes behind the hello, because connection managers pad. kDataLoss: too short, another
/// magic or version, a wrong checksum, a window outside of the bounds above.
StatusOr<Hello> DecodeHello(std::span<const std::byte> bytes);

}  // namespace weir::verbs
