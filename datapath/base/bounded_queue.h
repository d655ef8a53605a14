// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bounded queue of several producers and consumers. All work that crosses threads goes through
// one.

#include <memory>
#include <optional>
#include <utility>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"

namespace weir {

/// Holds at most `capacity` items, at least 1. Thread-safe. Close() ends every wait: then pushes
/// fail, and pops return the remaining items. All memory is allocated in the constructor, so pushes
/// and pops throw only if moving an item does.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity)
      : capacity_(capacity), items_(std::make_unique<std::optional<T>[]>(capacity)) {}

  /// Returns false when the queue is full or closed; never waits.
  bool TryPush(T item) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || count_ >= capacity_) return false;
    Put(std::move(item));
    return true;
  }

  /// Waits for room until `deadline`. Returns false when it has passed or the queue is closed.
  bool Push(T item, TimePoint deadline) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!closed_ && count_ >= capacity_) {
      if (!room_.WaitUntil(mutex_, deadline) && count_ >= capacity_) return false;
    }
    if (closed_) return false;
    Put(std::move(item));
    return true;
  }

  /// Drops the oldest item when the queue is full (for telemetry, where the newest state matters).
  /// Returns false when an item was dropped or the queue is closed.
  bool PushDroppingOldest(T item) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return false;
    bool kept_all = true;
    if (count_ >= capacity_) {
      (void)Take();
      kept_all = false;
    }
    Put(std::move(item));
    return kept_all;
  }

  /// Returns the next item, or nothing when `deadline` has passed or the queue is closed and empty.
  std::optional<T> Pop(TimePoint deadline) WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (count_ == 0) {
      if (closed_ || (!ready_.WaitUntil(mutex_, deadline) && count_ == 0)) return std::nullopt;
    }
    return Take();
  }

  /// Waits for the next item. Returns nothing only when the queue is closed and empty.
  std::optional<T> Pop() WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (count_ == 0) {
      if (closed_) return std::nullopt;
      ready_.Wait(mutex_);
    }
    return Take();
  }

  std::optional<T> TryPop() WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (count_ == 0) return std::nullopt;
    return Take();
  }

  void Close() WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    ready_.NotifyAll();
    room_.NotifyAll();
  }

  /// Distinguishes a push that failed because the queue was full from one that failed because it
  /// was closed.
  bool closed() const WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closed_;
  }

  size_t size() const WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return count_;
  }

 private:
  void Put(T item) WEIR_REQUIRES(mutex_) {
    items_[(first_ + count_) % capacity_].emplace(std::move(item));
    ++count_;
    ready_.NotifyOne();
  }

  std::optional<T> Take() WEIR_REQUIRES(mutex_) {
    std::optional<T> item = std::exchange(items_[first_], std::nullopt);
    first_ = (first_ + 1) % capacity_;
    --count_;
    room_.NotifyOne();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar ready_;
  CondVar room_;
  const std::unique_ptr<std::optional<T>[]> items_;  // a ring; guarded by mutex_
  size_t first_ WEIR_GUARDED_BY(mutex_) = 0, count_ WEIR_GUARDED_BY(mutex_) = 0;
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
