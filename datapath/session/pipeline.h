// SPDX-License-Identifier: Apache-2.0
#pragma once
// The threads through which operations pass. One of several encode threads prepares a part of an
// operation and the network thread moves it, until no part is left; then one thread decodes. The
// pipeline schedules these stages and does not know what they do.
//
// All ranks must move the same parts in the same order. So that order depends only on what all
// ranks know. The network thread keeps a few operations open, at first one, and moves their parts
// round robin: while the next part of one is being prepared, parts of the others move. After a
// part, all ranks know how many of the operations that follow are prepared on every rank, because
// the part carried the smallest such number. Once half of the places for open operations are free,
// the ranks open that many. So an operation that some rank's caller has not submitted yet does not
// delay others. Opened operations that exchange maxima first do so together, in one message.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/bounded_queue.h"
#include "datapath/session/operation.h"

namespace weir {

/// How many operations may wait to be encoded, and to be decoded; the latter may hold payloads.
inline constexpr size_t kSubmittedMax = 4096;
inline constexpr size_t kMovedMax = 2;
/// How many operations may be open; equal on all ranks.
inline constexpr size_t kOpenMax = 8;
// The two more are one that waits for room in the queue, and one that is being decoded.
inline constexpr Duration kWatchEvery = std::chrono::milliseconds(50);
static_assert(kPayloadsPastEncodingMax == kOpenMax + kMovedMax + 2);

class Pipeline {
 public:
  /// The functions that the threads call. None of them throws.
  struct Stages {
    /// Computes the next part of an operation. Several threads call it at once for different
    /// operations: the encode threads and, when it has nothing else to do, the network thread.
    std::function<void(Operation&)> prepare;
    /// Moves the prepared part of one operation, or of several whose `joins` is set, and sets
    /// `more` of each. Called on the network thread. `ready`: how many of the operations that
    /// follow are prepared on this rank and those heard before. Returns the number for the ranks
    /// that were heard now.
    std::function<ReadyCount(std::span<Operation* const>, int ready)> move;
    /// Decodes an operation that has no further parts. Called for one operation at a time.
    std::function<void(Operation&)> decode;
    /// Called on the network thread after Nudge, and now and then while it is watched and idle.
    std::function<void()> nudged;
  };
  /// Throws std::system_error, and leaves no thread behind, when the system grants no thread.
  explicit Pipeline(Stages stages, int encode_workers = 1);
  /// Requires that Drain has returned.
  ~Pipeline();

  /// Operations are prepared and first moved in order of Submit. kResourceExhausted: kSubmittedMax
  /// operations wait; kFailedPrecondition: the pipeline is drained. `op` must live until it is
  /// decoded. Allocates no memory if it succeeds.
  Status Submit(Operation* op);
  /// Makes the network thread call `nudged` before it moves the next part, or soon if it is idle.
  /// Never waits.
  void Nudge();
  /// From now on the network thread also calls `nudged` every kWatchEvery while it has nothing to
  /// move; until as many calls with false. Never waits.
  void Watch(bool on);
  /// Refuses further operations and joins the threads once those submitted are done. Calls
  /// `interrupt` every 20 ms while the network thread still works.
  void Drain(const std::function<void()>& interrupt);

 private:
  using Operations = std::vector<Operation*>;

  void EncodeLoop();
  void NetworkLoop();
  void DecodeLoop();
  /// The next operation for an encode thread; null when there will be none.
  Operation* AwaitWork();
  void Prepare(Operation* op);
  /// Waits for a part to move. Returns true with its operations in part_, or with an empty part_
  /// when `nudged` is due; false when there will be no further part.
  bool AwaitPart(int* ready);
  Operation* FirstUnprepared() const WEIR_REQUIRES(mutex_);
  /// How many operations of coming_, from the first on, are prepared. At most what `op` has heard.
  int Ready(const Operation& op) const WEIR_REQUIRES(mutex_);
  void Open(size_t count) WEIR_REQUIRES(mutex_);
  /// Updates the lists after the part of part_, the operations at the front of open_, has moved.
  void Settle(ReadyCount ready);
  bool Ended() const WEIR_REQUIRES(mutex_) {
    return submitted_.closed() && submitted_.size() == 0 && coming_.empty() && open_.empty();
  }

  const Stages stages_;
  const size_t taken_max_;  // operations that are coming or open
  BoundedQueue<Operation*> submitted_{kSubmittedMax};
  BoundedQueue<Operation*> moved_{kMovedMax};
  Mutex mutex_;
  CondVar work_;      // for encode threads
  CondVar prepared_;  // for the network thread
  CondVar network_ended_;
  // The operations of the part that moves; only the network thread uses it. The constructor
  // reserves the capacity that the lists need.
  Operations part_;
  // Operations taken from submitted_, in its order; and open ones, in the order of their next
  // parts.
  Operations coming_ WEIR_GUARDED_BY(mutex_), open_ WEIR_GUARDED_BY(mutex_);
  uint64_t opened_ WEIR_GUARDED_BY(mutex_) = 0;  // operations opened so far
  bool nudged_ WEIR_GUARDED_BY(mutex_) = false;
  int watchers_ WEIR_GUARDED_BY(mutex_) = 0;
  bool network_running_ WEIR_GUARDED_BY(mutex_) = true;
  std::vector<std::thread> encode_;
  std::thread network_, decode_;
};

}  // namespace weir
