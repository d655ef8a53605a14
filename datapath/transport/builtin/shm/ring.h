// SPDX-License-Identifier: Apache-2.0
#pragma once
// A ring of bytes in memory that two processes map: one writes, one reads, and neither waits. Long
// pieces of the stream do not pass through the ring: the writer exports them, and the reader copies
// them from the writer's memory (direct_read.h). Positions count all bytes that ever were in the
// ring. Each end keeps its own position in private memory, so a peer that overwrites the shared
// words can spoil data but cannot make this process leave the ring.

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/transport/builtin/shm/direct_read.h"

namespace weir::shm {

/// The shared words of one ring, zero at first. Words with different writers lie on different cache
/// lines: an end that polls a word loses its cache line only when the other end changes that word.
struct RingControl {
  alignas(64) std::atomic<uint64_t> written;        // by the writer
  std::atomic<uint64_t> origin;                     // by the writer: the position at the first byte
  alignas(64) std::atomic<uint64_t> read;           // by the reader
  alignas(64) std::atomic<uint32_t> reader_sleeps;  // set by the reader, taken by the writer
  alignas(64) std::atomic<uint32_t> writer_sleeps;  // set by the writer, taken by the reader
  DirectReadControl direct;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(RingControl) == 832);

/// Bytes are published and released in pieces of this size, so that both ends copy at the same
/// time.
inline constexpr size_t kRingPieceBytes = 64 << 10;

/// After so many bytes a writer that finds the ring empty starts again at its beginning. Thus a
/// large ring costs small operations no more memory and cache than a small one.
inline constexpr size_t kRingRewindBytes = 512 << 10;

/// A reader that already has bytes copies an exported piece only into parts of at least this size.
inline constexpr size_t kImportBytesMin = 16 << 10;

// No wake-up is lost: an end that wants to sleep stores its flag and then loads the other end's
// position; the other end stores its position and then loads the flag. All four accesses are
// sequentially consistent, so at least one end sees the other's store.

/// The memory of one ring, and the eventfd that wakes its other end; -1: none.
struct RingEnd {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  size_t capacity = 0;  // a power of two
  int event_fd = -1;

  /// Wakes the other end.
  void Wake() const;
};

/// The writer's end. Not thread-safe; the memory and the eventfd outlive it.
class RingWriter {
 public:
  explicit RingWriter(const RingEnd& end, size_t direct_bytes_min = kDirectReadBytesMin)
      : end_(end), exporter_(end.control->direct, direct_bytes_min) {}
  /// Exports long parts where the reader can import them, and copies as much of the others as fits.
  /// Returns the bytes taken; -EAGAIN: no room; -EPROTO: the reader's position is impossible.
  ssize_t Write(std::span<const iovec> parts);
  /// True also when Write would return an error.
  bool Writable() { return Room(1) > 0 || broken_; }
  /// Asks to be woken when there is room. False: there is some now.
  bool PrepareSleep();
  void Awake() { end_.control->writer_sleeps.store(0, std::memory_order_relaxed); }
  /// How many of the last bytes taken the reader may still read from the caller's memory.
  size_t Retained() { return static_cast<size_t>(taken_ - exporter_.OpenFrom(taken_)); }
  Exporter& exporter() { return exporter_; }

 private:
  size_t Room(size_t wanted);
  void Populate(size_t end);
  void Rewind();
  void Publish();

  const RingEnd end_;
  Exporter exporter_;
  bool exported_ = false;  // since the reader was last told
  uint64_t taken_ = 0;     // bytes of the stream
  size_t populated_ = 0;   // bytes of the ring whose pages this end has asked for
  uint64_t origin_ = 0;
  uint64_t written_ = 0, published_ = 0;
  uint64_t read_ = 0;  // as last seen
  bool broken_ = false;
};

/// The reader's end. Not thread-safe; the memory and the eventfd outlive it.
class RingReader {
 public:
  /// `memory` is the writer's and outlives this. Null: exported pieces cannot be read.
  explicit RingReader(const RingEnd& end, const PeerMemory* memory = nullptr)
      : end_(end), importer_(end.control->direct, memory) {}
  /// Returns the bytes read; -EAGAIN: there are none; -EPROTO: the writer's position or an exported
  /// piece is impossible; -ECONNRESET: an exported piece was revoked, and the next bytes are those
  /// behind it; other errors: the system does not let this process read an exported piece.
  ssize_t Read(std::span<const iovec> parts);
  /// True also when Read would return an error.
  bool Readable() { return Available() > 0 || ExportIsNext() || error_ != 0; }
  /// Wakes a writer that waits for any room. During reads it is woken only when half the ring is
  /// free; otherwise every piece would wake it.
  void TurnEnds();
  /// Asks to be woken when there are bytes. False: there are some now.
  bool PrepareSleep();
  void Awake() { end_.control->reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  size_t Available();
  bool ExportIsNext() const { return importer_.open() && importer_.at() == read_; }
  size_t ReadRing(std::span<std::byte> out);
  size_t ReadExported(std::span<std::byte> out);
  void Release();

  const RingEnd end_;
  Importer importer_;
  uint64_t read_ = 0, released_ = 0;
  uint64_t written_ = 0, origin_ = 0;  // as last seen
  int error_ = 0;                      // negative: nothing can be read
};

}  // namespace weir::shm
