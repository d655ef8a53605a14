// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that two ranks share: a page of control words and one ring each way.
// Layout: proto/WIRE.md section 1, "Shared memory".

#include <cstddef>
#include <cstdint>

#include "datapath/transport/builtin/shm/ring.h"
#include "datapath/transport/builtin/shm/sealed_memory.h"

namespace weir::shm {

inline constexpr uint32_t kLayoutVersion = 4;
inline constexpr size_t kControlBytes = 4096;
inline constexpr size_t kRingBytesMin = 4096;
inline constexpr size_t kRingBytesMax = 64 << 20;

class Segment {
 public:
  /// Makes one with two empty rings of `ring_bytes`, a power of two within the bounds. *fd is what
  /// the peer maps. Errors of SealedMemory.
  static StatusOr<Segment> Create(size_t ring_bytes, mesh::UniqueFd* fd);
  /// Maps a peer's segment. Errors of SealedMemory; kDataLoss: `ring_bytes` is out of bounds.
  static StatusOr<Segment> Map(int fd, uint64_t ring_bytes);

  explicit operator bool() const { return static_cast<bool>(memory_); }
  size_t ring_bytes() const { return (memory_.bytes().size() - kControlBytes) / 2; }
  /// Ring 0 is written by the rank that made the segment, ring 1 by the other.
  RingEnd End(int ring, int event_fd) const;

 private:
  SealedMemory memory_;
};

}  // namespace weir::shm
