#pragma once
// The memory of a neighbour's process, read by the kernel (process_vm_readv): one copy where a ring
// needs two. Many systems do not permit it: Yama's ptrace_scope, seccomp filters, processes that
// may not be dumped. So it is tried before it is used.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir::shm {

/// Not thread-safe. Borrows the descriptors.
class PeerMemory {
 public:
  /// `process` 0, or no `pidfd`: nothing can be read. `control` is the unix socket to the peer.
  PeerMemory(pid_t process, int pidfd, int control)
      : process_(pidfd < 0 ? 0 : process), pidfd_(pidfd), control_(control) {}

  /// Fills `out` from `address` on in the peer. 0, or a negative errno: then some of it may be.
  int Read(uint64_t address, std::span<std::byte> out) const;
  /// True when what was read before this call was the peer's: neither did it end, so that another
  /// process might have its number, nor leave its memory for another program's.
  bool WasThere() const;

 private:
  const pid_t process_;
  const int pidfd_, control_;
};

}  // namespace weir::shm
