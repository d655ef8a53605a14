// SPDX-License-Identifier: Apache-2.0
#include "controller/server/executor.h"

#include <pthread.h>

#include <memory>

namespace weir {
namespace {

constexpr int kControlInARowMax = 32;  // then telemetry has a turn, too

}  // namespace

Executor::Executor(Duration tick_interval) : tick_interval_(tick_interval) {}

Executor::~Executor() { Stop(); }

void Executor::Start(std::function<void()> tick) {
  tick_ = std::move(tick);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "weir-fleet");
}

bool Executor::Post(std::function<void()> task, Urgency urgency) {
  MutexLock lock(mutex_);
  std::deque<Task>& queue = urgency == Urgency::kControl ? control_ : telemetry_;
  if (closed_ || queue.size() >= kQueueMax) return false;
  queue.push_back({RealClock().Now(), std::move(task)});
  ready_.NotifyOne();
  return true;
}

double Executor::Lag(Urgency urgency) const {
  MutexLock lock(mutex_);
  const std::deque<Task>& queue = urgency == Urgency::kControl ? control_ : telemetry_;
  return queue.empty() ? 0 : ToSeconds(RealClock().Now() - queue.front().posted);
}

Status Executor::Call(std::function<Status()> task, Duration timeout) {
  struct Result {
    Mutex mutex;
    CondVar changed;
    bool done WEIR_GUARDED_BY(mutex) = false;
    Status status WEIR_GUARDED_BY(mutex);
  };
  auto result = std::make_shared<Result>();
  const bool posted = Post([result, task = std::move(task)] {
    Status status = task();
    MutexLock lock(result->mutex);
    result->status = std::move(status);
    result->done = true;
    result->changed.NotifyAll();
  });
  if (!posted) return Unavailable("the controller is shutting down or overloaded");
  const TimePoint deadline = RealClock().Now() + timeout;
  MutexLock lock(result->mutex);
  while (!result->done) {
    if (!result->changed.WaitUntil(result->mutex, deadline) && !result->done) {
      return DeadlineExceeded(
          StrCat("the controller did not answer within ", ToSeconds(timeout), " s"));
    }
  }
  return result->status;
}

Status Executor::Alive() const {
  const Duration silent = RealClock().Now() - last_tick_.load();
  if (silent <= kSilenceMax) return OkStatus();
  return Unavailable(
      StrCat("the thread that decides has done nothing for ", ToSeconds(silent), " s"));
}

void Executor::Stop() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    ready_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::optional<Executor::Task> Executor::Next(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (control_.empty() && telemetry_.empty()) {
    if (closed_ || !ready_.WaitUntil(mutex_, deadline)) break;
  }
  if (control_.empty() && telemetry_.empty()) return std::nullopt;
  const bool control =
      telemetry_.empty() || (!control_.empty() && control_in_a_row_ < kControlInARowMax);
  control_in_a_row_ = control ? control_in_a_row_ + 1 : 0;
  std::deque<Task>& queue = control ? control_ : telemetry_;
  Task task = std::move(queue.front());
  queue.pop_front();
  return task;
}

void Executor::Loop() {
  TimePoint next_tick = RealClock().Now() + tick_interval_;
  while (true) {
    auto task = Next(next_tick);
    if (task.has_value()) {
      task->run();
    } else if (RealClock().Now() < next_tick) {
      return;  // closed and empty
    }
    if (RealClock().Now() >= next_tick) {
      tick_();
      last_tick_ = RealClock().Now();
      next_tick = RealClock().Now() + tick_interval_;
    }
  }
}

}  // namespace weir
