#pragma once
// Three stages that operations pass through in order, each a thread: while bucket b is on the wire,
// b+1 is encoded and b-1 decoded. Several threads may encode, each another bucket. It moves
// operations and knows nothing of what the stages do.

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/bounded_queue.h"
#include "datapath/session/operation.h"

namespace weir {

/// Operations that may wait to be encoded; and between two stages, where each may hold a payload.
inline constexpr size_t kSubmittedMax = 4096;
inline constexpr size_t kBetweenStagesMax = 2;

class Pipeline {
 public:
  /// Each function is called on a thread of its name: `network` and `decode` one operation at a
  /// time, in order of Submit; `encode` on `encode_workers` threads, each with an operation of its
  /// own, which go on in order of Submit. A null operation reaches `network` when Nudge was called.
  /// None of them throws.
  struct Stages {
    std::function<void(Operation&)> encode;
    std::function<void(Operation*)> network;
    std::function<void(Operation&)> decode;
  };
  /// Throws std::system_error when the system grants no thread; none is left then.
  explicit Pipeline(Stages stages, int encode_workers = 1);
  /// After Drain.
  ~Pipeline();

  /// kResourceExhausted: kSubmittedMax operations wait; kFailedPrecondition: the pipeline is
  /// drained. `op` outlives its way. Allocates nothing where it succeeds.
  Status Submit(Operation* op);
  /// Calls `network` with null soon, or with the operation that comes first. Never waits.
  void Nudge();
  /// Refuses further operations and joins the threads once those inside have passed. `interrupt` is
  /// called every 20 ms while the network stage still works.
  void Drain(const std::function<void()>& interrupt);

 private:
  void EncodeLoop();
  void NetworkLoop();
  void DecodeLoop();

  const Stages stages_;
  Mutex taking_;  // held by the worker that waits for the next operation
  uint64_t taken_ WEIR_GUARDED_BY(taking_) = 0;
  Mutex handing_;  // held while an operation waits for room
  CondVar handed_on_;
  uint64_t handed_ WEIR_GUARDED_BY(handing_) = 0;
  int encoders_ WEIR_GUARDED_BY(handing_) = 0;
  BoundedQueue<Operation*> submitted_{kSubmittedMax};
  BoundedQueue<Operation*> encoded_{kBetweenStagesMax};
  BoundedQueue<Operation*> moved_{kBetweenStagesMax};
  Mutex mutex_;
  CondVar network_ended_;
  bool network_running_ WEIR_GUARDED_BY(mutex_) = true;
  std::vector<std::thread> encode_;
  std::thread network_, decode_;
};

}  // namespace weir
