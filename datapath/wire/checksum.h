#pragma once
// The payload checksum, whole or piece by piece: a receiver checks bytes while they are still in
// its cache. Every byte on the network passes here twice, so it runs on the widest vectors the CPU
// has.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir {

/// Low 32 bits of XXH3-64 over pieces: equal to Checksum() of their concatenation, however it is
/// cut. Not thread-safe. Update is O(n), no allocation.
class ChecksumStream {
 public:
  ChecksumStream() { Reset(); }
  void Reset();
  void Update(std::span<const std::byte> bytes);
  uint32_t Digest() const;

 private:
  static constexpr size_t kStateBytes = 576;  // XXH3_state_t, whose header stays out of ours
  alignas(64) std::byte state_[kStateBytes];
};

}  // namespace weir
