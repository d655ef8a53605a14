// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checksum of frames, whole or piece by piece, so that a receiver checks bytes while they are
// still in its cache. Every byte on the network is checksummed twice. Long input is first folded
// into eight states of 16 bytes, by one round of AES per state for each run of 128 bytes, which
// CPUs compute as fast as they read. XXH3 then hashes the states and the rest. proto/WIRE.md
// section 1 defines it.
//
// Why a round of AES (the construction of ALRED, Daemen and Rijmen, FSE 2005): it is a permutation,
// so an error stays in its state until another error meets it there, and fewer than five wrong
// bytes in a state, in two consecutive runs, never cancel (the branch number of MixColumns). There
// is no key, so anybody can construct two payloads with the same checksum.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir {

/// Checksum() of the concatenation of all pieces, wherever they are cut. Not thread-safe. Update is
/// O(n) and allocates nothing.
class ChecksumStream {
 public:
  void Reset() { folded_ = false, held_ = 0; }
  void Update(std::span<const std::byte> bytes);
  uint32_t Digest() const;

 private:
  static constexpr size_t kRun = 128;

  void Fold(const std::byte* runs, size_t count);

  // The states, valid once there was a run, and behind them the bytes after the last run.
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
