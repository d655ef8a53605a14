// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ethernet frames around packets, as a network interface receives them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datapath/aggregation/aggregator.h"

namespace weir::aggregation {

inline constexpr SourceAddress kKernelAddress = 0x0A000009'BEEF;  // 10.0.0.9:48879
inline constexpr size_t kFrameHeaderBytes = 14 + 20 + 8;

inline void PutBig(std::span<std::byte> frame, size_t at, size_t octets, uint64_t value) {
  for (size_t i = octets; i-- > 0; value >>= 8) frame[at + i] = static_cast<std::byte>(value);
}

inline uint64_t GetBig(std::span<const std::byte> frame, size_t at, size_t octets) {
  uint64_t value = 0;
  for (size_t i = 0; i < octets; ++i) value = value << 8 | std::to_integer<uint64_t>(frame[at + i]);
  return value;
}

/// An Ethernet frame with one IPv4 datagram, as a network interface receives it.
inline std::vector<std::byte> FrameOf(SourceAddress from, SourceAddress to,
                                      std::span<const std::byte> datagram) {
  std::vector<std::byte> frame(kFrameHeaderBytes + datagram.size());
  PutBig(frame, 0, 6, 0x020000000009);
  PutBig(frame, 6, 6, 0x020000000001);
  PutBig(frame, 12, 2, 0x0800);
  PutBig(frame, 14, 2, 0x4500);
  PutBig(frame, 16, 2, 28 + datagram.size());
  PutBig(frame, 20, 2, 0x4000);  // not to be cut
  PutBig(frame, 22, 2, 64 << 8 | 17);
  PutBig(frame, 26, 4, from >> 16);
  PutBig(frame, 30, 4, to >> 16);
  PutBig(frame, 34, 2, from & 0xFFFF);
  PutBig(frame, 36, 2, to & 0xFFFF);
  PutBig(frame, 38, 2, 8 + datagram.size());
  std::copy(datagram.begin(), datagram.end(), frame.begin() + kFrameHeaderBytes);
  return frame;
}

}  // namespace weir::aggregation
