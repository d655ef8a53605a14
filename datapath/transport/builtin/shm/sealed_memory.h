#pragma once
// Memory that processes share: a memfd, which has no name and so leaves nothing behind however its
// processes end, of a size that nobody can change under those who map it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "datapath/transport/mesh/socket.h"

namespace weir::shm {

/// Unmaps itself. Not inherited by forked children.
class SealedMemory {
 public:
  SealedMemory() = default;
  SealedMemory(SealedMemory&& other) noexcept { *this = std::move(other); }
  SealedMemory& operator=(SealedMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SealedMemory();

  enum class Peers { kReadAndWrite, kRead };
  /// `size` zeros, writable here. *fd is what peers map, for what `peers` says; a kernel before 5.1
  /// permits them to write all the same. kUnavailable: the system does not permit it.
  static StatusOr<SealedMemory> Create(size_t size, Peers peers, mesh::UniqueFd* fd);
  /// Maps a peer's. kDataLoss: not of that size, or the size is not sealed and the memory could be
  /// cut short under us; kUnavailable: cannot be mapped.
  static StatusOr<SealedMemory> Map(int fd, uint64_t size, Peers peers);

  explicit operator bool() const { return !bytes_.empty(); }
  /// Read-only memory where it was mapped for that.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  static StatusOr<SealedMemory> MapAll(int fd, size_t size, int protection);

  std::span<std::byte> bytes_;
};

}  // namespace weir::shm
