#pragma once
// The checksum, whole or piece by piece: a receiver checks bytes while they are still in its cache.
// Every byte on the network passes here twice. What is long is first folded into eight states of 16
// bytes by one round of AES a run of 128 bytes, which CPUs do as fast as they read; XXH3 hashes
// what is left. proto/WIRE.md section 1 defines it.
//
// Why a round of AES (the construction of ALRED, Daemen and Rijmen, FSE 2005): it is a permutation,
// so that an error stays until another meets it in the same state, and of two runs one behind the
// other fewer than five wrong bytes in a state never cancel (the branch number of MixColumns).
// Without a key it keeps nobody from making two payloads of one checksum.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir {

/// Checksum() of the concatenation of pieces, however it is cut. Not thread-safe. Update is O(n),
/// no allocation.
class ChecksumStream {
 public:
  void Reset() { folded_ = false, held_ = 0; }
  void Update(std::span<const std::byte> bytes);
  uint32_t Digest() const;

 private:
  static constexpr size_t kRun = 128;

  void Fold(const std::byte* runs, size_t count);

  // The states, once there was a run, and what came behind the last run.
  alignas(64) std::byte bytes_[2 * kRun];
  bool folded_ = false;
  size_t held_ = 0;
};

namespace checksum_internal {
/// For each of `count` runs of 128 bytes, block j of 16 bytes of `states` becomes
/// MixColumns(ShiftRows(SubBytes(it))) xor block j of the run (FIPS 197), j from 0 to 7.
void FoldRuns(const std::byte* runs, size_t count, std::byte* states);
}  // namespace checksum_internal

}  // namespace weir
