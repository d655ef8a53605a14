#pragma once
// Threads for the HTTP server with a bounded queue: when it is full, accepting waits, and the
// kernel's backlog bounds the rest.

#include <httplib.h>

#include <functional>
#include <thread>
#include <vector>

#include "datapath/base/bounded_queue.h"

namespace weir {

class WorkerPool : public httplib::TaskQueue {
 public:
  WorkerPool(int workers, size_t queue_max);
  ~WorkerPool() override;

  /// Waits while the queue is full. After shutdown the task is dropped.
  void enqueue(std::function<void()> task) override;
  void shutdown() override;

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace weir
