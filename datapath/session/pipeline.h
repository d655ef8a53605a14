#pragma once
// The threads that an operation passes: parts of it are prepared by one of several encode threads
// and moved by the network thread, in turn, until none is left, and one thread decodes. It knows
// nothing of what is prepared, moved and decoded; it decides whose turn it is.
//
// All ranks must move the same parts in the same order. So that order depends only on what all
// ranks know. The network thread keeps a few operations open, at first one, and moves their parts
// round robin: while the next part of one is being prepared, the others move. After a part, all
// ranks know how many of the operations that follow are prepared everywhere (the least number of
// any rank, which the part carried); once half of the places for open operations are free, they
// open as many. An operation that some rank's caller has not submitted yet never holds up others.
// Those among them that exchange maxima first do so at once, in one message.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/bounded_queue.h"
#include "datapath/session/operation.h"

namespace weir {

/// Operations that may wait to be encoded; and to be decoded, where each may hold a payload.
inline constexpr size_t kSubmittedMax = 4096;
inline constexpr size_t kMovedMax = 2;
/// Operations whose parts may move in turn; equal on all ranks.
inline constexpr size_t kOpenMax = 8;
// Two more: one that waits for room to be decoded, and one that is.
static_assert(kPayloadsPastEncodingMax == kOpenMax + kMovedMax + 2);

class Pipeline {
 public:
  /// None of them throws.
  struct Stages {
    /// Computes the next part of an operation. Called by several threads, each for another one:
    /// `encode_workers` of its name and, when it has nothing else to do, the network thread.
    std::function<void(Operation&)> prepare;
    /// Moves the part that was prepared, of one operation or of several that say `joins`, on the
    /// network thread. Sets `more` of each. `ready`: how many of those that follow are prepared
    /// here, or on ranks heard before. Returns how many are on the ranks that it heard from.
    std::function<ReadyCount(std::span<Operation* const>, int ready)> move;
    /// Takes an operation without further parts, one at a time.
    std::function<void(Operation&)> decode;
    /// Nudge was called; on the network thread.
    std::function<void()> nudged;
  };
  /// Throws std::system_error when the system grants no thread; none is left then.
  explicit Pipeline(Stages stages, int encode_workers = 1);
  /// After Drain.
  ~Pipeline();

  /// Operations are prepared and first moved in order of Submit. kResourceExhausted: kSubmittedMax
  /// operations wait; kFailedPrecondition: the pipeline is drained. `op` outlives its way.
  /// Allocates nothing where it succeeds.
  Status Submit(Operation* op);
  /// Calls `nudged` before the next part moves, or soon. Never waits.
  void Nudge();
  /// Refuses further operations and joins the threads once those inside have passed. `interrupt` is
  /// called every 20 ms while the network stage still works.
  void Drain(const std::function<void()>& interrupt);

 private:
  using Operations = std::vector<Operation*>;

  void EncodeLoop();
  void NetworkLoop();
  void DecodeLoop();
  /// The next operation for an encode thread; null when there will be none.
  Operation* AwaitWork();
  void Prepare(Operation* op);
  /// True with part_ to be moved, or empty when nudged; false when there will be none.
  bool AwaitPart(int* ready);
  Operation* FirstUnprepared() const WEIR_REQUIRES(mutex_);
  /// Of those that are not open, from the first on; at most what `op` has heard.
  int Ready(const Operation& op) const WEIR_REQUIRES(mutex_);
  void Open(size_t count) WEIR_REQUIRES(mutex_);
  /// part_, the operations at the front of open_, moved.
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
  // The network thread's: the operations of the part that moves. All lists have the capacity that
  // they need from the begin on.
  Operations part_;
  // Taken from submitted_, in that order; and in the order in which their parts move.
  Operations coming_ WEIR_GUARDED_BY(mutex_), open_ WEIR_GUARDED_BY(mutex_);
  uint64_t opened_ WEIR_GUARDED_BY(mutex_) = 0;  // so far
  bool nudged_ WEIR_GUARDED_BY(mutex_) = false;
  bool network_running_ WEIR_GUARDED_BY(mutex_) = true;
  std::vector<std::thread> encode_;
  std::thread network_, decode_;
};

}  // namespace weir
