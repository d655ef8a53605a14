// SPDX-License-Identifier: Apache-2.0
#include "controller/server/executor.h"

#include <pthread.h>

#include <memory>

namespace weir {

Executor::Executor(Duration tick_interval) : tick_interval_(tick_interval) {}

Executor::~Executor() { Stop(); }

void Executor::Start(std::function<void()> tick) {
  tick_ = std::move(tick);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "weir-fleet");
}

bool Executor::Post(std::function<void()> task) { return queue_.TryPush(std::move(task)); }

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
  queue_.Close();
  if (thread_.joinable()) thread_.join();
}

void Executor::Loop() {
  TimePoint next_tick = RealClock().Now() + tick_interval_;
  while (true) {
    auto task = queue_.Pop(next_tick);
    if (task.has_value()) {
      (*task)();
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
