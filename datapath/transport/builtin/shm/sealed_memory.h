// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that processes share: a memfd. It has no name and so leaves nothing behind, however its
// processes end, and its size is sealed, so that no process can shrink it under those that map it.

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
  /// Makes memory of `size` zero bytes that this process can write. Peers map *fd with the access
  /// that `peers` says; kernels before 5.1 permit them to write in either case. kUnavailable: the
  /// system does not permit it.
  static StatusOr<SealedMemory> Create(size_t size, Peers peers, mesh::UniqueFd* fd);
  /// Maps a peer's memory. kDataLoss: it has another size, or its size is not sealed, so that the
  /// peer could shrink it later; kUnavailable: it cannot be mapped.
  static StatusOr<SealedMemory> Map(int fd, uint64_t size, Peers peers);

  explicit operator bool() const { return !bytes_.empty(); }
  /// Read-only memory where it was mapped for that.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  static StatusOr<SealedMemory> MapAll(int fd, size_t size, int protection);

  std::span<std::byte> bytes_;
};

}  // namespace weir::shm
