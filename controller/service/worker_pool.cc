#include "controller/service/worker_pool.h"

#include <pthread.h>

namespace weir {

WorkerPool::WorkerPool(int workers, size_t queue_max) : queue_(queue_max) {
  for (int i = 0; i < workers; ++i) {
    threads_.emplace_back([this] {
      while (auto task = queue_.Pop()) (*task)();
    });
    pthread_setname_np(threads_.back().native_handle(), "weir-http");
  }
}

WorkerPool::~WorkerPool() { shutdown(); }

void WorkerPool::enqueue(std::function<void()> task) {
  // Workers always finish (every request has a deadline), so room appears or the pool shuts down.
  queue_.Push(std::move(task), RealClock().Now() + std::chrono::minutes(1));
}

void WorkerPool::shutdown() {
  queue_.Close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace weir
