#include "datapath/transport/builtin/shm/segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "datapath/base/check.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace weir::shm {
namespace {

using mesh::ErrorText;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

size_t SegmentBytes(size_t ring_bytes) { return kControlBytes + 2 * ring_bytes; }

mesh::UniqueFd NewMemory() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  mesh::UniqueFd fd(memfd_create("weir", kFlags | MFD_NOEXEC_SEAL));
  if (fd || errno != EINVAL) return fd;
  return mesh::UniqueFd(memfd_create("weir", kFlags));  // a kernel before 6.3
}

}  // namespace

Segment::~Segment() {
  if (memory_ != nullptr) munmap(memory_, SegmentBytes(ring_bytes_));
}

StatusOr<Segment> Segment::MapAll(int fd, size_t ring_bytes) {
  const size_t bytes = SegmentBytes(ring_bytes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return Unavailable(StrCat("cannot map ", bytes, " bytes of shared memory: ", ErrorText(errno)));
  }
  // A forked child (a data loader) neither needs it nor may keep it. Best effort.
  madvise(memory, bytes, MADV_DONTFORK);
  Segment segment;
  segment.memory_ = static_cast<std::byte*>(memory);
  segment.ring_bytes_ = ring_bytes;
  return segment;
}

StatusOr<Segment> Segment::Create(size_t ring_bytes, mesh::UniqueFd* fd) {
  WEIR_CHECK(std::has_single_bit(ring_bytes) && ring_bytes >= kRingBytesMin &&
             ring_bytes <= kRingBytesMax);
  *fd = NewMemory();
  const auto bytes = static_cast<off_t>(SegmentBytes(ring_bytes));
  if (!*fd || ftruncate(fd->get(), bytes) != 0 ||
      fcntl(fd->get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Unavailable(StrCat("cannot make shared memory: ", ErrorText(errno)));
  }
  return MapAll(fd->get(), ring_bytes);
}

StatusOr<Segment> Segment::Map(int fd, uint64_t ring_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kRingBytesMin ||
      ring_bytes > kRingBytesMax) {
    return DataLoss(StrCat("ring: expected a power of two of ", kRingBytesMin, "..", kRingBytesMax,
                           " bytes, found ", ring_bytes));
  }
  const size_t bytes = SegmentBytes(static_cast<size_t>(ring_bytes));
  struct stat found = {};
  if (fstat(fd, &found) != 0 || found.st_size != static_cast<off_t>(bytes)) {
    return DataLoss(
        StrCat("shared memory: expected ", bytes, " bytes, found ", int64_t{found.st_size}));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return DataLoss("shared memory: expected a sealed size");
  }
  return MapAll(fd, static_cast<size_t>(ring_bytes));
}

RingEnd Segment::End(int ring, int bell) const {
  // Zero bytes, as a new memfd has them, are the initial state of these atomics.
  auto* control = reinterpret_cast<RingControl*>(memory_) + ring;
  std::byte* data = memory_ + kControlBytes + static_cast<size_t>(ring) * ring_bytes_;
  return {control, data, ring_bytes_, bell};
}

}  // namespace weir::shm
