// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/direct_read.h"

#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weir::shm {
namespace {

// A random value. A reader that finds it at the writer's address reads the writer's memory: another
// process does not have this value there by chance.
uint64_t NewProbe() {
  uint64_t probe = 0;
  (void)!getrandom(&probe, sizeof probe, GRND_NONBLOCK);
  return probe;
}

// Returns true if the kernel lets other processes read `bytes`. It does for ordinary memory, but
// not for memory of devices or secret memory. It decides for each mapping, so checking the first
// and the last byte is enough.
bool IsExportable(pid_t self, std::span<const std::byte> bytes) {
  std::byte ends[2];
  const iovec here = {ends, sizeof ends};
  const auto at = [](const std::byte& byte) { return iovec{const_cast<std::byte*>(&byte), 1}; };
  const iovec there[] = {at(bytes.front()), at(bytes.back())};
  return process_vm_readv(self, &here, 1, there, 2, 0) == ssize_t{sizeof ends};
}

}  // namespace

// ---- the writer's end

Exporter::Exporter(DirectReadControl& control, size_t bytes_min)
    : control_(control), bytes_min_(bytes_min), self_(getpid()), probe_(NewProbe()) {
  control_.probe.store(probe_, std::memory_order_relaxed);
  control_.probe_address.store(reinterpret_cast<uint64_t>(&probe_), std::memory_order_release);
}

bool Exporter::Export(uint64_t at, uint64_t begins, std::span<const std::byte> bytes) {
  if (bytes.size() < bytes_min_ || control_.imports.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  OpenFrom(0);
  if (broken_ || exported_ - released_ >= kExportsMax || !IsExportable(self_, bytes)) return false;
  DirectReadControl::Export& piece = control_.exports[exported_ % kExportsMax];
  piece.at.store(at, std::memory_order_relaxed);
  piece.address.store(reinterpret_cast<uint64_t>(bytes.data()), std::memory_order_relaxed);
  piece.bytes.store(bytes.size(), std::memory_order_relaxed);
  begins_[exported_ % kExportsMax] = begins;
  control_.exported.store(++exported_, std::memory_order_seq_cst);
  return true;
}

uint64_t Exporter::OpenFrom(uint64_t end) {
  const uint64_t released = control_.released.load(std::memory_order_acquire);
  broken_ = broken_ || exported_ - released > exported_ - released_;
  if (!broken_) released_ = released;
  return released_ == exported_ ? end : begins_[released_ % kExportsMax];
}

bool Exporter::PrepareSleep() {
  control_.exporter_sleeps.store(1, std::memory_order_seq_cst);
  return control_.released.load(std::memory_order_seq_cst) == released_;
}

// The flag is set before the caller changes the memory, and the reader looks at the flag after it
// has copied, so the reader never delivers bytes that were changed meanwhile.
void Exporter::Revoke() {
  OpenFrom(0);
  if (released_ == exported_) return;
  control_.revoked.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// ---- the reader's end

// Tries once whether this process can read the writer's memory, and tells the writer if so.
void Importer::Probe() {
  const uint64_t address = control_.probe_address.load(std::memory_order_acquire);
  if (address == 0) return;
  probed_ = true;
  uint64_t found = 0;
  const auto out = std::as_writable_bytes(std::span(&found, 1));
  if (memory_ == nullptr || memory_->Read(address, out) != 0) return;
  if (found != control_.probe.load(std::memory_order_relaxed)) return;
  control_.imports.store(1, std::memory_order_relaxed);
}

void Importer::Look() {
  if (!probed_) Probe();
  const uint64_t exported = control_.exported.load(std::memory_order_acquire);
  if (exported == exported_) return;
  const bool had = open();
  broken_ = broken_ || memory_ == nullptr || exported - released_ > kExportsMax;
  if (broken_) return;
  exported_ = exported;
  if (!had) Open();
}

void Importer::Open() {
  const DirectReadControl::Export& piece = control_.exports[released_ % kExportsMax];
  at_ = piece.at.load(std::memory_order_relaxed);
  address_ = piece.address.load(std::memory_order_relaxed);
  rest_ = piece.bytes.load(std::memory_order_relaxed);
  broken_ = rest_ == 0;
}

void Importer::Next() {
  ++released_;
  if (open()) Open();
}

// Returns true if the piece was still valid when the copy ended.
bool Importer::StillOpen() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return control_.revoked.load(std::memory_order_seq_cst) == 0 && memory_->WasThere();
}

ssize_t Importer::Read(std::span<std::byte> out, bool* awaited) {
  if (broken_) return -EPROTO;
  const size_t n = std::min<uint64_t>(out.size(), rest_);
  if (const int error = memory_->Read(address_, out.first(n)); error != 0) {
    if (StillOpen()) return error;
    Next();
    return -ECONNRESET;
  }
  address_ += n;
  rest_ -= n;
  if (rest_ > 0) return static_cast<ssize_t>(n);
  const bool taken = StillOpen();
  Next();
  if (!taken) return -ECONNRESET;
  control_.released.store(released_, std::memory_order_seq_cst);
  std::atomic<uint32_t>& sleeps = control_.exporter_sleeps;
  *awaited = sleeps.load(std::memory_order_seq_cst) != 0 && sleeps.exchange(0) != 0;
  return static_cast<ssize_t>(n);
}

}  // namespace weir::shm
