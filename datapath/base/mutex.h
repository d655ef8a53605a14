// SPDX-License-Identifier: Apache-2.0
#pragma once
// An annotated std::mutex. TSan understands it (it reports false races with Debian's absl::Mutex),
// and clang's -Wthread-safety checks its use.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define WEIR_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define WEIR_THREAD_ANNOTATION(x)
#endif
#define WEIR_CAPABILITY(x) WEIR_THREAD_ANNOTATION(capability(x))
#define WEIR_SCOPED_CAPABILITY WEIR_THREAD_ANNOTATION(scoped_lockable)
#define WEIR_GUARDED_BY(x) WEIR_THREAD_ANNOTATION(guarded_by(x))
#define WEIR_REQUIRES(...) WEIR_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define WEIR_EXCLUDES(...) WEIR_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define WEIR_ACQUIRE(...) WEIR_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define WEIR_RELEASE(...) WEIR_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define WEIR_NO_THREAD_SAFETY_ANALYSIS WEIR_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace weir {

class WEIR_CAPABILITY("mutex") Mutex {
 public:
  void Lock() WEIR_ACQUIRE() { mutex_.lock(); }
  void Unlock() WEIR_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class WEIR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WEIR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() WEIR_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// The mutex must be held in a wait. Every wait has a bound or is ended by a Notify at shutdown.
class CondVar {
 public:
  void Wait(Mutex& mutex) WEIR_REQUIRES(mutex) WEIR_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  /// Returns false when `deadline` has passed. Spurious wake-ups happen, so it must be called in a
  /// loop on the condition.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      WEIR_REQUIRES(mutex) WEIR_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // Waits for at most an hour at a time, because the library adds the remaining time to its
    // clock, which must not overflow.
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto turn = std::min<std::chrono::nanoseconds>(left, std::chrono::hours(1));
    const auto result = cv_.wait_for(lock, turn);
    lock.release();
    return result != std::cv_status::timeout || turn < left;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace weir
