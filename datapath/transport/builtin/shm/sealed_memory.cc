// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/sealed_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace weir::shm {
namespace {

using mesh::ErrorText;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

mesh::UniqueFd NewMemory() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  mesh::UniqueFd fd(memfd_create("weir", kFlags | MFD_NOEXEC_SEAL));
  if (fd || errno != EINVAL) return fd;
  return mesh::UniqueFd(memfd_create("weir", kFlags));  // a kernel before 6.3
}

}  // namespace

SealedMemory::~SealedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

StatusOr<SealedMemory> SealedMemory::MapAll(int fd, size_t size, int protection) {
  void* memory = mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return Unavailable(StrCat("cannot map ", size, " bytes of shared memory: ", ErrorText(errno)));
  }
  // A forked child (a data loader) does not need this memory and must not keep it alive. An error
  // does not matter.
  madvise(memory, size, MADV_DONTFORK);
  SealedMemory mapped;
  mapped.bytes_ = {static_cast<std::byte*>(memory), size};
  return mapped;
}

StatusOr<SealedMemory> SealedMemory::Create(size_t size, Peers peers, mesh::UniqueFd* fd) {
  *fd = NewMemory();
  if (!*fd || ftruncate(fd->get(), static_cast<off_t>(size)) != 0) {
    return Unavailable(StrCat("cannot make shared memory: ", ErrorText(errno)));
  }
  WEIR_ASSIGN_OR_RETURN(SealedMemory memory, MapAll(fd->get(), size, PROT_READ | PROT_WRITE));
  // This comes after the mapping above, because the seal also forbids new writable mappings.
  if (peers == Peers::kRead && fcntl(fd->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 &&
      errno != EINVAL) {
    return Unavailable(StrCat("cannot seal shared memory against writing: ", ErrorText(errno)));
  }
  if (fcntl(fd->get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Unavailable(StrCat("cannot seal shared memory: ", ErrorText(errno)));
  }
  return memory;
}

StatusOr<SealedMemory> SealedMemory::Map(int fd, uint64_t size, Peers peers) {
  struct stat found = {};
  if (fstat(fd, &found) != 0 || found.st_size < 0 || static_cast<uint64_t>(found.st_size) != size) {
    return DataLoss(
        StrCat("shared memory: expected ", size, " bytes, found ", int64_t{found.st_size}));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return DataLoss("shared memory: expected a sealed size");
  }
  const int protection = peers == Peers::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  return MapAll(fd, static_cast<size_t>(size), protection);
}

}  // namespace weir::shm
