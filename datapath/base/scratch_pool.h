// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reuses large buffers between operations. Every step needs the same few sizes, and fresh pages
// cost more than encoding.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "datapath/base/mutex.h"

namespace weir {

class ScratchPool;

/// A buffer taken from a pool. It returns to the pool when destroyed. Movable. Its content is
/// unspecified at first.
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ScratchBuffer(ScratchBuffer&& other) noexcept { *this = std::move(other); }
  ScratchBuffer& operator=(ScratchBuffer&& other) noexcept;
  ~ScratchBuffer() { Release(); }

  std::span<std::byte> bytes() { return {data_, size_}; }
  /// The first `count` floats. The buffer must have been taken with at least that size.
  std::span<float> floats(size_t count) { return {reinterpret_cast<float*>(data_), count}; }
  bool empty() const { return data_ == nullptr; }
  void Release();

 private:
  friend class ScratchPool;
  ScratchBuffer(ScratchPool* pool, std::byte* data, size_t size, size_t capacity)
      : pool_(pool), data_(data), size_(size), capacity_(capacity) {}
  ScratchPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

/// The source of a pool's memory, for memory of another kind than the host's. Thread-safe.
struct ScratchMemory {
  std::function<std::byte*(size_t)> allocate;  // throws std::bad_alloc; aligned to 64
  std::function<void(std::byte*)> free;        // throws nothing
};

/// Thread-safe. Keeps at most `idle_max` returned buffers and drops the smallest beyond that; of
/// those it keeps at most `idle_bytes_max` bytes and drops the ones that were returned longest ago.
/// It must outlive its buffers.
class ScratchPool {
 public:
  explicit ScratchPool(size_t idle_max, size_t idle_bytes_max = SIZE_MAX,
                       ScratchMemory memory = HostMemory())
      : idle_max_(idle_max), idle_bytes_max_(idle_bytes_max), memory_(std::move(memory)) {}
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  /// A buffer of `size` bytes, aligned to 64: the smallest idle one that fits and is at most twice
  /// as large, or else fresh memory. Throws std::bad_alloc where there is none.
  ScratchBuffer Take(size_t size) WEIR_EXCLUDES(mutex_);

 private:
  friend class ScratchBuffer;
  static ScratchMemory HostMemory();
  struct Idle {
    std::byte* data;
    size_t capacity;
  };
  void Return(std::byte* data, size_t capacity) noexcept WEIR_EXCLUDES(mutex_);

  const size_t idle_max_, idle_bytes_max_;
  const ScratchMemory memory_;
  Mutex mutex_;
  std::vector<Idle> idle_ WEIR_GUARDED_BY(mutex_);  // in the order of their return
  size_t idle_bytes_ WEIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir
