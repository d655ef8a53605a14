// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the ranks of a communicator come to use a new table from the same call on. NCCL hangs or
// corrupts data when two ranks choose differently for the same call, and it checks nothing.
//
// A table may reach the ranks at any time and in any order. No message can make them switch at the
// same call: the last rank to get it may already be past it. (That no protocol can do so, if
// messages may be late and nobody may wait, is the problem of the two generals.) Frames of Weir's
// own transport carry the switch with the data, which NCCL's do not. So ranks agree in memory that
// all of them share, where one compare-and-swap decides, at once and for all, whether a switch
// takes place. A communicator whose ranks do not all share that memory never switches.
//
// The rule. Each rank publishes how many calls it has begun, then looks at the register's word; it
// does so in every call. The word is the outcome of the newest proposal:
//   1. Some rank sees that all ranks hold the same table. It writes PROPOSED with a call that lies
//      ahead of all counts.
//   2. Then it reads every count and every table again. Only if all ranks still hold that table and
//      none has begun the proposed call, it replaces PROPOSED by COMMITTED, else by ABORTED.
//   3. A rank that begins the proposed call, or a later one, and finds PROPOSED, replaces it by
//      ABORTED. A rank that wants another table does the same.
// Both replacements are compare-and-swaps of the same word, so one of them wins, and every rank
// sees the winner before it decides on the proposed call. A rank that began that call before
// PROPOSED was visible to it had published its count before, so step 2 finds it. (Sequential
// consistency is necessary: both sides write first and read then.)
//   4. The next proposal waits until every rank has noted the outcome of this one, and a committed
//      table is in use on all of them.
// No rank ever waits, whichever rank dies or is stopped at any point: the first rank that reaches
// the call of an unfinished proposal aborts it. Counts mean the same call on every rank only if
// all ranks make the same calls. Each rank keeps a running hash of its calls, ranks compare hashes
// at a common count before each proposal, and a difference ends switching for the communicator.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "datapath/base/status.h"

// A test explores the order of every access with a type of its own.
#ifndef WEIR_NCCL_ATOMIC
#define WEIR_NCCL_ATOMIC std::atomic
#endif

namespace weir::nccl::plugin {

inline constexpr uint32_t kAgreementRanksMax = 1024;

/// The memory that the ranks share, all zero at first. One Slot per rank follows the header.
struct Register {
  static constexpr size_t kHistory = 32;         // checkpoints kept
  static constexpr uint64_t kHistoryEvery = 16;  // calls from one to the next

  struct alignas(64) Slot {
    WEIR_NCCL_ATOMIC<uint64_t> calls;     // begun
    WEIR_NCCL_ATOMIC<uint64_t> accepted;  // identity of the table that it is ready to use; 0: none
    WEIR_NCCL_ATOMIC<uint64_t> settled;   // the newest word whose outcome it has noted
    WEIR_NCCL_ATOMIC<uint32_t> left;
    WEIR_NCCL_ATOMIC<uint64_t> active;  // identity of the table in use
    WEIR_NCCL_ATOMIC<uint64_t> history[kHistory];
  };

  alignas(64) WEIR_NCCL_ATOMIC<uint32_t> ranks;  // of the communicator; set by the first
  WEIR_NCCL_ATOMIC<uint32_t> joined;
  WEIR_NCCL_ATOMIC<uint32_t> calls_differ;
  alignas(64) WEIR_NCCL_ATOMIC<uint64_t> word;

  Slot* slots() { return reinterpret_cast<Slot*>(this + 1); }
  static size_t Bytes(uint32_t ranks) { return sizeof(Register) + ranks * sizeof(Slot); }
};

/// One rank's part in the agreement. The memory must outlive it. Tables are known by a 64-bit
/// identity other than 0. Not thread-safe: one caller at a time on each rank; ranks run in
/// parallel.
class Participant {
 public:
  /// Takes a slot. `first_table`: the one in use from the first call on. kFailedPrecondition: the
  /// memory belongs to a communicator of another size, or all slots are taken.
  static StatusOr<std::unique_ptr<Participant>> Join(Register& shared, uint32_t ranks,
                                                     uint64_t first_table);
  ~Participant();
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  /// To be called once in every call of the communicator, with a hash of what is called. Returns
  /// the identity of the table to use. Never waits. O(1).
  uint64_t OnCall(uint64_t what) {
    Announce(what);
    return Decide();
  }

  /// States which table this rank is ready to use. Returns false while a committed switch to the
  /// former one is ahead; then the former one stays accepted, and the caller tries again later. The
  /// caller keeps both tables until this returns true.
  bool Accept(uint64_t table);

  /// To be called now and then outside of calls: notes outcomes and proposes a switch when all
  /// ranks accept the same new table. O(ranks).
  void Tick() {
    if (const std::optional<uint64_t> proposed = Propose()) Settle(*proposed);
  }

  /// Whether all ranks of the communicator share the memory.
  bool complete() const { return shared_.joined.load() == ranks_; }
  /// Whether ranks were seen to make different calls, after which nothing switches any more.
  bool calls_differ() const { return shared_.calls_differ.load() != 0; }
  uint64_t accepted() const { return accepted_; }
  uint64_t active() const { return active_; }
  uint64_t calls() const { return calls_; }

  // The two halves of OnCall and of Tick, apart so that a test can stop a rank between them.
  void Announce(uint64_t what);
  uint64_t Decide();
  std::optional<uint64_t> Propose();
  void Settle(uint64_t proposed);

 private:
  Participant(Register& shared, uint32_t ranks, uint32_t index, uint64_t first_table);

  void Note(uint64_t word);
  bool SameHistory();
  std::optional<uint64_t> CommonTable() const;

  Register& shared_;
  const uint32_t ranks_;
  Register::Slot& slot_;
  uint64_t calls_ = 0;
  uint64_t hash_ = 0;
  uint64_t active_;
  uint64_t accepted_ = 0;
  uint64_t settled_ = 0;
  std::optional<uint64_t> switch_at_;  // a committed switch to accepted_ is ahead at this call
  uint64_t margin_;
};

/// The register of a communicator as a file that the ranks of one machine map. Ranks of containers
/// that do not share /dev/shm get different files, so their communicator never becomes complete.
class SharedRegister {
 public:
  /// Opens or makes the file in `directory`. kUnavailable: it cannot be made; kFailedPrecondition:
  /// it belongs to another user or has another size.
  static StatusOr<std::unique_ptr<SharedRegister>> Open(const std::string& directory,
                                                        uint64_t communicator, uint32_t ranks);
  ~SharedRegister();
  SharedRegister(const SharedRegister&) = delete;
  SharedRegister& operator=(const SharedRegister&) = delete;

  Register& get() { return *register_; }
  /// Removes the file's name, once all have it or when this rank leaves. Idempotent.
  void Unlink();

 private:
  SharedRegister(std::string path, Register* mapped, size_t bytes)
      : path_(std::move(path)), register_(mapped), bytes_(bytes) {}

  std::string path_;
  Register* const register_;
  const size_t bytes_;
};

}  // namespace weir::nccl::plugin
