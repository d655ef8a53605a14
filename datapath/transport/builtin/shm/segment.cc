// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/segment.h"

#include <bit>

#include "datapath/base/check.h"

namespace weir::shm {
namespace {
size_t SegmentBytes(size_t ring_bytes) { return kControlBytes + 2 * ring_bytes; }
}  // namespace

StatusOr<Segment> Segment::Create(size_t ring_bytes, mesh::UniqueFd* fd) {
  WEIR_CHECK(std::has_single_bit(ring_bytes) && ring_bytes >= kRingBytesMin &&
             ring_bytes <= kRingBytesMax);
  Segment segment;
  WEIR_ASSIGN_OR_RETURN(
      segment.memory_,
      SealedMemory::Create(SegmentBytes(ring_bytes), SealedMemory::Peers::kReadAndWrite, fd));
  return segment;
}

StatusOr<Segment> Segment::Map(int fd, uint64_t ring_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kRingBytesMin ||
      ring_bytes > kRingBytesMax) {
    return DataLoss(StrCat("ring: expected a power of two of ", kRingBytesMin, "..", kRingBytesMax,
                           " bytes, found ", ring_bytes));
  }
  Segment segment;
  WEIR_ASSIGN_OR_RETURN(segment.memory_, SealedMemory::Map(fd, SegmentBytes(ring_bytes),
                                                           SealedMemory::Peers::kReadAndWrite));
  return segment;
}

RingEnd Segment::End(int ring, int event_fd) const {
  // Zero bytes, as new memory has them, are the initial state of these atomics.
  std::byte* memory = memory_.bytes().data();
  auto* control = reinterpret_cast<RingControl*>(memory) + ring;
  std::byte* data = memory + kControlBytes + static_cast<size_t>(ring) * ring_bytes();
  return {control, data, ring_bytes(), event_fd};
}

}  // namespace weir::shm
