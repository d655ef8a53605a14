// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/scratch_pool.h"

#include <algorithm>

namespace weir {
namespace {
constexpr std::align_val_t kAlignment{64};
constexpr size_t kGranule = 4096;
}  // namespace

ScratchBuffer& ScratchBuffer::operator=(ScratchBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
  }
  return *this;
}

void ScratchBuffer::Release() {
  if (pool_ != nullptr) pool_->Return(data_, capacity_);
  pool_ = nullptr;
  data_ = nullptr;
  size_ = capacity_ = 0;
}

ScratchMemory ScratchPool::HostMemory() {
  return {.allocate =
              [](size_t size) { return static_cast<std::byte*>(::operator new(size, kAlignment)); },
          .free = [](std::byte* data) { ::operator delete(data, kAlignment); }};
}

ScratchPool::~ScratchPool() {
  for (const Idle& idle : idle_) memory_.free(idle.data);
}

ScratchBuffer ScratchPool::Take(size_t size) {
  const size_t wanted = (std::max<size_t>(size, 1) + kGranule - 1) / kGranule * kGranule;
  {
    MutexLock lock(mutex_);
    idle_.reserve(idle_max_ + 1);  // so that Return need not allocate
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (it->capacity < wanted || it->capacity > 2 * wanted) continue;
      if (best == idle_.end() || it->capacity < best->capacity) best = it;
    }
    if (best != idle_.end()) {
      const Idle idle = *best;
      idle_.erase(best);
      idle_bytes_ -= idle.capacity;
      return ScratchBuffer(this, idle.data, size, idle.capacity);
    }
  }
  return ScratchBuffer(this, memory_.allocate(wanted), size, wanted);
}

// Runs in destructors, possibly while an exception for lack of memory propagates, so it allocates
// nothing. Buffers are freed under the lock, which happens only until the pool has reached a steady
// state.
void ScratchPool::Return(std::byte* data, size_t capacity) noexcept {
  MutexLock lock(mutex_);
  idle_.push_back({data, capacity});
  idle_bytes_ += capacity;
  const auto give_up = [&](std::vector<Idle>::iterator idle) WEIR_REQUIRES(mutex_) {
    memory_.free(idle->data);
    idle_bytes_ -= idle->capacity;
    idle_.erase(idle);
  };
  if (idle_.size() > idle_max_) {
    give_up(std::min_element(idle_.begin(), idle_.end(),
                             [](const Idle& a, const Idle& b) { return a.capacity < b.capacity; }));
  }
  while (idle_bytes_ > idle_bytes_max_) give_up(idle_.begin());
}

}  // namespace weir
