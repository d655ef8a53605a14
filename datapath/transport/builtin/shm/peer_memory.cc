// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/peer_memory.h"

#include <poll.h>
#include <sys/uio.h>

#include <cerrno>

namespace weir::shm {

int PeerMemory::Read(uint64_t address, std::span<std::byte> out) const {
  if (process_ <= 0) return -EPERM;
  while (!out.empty()) {
    const iovec here = {out.data(), out.size()};
    const iovec there = {reinterpret_cast<void*>(address), out.size()};
    const ssize_t n = process_vm_readv(process_, &here, 1, &there, 1, 0);
    if (n <= 0) return n == 0 ? -EFAULT : -errno;
    address += static_cast<uint64_t>(n);
    out = out.subspan(static_cast<size_t>(n));
  }
  return 0;
}

// When a process starts another program (exec), the socket is closed, because it is not inherited.
bool PeerMemory::WasThere() const {
  pollfd signs[] = {{pidfd_, POLLIN, 0}, {control_, POLLRDHUP, 0}};
  return poll(signs, 2, 0) == 0;
}

}  // namespace weir::shm
