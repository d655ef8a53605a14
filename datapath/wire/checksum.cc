// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/checksum.h"

#include <algorithm>
#include <cstring>

#include "datapath/wire/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weir {

uint32_t Checksum(std::span<const std::byte> bytes) {
  // Fewer than two runs are left unchanged by the fold, so their checksum is that of XXH3 alone.
  if (bytes.size() < 256) return static_cast<uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
  ChecksumStream stream;
  stream.Update(bytes);
  return stream.Digest();
}

void ChecksumStream::Fold(const std::byte* runs, size_t count) {
  if (!folded_) {
    std::memcpy(bytes_, runs, kRun);
    folded_ = true;
    runs += kRun;
    --count;
  }
  checksum_internal::FoldRuns(runs, count, bytes_);
}

void ChecksumStream::Update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  std::byte* const held = bytes_ + kRun;
  if (held_ > 0) {
    const size_t taken = std::min(kRun - held_, bytes.size());
    std::memcpy(held + held_, bytes.data(), taken);
    held_ += taken;
    if (held_ < kRun) return;
    Fold(held, 1);
    bytes = bytes.subspan(taken);
  }
  const size_t runs = bytes.size() / kRun;
  if (runs > 0) Fold(bytes.data(), runs);
  held_ = bytes.size() % kRun;
  if (held_ > 0) std::memcpy(held, bytes.data() + runs * kRun, held_);
}

uint32_t ChecksumStream::Digest() const {
  const std::byte* const from = folded_ ? bytes_ : bytes_ + kRun;
  return static_cast<uint32_t>(XXH3_64bits(from, (folded_ ? kRun : 0) + held_));
}

}  // namespace weir
