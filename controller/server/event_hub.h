// SPDX-License-Identifier: Apache-2.0
#pragma once
// Distributes events to watchers. If a watcher is slow, its oldest events are dropped; publishers
// never wait.

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>

#include "controller/fleet/fleet_host.h"
#include "datapath/base/bounded_queue.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "weir/v1/admin.pb.h"

namespace weir {

/// One watcher's queue. Thread-safe.
class Subscription {
 public:
  static constexpr size_t kQueueMax = 512;

  Subscription(const v1::WatchRequest& request, std::function<void()> wake);

  bool Wants(const v1::Event& event) const;
  /// Adds events from before the watch began. Does not call `wake`.
  void Prefill(std::shared_ptr<const v1::Event> event);
  void Push(std::shared_ptr<const v1::Event> event);
  /// The next event, or nothing after `timeout` or once the hub has closed.
  std::shared_ptr<const v1::Event> Next(Duration timeout);
  std::shared_ptr<const v1::Event> TryNext();
  void Close();
  /// After this returns, `wake` is not running and never runs again.
  void Detach();
  bool closed() const { return closed_; }
  /// Events lost because this watcher was slow.
  uint64_t dropped() const { return dropped_; }

 private:
  const std::set<std::string> kinds_;
  const std::string job_;
  void Wake();

  Mutex wake_mutex_;
  std::function<void()> wake_ WEIR_GUARDED_BY(wake_mutex_);
  BoundedQueue<std::shared_ptr<const v1::Event>> queue_{kQueueMax};
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> dropped_{0};
};

/// Thread-safe.
class EventHub : public FleetWatcher {
 public:
  static constexpr size_t kWatchersMax = 64;
  static constexpr size_t kHistoryMax = 256;

  /// When this returns, the queue holds the kept events that match `request`: the newest
  /// kHistoryMax of all kinds but step and link. `wake` runs after every push, on the publisher's
  /// thread, and must not block or call the hub. kResourceExhausted: too many watchers;
  /// kUnavailable: closed; kInvalidArgument: an unknown kind.
  StatusOr<std::shared_ptr<Subscription>> Subscribe(const v1::WatchRequest& request,
                                                    std::function<void()> wake = {});
  void Unsubscribe(const std::shared_ptr<Subscription>& subscription);
  void Publish(v1::Event event);
  void OnEvent(const FleetEvent& event, double unix_s) override;
  void OnEvent(const JobEvent& event, double unix_s) override;
  /// Ends every watch.
  void Close();
  size_t watchers() const;

 private:
  mutable Mutex mutex_;
  std::list<std::shared_ptr<Subscription>> subscriptions_ WEIR_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<const v1::Event>> history_ WEIR_GUARDED_BY(mutex_);
  uint64_t last_id_ WEIR_GUARDED_BY(mutex_) = 0;
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
