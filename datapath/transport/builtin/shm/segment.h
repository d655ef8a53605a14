#pragma once
// The memory that two ranks share: a page of control words and one ring each way, in a memfd that
// has no name and so leaves nothing behind however its processes end.
// Layout: proto/WIRE.md section 1, "Shared memory".

#include <cstddef>
#include <cstdint>
#include <utility>

#include "datapath/transport/builtin/shm/ring.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::shm {

inline constexpr uint32_t kLayoutVersion = 3;
inline constexpr size_t kControlBytes = 4096;
inline constexpr size_t kRingBytesMin = 4096;
inline constexpr size_t kRingBytesMax = 64 << 20;

/// Unmaps itself. Not inherited by forked children.
class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), ring_bytes_(other.ring_bytes_) {}
  Segment& operator=(Segment&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(ring_bytes_, other.ring_bytes_);
    return *this;
  }
  ~Segment();

  /// Makes one with two empty rings of `ring_bytes`, a power of two within the bounds, and seals
  /// its size. *fd is what the peer maps. kUnavailable: the system does not permit it.
  static StatusOr<Segment> Create(size_t ring_bytes, mesh::UniqueFd* fd);
  /// Maps a peer's. kDataLoss: not of that size, or its size is not sealed and it could be cut
  /// short under us; kUnavailable: cannot be mapped.
  static StatusOr<Segment> Map(int fd, uint64_t ring_bytes);

  explicit operator bool() const { return memory_ != nullptr; }
  size_t ring_bytes() const { return ring_bytes_; }
  /// Ring 0 is written by the rank that made the segment, ring 1 by the other.
  RingEnd End(int ring, int bell) const;

 private:
  static StatusOr<Segment> MapAll(int fd, size_t ring_bytes);

  std::byte* memory_ = nullptr;
  size_t ring_bytes_ = 0;
};

}  // namespace weir::shm
