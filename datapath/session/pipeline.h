#pragma once
// Three threads that operations pass through in order: while bucket b is on the wire, b+1 is
// encoded and b-1 decoded. It moves operations and knows nothing of what the stages do.

#include <functional>
#include <string>
#include <thread>

#include "datapath/base/bounded_queue.h"
#include "datapath/session/operation.h"

namespace weir {

/// Operations that may wait to be encoded; and between two stages, where each may hold a payload.
inline constexpr size_t kSubmittedMax = 4096;
inline constexpr size_t kBetweenStagesMax = 2;

class Pipeline {
 public:
  /// Each function is called on the thread of its name, one operation at a time, in order of
  /// Submit. A null operation reaches `network` when Nudge was called.
  struct Stages {
    std::function<void(Operation&)> encode;
    std::function<void(Operation*)> network;
    std::function<void(Operation&)> decode;
  };
  explicit Pipeline(Stages stages);
  /// After Drain.
  ~Pipeline();

  /// False when kSubmittedMax operations wait or the pipeline is drained. `op` outlives its way.
  bool Submit(Operation* op);
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
  BoundedQueue<Operation*> submitted_{kSubmittedMax};
  BoundedQueue<Operation*> encoded_{kBetweenStagesMax};
  BoundedQueue<Operation*> moved_{kBetweenStagesMax};
  Mutex mutex_;
  CondVar network_ended_;
  bool network_running_ WEIR_GUARDED_BY(mutex_) = true;
  std::thread encode_, network_, decode_;
};

}  // namespace weir
