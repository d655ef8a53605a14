#pragma once
// A ring of bytes in memory that two processes map: one writes, one reads, neither waits. Long
// pieces of the stream are lent instead (loan.h) and are not in the ring. Positions count all bytes
// that ever were in it; each end keeps its own in private memory, so a peer that overwrites the
// shared ones can spoil data but never make us leave the ring.

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/transport/builtin/shm/loan.h"

namespace weir::shm {

/// The shared words of one ring, zero at first. Those of different writers have cache lines of
/// their own, so that what one end looks at all the time is only taken away from it when the other
/// has something to say.
struct RingControl {
  alignas(64) std::atomic<uint64_t> written;        // by the writer
  std::atomic<uint64_t> origin;                     // by the writer: the position at the first byte
  alignas(64) std::atomic<uint64_t> read;           // by the reader
  alignas(64) std::atomic<uint32_t> reader_sleeps;  // set by the reader, taken by the writer
  alignas(64) std::atomic<uint32_t> writer_sleeps;  // set by the writer, taken by the reader
  LoanControl loans;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(RingControl) == 832);

/// Bytes are published and released in pieces, so that both ends copy at the same time.
inline constexpr size_t kRingPieceBytes = 64 << 10;

/// Behind so many bytes a writer that finds the ring empty starts at its beginning again: a large
/// ring then costs small operations no more memory and cache than a small one.
inline constexpr size_t kRingRewindBytes = 512 << 10;

/// What is lent is copied into parts of at least so many bytes, or alone.
inline constexpr size_t kBorrowBytesMin = 16 << 10;

// Why no wake-up is lost: an end that wants to sleep stores its wish and then loads the other's
// position; the other stores its position and then loads the wish. All four are sequentially
// consistent, so at least one of them sees the other's store.

/// The memory of one ring and the bell that wakes its other end: an eventfd, -1: none.
struct RingEnd {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  size_t capacity = 0;  // a power of two
  int bell = -1;

  void Ring() const;
};

/// Not thread-safe; the memory and the bell outlive it.
class RingWriter {
 public:
  explicit RingWriter(const RingEnd& end, size_t loan_bytes_min = kLoanBytesMin)
      : end_(end), lender_(end.control->loans, loan_bytes_min) {}
  /// Lends long parts where the reader can borrow, and copies what fits of the others. Bytes taken;
  /// -EAGAIN: no room; -EPROTO: the reader's position cannot be.
  ssize_t Write(std::span<const iovec> parts);
  /// True also when Write would return an error.
  bool Writable() { return Room(1) > 0 || broken_; }
  /// Asks to be woken when there is room. False: there is some now.
  bool PrepareSleep();
  void Awake() { end_.control->writer_sleeps.store(0, std::memory_order_relaxed); }
  /// Of all bytes taken, how many at the end may still be read from where they were.
  size_t Retained() { return static_cast<size_t>(taken_ - lender_.OpenFrom(taken_)); }
  Lender& lender() { return lender_; }

 private:
  size_t Room(size_t wanted);
  void Populate(size_t end);
  void Rewind();
  void Publish();

  const RingEnd end_;
  Lender lender_;
  bool lent_ = false;     // since the reader was last told
  uint64_t taken_ = 0;    // bytes of the stream
  size_t populated_ = 0;  // bytes of the ring that have had memory since this end asked for it
  uint64_t origin_ = 0;
  uint64_t written_ = 0, published_ = 0;
  uint64_t read_ = 0;  // as last seen
  bool broken_ = false;
};

/// Not thread-safe; the memory and the bell outlive it.
class RingReader {
 public:
  /// `memory` is the writer's and outlives it; none: what is lent cannot be read.
  explicit RingReader(const RingEnd& end, const PeerMemory* memory = nullptr)
      : end_(end), borrower_(end.control->loans, memory) {}
  /// Bytes read; -EAGAIN: none there; -EPROTO: the writer's position, or a loan, cannot be;
  /// -ECONNRESET: a loan was revoked, and the next bytes are those behind it; others: the system
  /// does not let it read a loan.
  ssize_t Read(std::span<const iovec> parts);
  /// True also when Read would return an error.
  bool Readable() { return Available() > 0 || LoanIsNext() || error_ != 0; }
  /// Wakes a writer that waits for whatever room there is. While reading it is only woken for half
  /// the ring, or it would be woken for every piece.
  void TurnEnds();
  /// Asks to be woken when there are bytes. False: there are some now.
  bool PrepareSleep();
  void Awake() { end_.control->reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  size_t Available();
  bool LoanIsNext() const { return borrower_.open() && borrower_.at() == read_; }
  size_t ReadRing(std::span<std::byte> out);
  size_t ReadLoan(std::span<std::byte> out);
  void Release();

  const RingEnd end_;
  Borrower borrower_;
  uint64_t read_ = 0, released_ = 0;
  uint64_t written_ = 0, origin_ = 0;  // as last seen
  int error_ = 0;                      // negative: nothing can be read
};

}  // namespace weir::shm
