// SPDX-License-Identifier: Apache-2.0
#pragma once
// Direct reads: pieces of a ring's stream that stay in the writer's memory. The writer exports such
// a piece, and the reader imports it, by copying straight from the writer's memory. Both ends keep
// their counts in private memory, as they do with the ring's positions.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/transport/builtin/shm/peer_memory.h"

namespace weir::shm {

/// How many exported pieces can be open at a time.
inline constexpr size_t kExportsMax = 16;

/// Shorter pieces go through the ring: a system call and looking up pages cost more than a copy.
inline constexpr size_t kDirectReadBytesMin = 96 << 10;
/// The same between ranks that have a core each, where both ends of a ring copy at the same time.
inline constexpr size_t kDirectReadBytesMinApart = 192 << 10;

/// The shared words of one direction, zero at first, on cache lines by who writes them.
struct DirectReadControl {
  /// The piece comes in the stream behind the ring's octet at position `at`.
  struct Export {
    std::atomic<uint64_t> at, address, bytes;
  };

  alignas(64) std::atomic<uint64_t> exported;  // by the writer: pieces ever exported
  std::atomic<uint64_t> probe_address;         // by the writer: where it keeps `probe`, 0: not yet
  std::atomic<uint64_t> probe;
  std::atomic<uint32_t> revoked;               // by the writer: open pieces may have changed
  alignas(64) std::atomic<uint64_t> released;  // by the reader: pieces that it has copied
  std::atomic<uint32_t> imports;               // by the reader: it can read the writer's memory
  alignas(64) std::atomic<uint32_t> exporter_sleeps;  // set by the writer, taken by the reader
  alignas(64) Export exports[kExportsMax];  // by the writer; piece k is at k modulo kExportsMax
};
static_assert(sizeof(DirectReadControl) == 576);

/// The writer's end. Not thread-safe, and must not move.
class Exporter {
 public:
  /// Exports nothing shorter than `bytes_min`.
  Exporter(DirectReadControl& control, size_t bytes_min);
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  /// Exports `bytes`, which follow position `at` of the ring and begin at byte `begins` of the
  /// whole stream. Returns false, and exports nothing, if they are too short, too many pieces are
  /// open, the reader cannot import, or the kernel does not let other processes read such memory.
  bool Export(uint64_t at, uint64_t begins, std::span<const std::byte> bytes);
  /// The byte of the stream at which the oldest open piece begins; `end` when none is open.
  uint64_t OpenFrom(uint64_t end);
  /// Whether pieces were released since OpenFrom last looked.
  bool Released() const { return control_.released.load(std::memory_order_relaxed) != released_; }
  /// Asks to be woken when a piece is released. False: one was released meanwhile.
  bool PrepareSleep();
  void Awake() { control_.exporter_sleeps.store(0, std::memory_order_relaxed); }
  /// Takes open pieces back, because their memory may change from here on: the reader discards what
  /// it copies of them.
  void Revoke();
  /// The reader claims to have released pieces that were never exported.
  bool broken() const { return broken_; }

 private:
  DirectReadControl& control_;
  const size_t bytes_min_;
  const pid_t self_;
  const uint64_t probe_;
  uint64_t exported_ = 0, released_ = 0;  // the latter as last seen
  uint64_t begins_[kExportsMax] = {};
  bool broken_ = false;
};

/// The reader's end. Not thread-safe.
class Importer {
 public:
  /// `memory` is the writer's and outlives this. Null: this end never imports.
  Importer(DirectReadControl& control, const PeerMemory* memory)
      : control_(control), memory_(memory) {}

  /// Looks for pieces that were exported. Call it after reading the ring's position: the writer
  /// exports a piece before it moves that position, so no piece in front of it is overlooked.
  void Look();
  /// Whether there is an open piece.
  bool open() const { return released_ != exported_; }
  /// The position of the ring that the open piece comes behind. Requires open().
  uint64_t at() const { return at_; }
  /// Copies the next bytes of the open piece, at most out.size(), and returns their count, which is
  /// at least 1. A negative errno otherwise: -EPROTO if the piece is impossible; -ECONNRESET if it
  /// was revoked or the peer is gone, and then the piece is skipped; else what the system says.
  /// *awaited is set when the piece was released and the exporter sleeps until then.
  ssize_t Read(std::span<std::byte> out, bool* awaited);
  /// Whether Look has seen every piece. For a reader that has announced that it sleeps.
  bool NoNews() const { return control_.exported.load(std::memory_order_seq_cst) == exported_; }
  /// The writer claims something impossible.
  bool broken() const { return broken_; }

 private:
  void Probe();
  void Open();
  bool StillOpen() const;
  void Next();

  DirectReadControl& control_;
  const PeerMemory* const memory_;
  bool probed_ = false, broken_ = false;
  uint64_t exported_ = 0, released_ = 0;  // the former as last seen
  uint64_t at_ = 0, address_ = 0, rest_ = 0;
};

}  // namespace weir::shm
