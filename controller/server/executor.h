// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one thread that owns the controller's state. Network handlers only post work to it.

#include <atomic>
#include <functional>
#include <thread>

#include "datapath/base/bounded_queue.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// Runs tasks in order on its own thread ("weir-fleet") and a tick in between. Post is thread-safe.
class Executor {
 public:
  /// Bound of the queue: at most one task waits for each agent stream, REST worker and gRPC call.
  static constexpr size_t kQueueMax = 16384;

  explicit Executor(Duration tick_interval = std::chrono::milliseconds(100));
  ~Executor();

  /// Starts the thread. `tick` runs on it at least once per interval, also while tasks keep coming.
  void Start(std::function<void()> tick);
  /// Returns false when the queue is full or the executor has stopped: the task will not run.
  bool Post(std::function<void()> task);
  /// Runs `task` and waits for it. kUnavailable: stopped or full; kDeadlineExceeded: not done in
  /// time (it may still run, so `task` must own what it touches). Never from the executor's own
  /// thread.
  Status Call(std::function<Status()> task, Duration timeout = std::chrono::seconds(5));
  /// OK while ticks come at least every kSilenceMax, and before Start. kUnavailable says for how
  /// long there was none: the thread hangs. Thread-safe; takes no lock.
  Status Alive() const;
  static constexpr Duration kSilenceMax = std::chrono::seconds(60);
  /// Runs what is queued, then joins. Later posts fail.
  void Stop();

 private:
  void Loop();

  const Duration tick_interval_;
  BoundedQueue<std::function<void()>> queue_{kQueueMax};
  std::function<void()> tick_;
  std::atomic<TimePoint> last_tick_{TimePoint::max()};
  std::thread thread_;
};

}  // namespace weir
