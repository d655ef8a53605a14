// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one thread that owns the controller's state. Network handlers only post work to it.

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

namespace weir {

/// Telemetry may wait while greetings, answers to plans and operators' calls are served.
enum class Urgency { kControl, kTelemetry };

/// Runs tasks on its own thread ("weir-fleet"), those of one urgency in order, and a tick in
/// between. Post and Lag are thread-safe.
class Executor {
 public:
  /// Bound of each urgency's queue: at most one task waits for each agent stream, REST worker and
  /// gRPC call.
  static constexpr size_t kQueueMax = 32768;

  explicit Executor(Duration tick_interval = std::chrono::milliseconds(100));
  ~Executor();

  /// Starts the thread. `tick` runs on it at least once per interval, also while tasks keep coming.
  void Start(std::function<void()> tick);
  /// Returns false when the queue is full or the executor has stopped: the task will not run.
  bool Post(std::function<void()> task, Urgency urgency = Urgency::kControl);
  /// How long the oldest task of that urgency has been waiting, in seconds; 0: none waits.
  double Lag(Urgency urgency) const;
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
  struct Task {
    TimePoint posted;
    std::function<void()> run;
  };

  void Loop();
  /// The next task, or none when `deadline` has passed or nothing is left to do.
  std::optional<Task> Next(TimePoint deadline);

  const Duration tick_interval_;
  std::function<void()> tick_;
  std::atomic<TimePoint> last_tick_{TimePoint::max()};
  mutable Mutex mutex_;
  CondVar ready_;
  std::deque<Task> control_ WEIR_GUARDED_BY(mutex_), telemetry_ WEIR_GUARDED_BY(mutex_);
  int control_in_a_row_ WEIR_GUARDED_BY(mutex_) = 0;
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weir
