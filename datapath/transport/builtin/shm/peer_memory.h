// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory of a neighbour's process, read through the kernel (process_vm_readv): one copy where a
// ring needs two. Yama's ptrace_scope, seccomp filters or a process that may not be dumped can
// forbid it, so it is tried before it is used.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir::shm {

/// Not thread-safe. The descriptors stay the caller's and outlive this.
class PeerMemory {
 public:
  /// `process` 0, or no `pidfd`: nothing can be read. `control` is the unix socket to the peer.
  PeerMemory(pid_t process, int pidfd, int control)
      : process_(pidfd < 0 ? 0 : process), pidfd_(pidfd), control_(control) {}

  /// Fills `out` from `address` on in the peer. Returns 0, or a negative errno; `out` may then be
  /// filled in part.
  int Read(uint64_t address, std::span<std::byte> out) const;
  /// Returns true if all bytes read before this call were the peer's. False: it has ended, so that
  /// another process may have got its number, or another program has replaced it (exec).
  bool WasThere() const;

 private:
  const pid_t process_;
  const int pidfd_, control_;
};

}  // namespace weir::shm
