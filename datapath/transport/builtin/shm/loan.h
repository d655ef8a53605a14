#pragma once
// Bytes of a ring's stream that stay where they are: the writer lends a piece of its own memory,
// and the reader copies straight from it. Both ends keep their counts in private memory, as with
// the ring's positions.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/transport/builtin/shm/peer_memory.h"

namespace weir::shm {

/// Loans that can be open at a time.
inline constexpr size_t kLoansMax = 16;

/// Shorter pieces go through the ring: a system call and looking up pages cost more than a copy.
inline constexpr size_t kLoanBytesMin = 96 << 10;
/// Between ranks that have a core each: both ends of a ring copy at the same time.
inline constexpr size_t kLoanBytesMinApart = 192 << 10;

/// The shared words of one direction, zero at first, on lines by who writes them.
struct LoanControl {
  /// In the stream the piece comes behind the ring's octet at position `at`.
  struct Loan {
    std::atomic<uint64_t> at, address, bytes;
  };

  alignas(64) std::atomic<uint64_t> lent;  // by the writer: loans ever made
  std::atomic<uint64_t> probe_address;     // by the writer: where it keeps `probe`, 0: not yet
  std::atomic<uint64_t> probe;
  std::atomic<uint32_t> revoked;             // by the writer: what is open may have changed
  alignas(64) std::atomic<uint64_t> repaid;  // by the reader: loans it has copied
  std::atomic<uint32_t> borrows;             // by the reader: it can read the writer's memory
  alignas(64) std::atomic<uint32_t> lender_sleeps;  // set by the writer, taken by the reader
  alignas(64) Loan loans[kLoansMax];                // by the writer; loan k at k modulo kLoansMax
};
static_assert(sizeof(LoanControl) == 576);

/// The writer's end. Not thread-safe, and stays where it is.
class Lender {
 public:
  /// Lends nothing shorter than `bytes_min`.
  Lender(LoanControl& control, size_t bytes_min);
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  /// Lends `bytes` behind position `at` of the ring. False: too short, too many are open, the
  /// reader cannot borrow, or the kernel reads such memory for nobody. `begins` is the piece's
  /// place among all bytes of the stream.
  bool Lend(uint64_t at, uint64_t begins, std::span<const std::byte> bytes);
  /// Where in the stream the oldest open loan begins; `end` when none is open.
  uint64_t OpenFrom(uint64_t end);
  /// More loans were repaid than OpenFrom knew of.
  bool Repaid() const { return control_.repaid.load(std::memory_order_relaxed) != repaid_; }
  /// Asks to be woken when a loan is repaid. False: one was meanwhile.
  bool PrepareSleep();
  void Awake() { control_.lender_sleeps.store(0, std::memory_order_relaxed); }
  /// The memory of open loans may change from here on: the reader takes none of them any more.
  void Revoke();
  /// The reader claims to have repaid what was never lent.
  bool broken() const { return broken_; }

 private:
  LoanControl& control_;
  const size_t bytes_min_;
  const pid_t self_;
  const uint64_t probe_;
  uint64_t lent_ = 0, repaid_ = 0;  // the latter as last seen
  uint64_t begins_[kLoansMax] = {};
  bool broken_ = false;
};

/// The reader's end. Not thread-safe.
class Borrower {
 public:
  /// `memory` outlives it; none: this end never borrows.
  Borrower(LoanControl& control, const PeerMemory* memory) : control_(control), memory_(memory) {}

  /// Looks for news. To be called after the ring's position was read, whose writer lends first:
  /// then no loan in front of that position is overlooked.
  void Look();
  /// True when there is a loan. Valid then: the ring's position that it comes behind.
  bool open() const { return repaid_ != lent_; }
  uint64_t at() const { return at_; }
  /// Copies what is next of the open loan, at most out.size() bytes, 1 or more. Bytes; a negative
  /// errno: -EPROTO: such a loan cannot be; -ECONNRESET: it was revoked, or the peer is gone, and
  /// it is passed over; others: what the system says. *awaited: the loan is over, and the lender
  /// sleeps until then.
  ssize_t Read(std::span<std::byte> out, bool* awaited);
  /// No loan was made that Look has not seen. For those who have said that they sleep.
  bool NoNews() const { return control_.lent.load(std::memory_order_seq_cst) == lent_; }
  /// The writer claims what cannot be.
  bool broken() const { return broken_; }

 private:
  void Introduce();
  void Open();
  bool StillOpen() const;
  void Next();

  LoanControl& control_;
  const PeerMemory* const memory_;
  bool introduced_ = false, broken_ = false;
  uint64_t lent_ = 0, repaid_ = 0;  // the former as last seen
  uint64_t at_ = 0, address_ = 0, rest_ = 0;
};

}  // namespace weir::shm
