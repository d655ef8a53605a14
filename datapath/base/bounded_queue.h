#pragma once
// A bounded multi-producer multi-consumer queue: the only way work crosses threads.

#include <deque>
#include <optional>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"

namespace weir {

/// Holds at most `capacity` items. Thread-safe. Close() ends every wait: pushes fail, pops drain.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  /// False when full or closed; never waits.
  bool TryPush(T item) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    ready_.NotifyOne();
    return true;
  }

  /// Waits for room until `deadline`; false when it passed or the queue closed.
  bool Push(T item, TimePoint deadline) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!closed_ && items_.size() >= capacity_) {
      if (!room_.WaitUntil(mutex_, deadline) && items_.size() >= capacity_) return false;
    }
    if (closed_) return false;
    items_.push_back(std::move(item));
    ready_.NotifyOne();
    return true;
  }

  /// Drops the oldest item when full (telemetry: the newest state matters). False when one was
  /// dropped or the queue is closed.
  bool PushDroppingOldest(T item) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return false;
    bool kept_all = true;
    if (items_.size() >= capacity_) {
      items_.pop_front();
      kept_all = false;
    }
    items_.push_back(std::move(item));
    ready_.NotifyOne();
    return kept_all;
  }

  /// The next item; nothing when `deadline` passed or the queue is closed and empty.
  std::optional<T> Pop(TimePoint deadline) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (items_.empty()) {
      if (closed_ || (!ready_.WaitUntil(mutex_, deadline) && items_.empty())) return std::nullopt;
    }
    return Take();
  }

  /// The next item; waits until there is one. Nothing only when closed and empty.
  std::optional<T> Pop() WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (items_.empty()) {
      if (closed_) return std::nullopt;
      ready_.Wait(mutex_);
    }
    return Take();
  }

  std::optional<T> TryPop() WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (items_.empty()) return std::nullopt;
    return Take();
  }

  void Close() WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    ready_.NotifyAll();
    room_.NotifyAll();
  }

  size_t size() const WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> Take() WEIR_REQUIRES(mutex_) {
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    room_.NotifyOne();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar ready_;
  CondVar room_;
  std::deque<T> items_ WEIR_GUARDED_BY(mutex_);
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
