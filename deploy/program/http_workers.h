// SPDX-License-Identifier: Apache-2.0
#pragma once
// The threads of a program's HTTP server, with a bounded queue of connections. While it is full,
// the server accepts no more of them, and the kernel's backlog bounds the rest. Header-only, so
// that only programs with such a server need cpp-httplib.

#include <httplib.h>
#include <pthread.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "datapath/base/bounded_queue.h"

namespace weir {

class HttpWorkers : public httplib::TaskQueue {
 public:
  HttpWorkers(int workers, size_t queue_max) : queue_(queue_max) {
    for (int i = 0; i < workers; ++i) {
      threads_.emplace_back([this] {
        while (auto task = queue_.Pop()) (*task)();
      });
      pthread_setname_np(threads_.back().native_handle(), "weir-http");
    }
  }
  ~HttpWorkers() override { shutdown(); }

  /// The result is void up to cpp-httplib 0.11; later versions return whether the task was
  /// accepted.
  using Accepted = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

  /// Waits while the queue is full. After shutdown the task is dropped.
  Accepted enqueue(std::function<void()> task) override {
    // Every request has a deadline, so a worker becomes free well before this one expires.
    return static_cast<Accepted>(
        queue_.Push(std::move(task), RealClock().Now() + std::chrono::minutes(1)));
  }

  void shutdown() override {
    queue_.Close();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace weir
