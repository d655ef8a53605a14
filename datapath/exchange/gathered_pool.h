// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reuses gathered payloads between operations, for the same reason as base/scratch_pool.h: new
// vectors for every operation would need fresh pages for every operation.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "datapath/base/mutex.h"
#include "datapath/collective/operands.h"

namespace weir {

/// Thread-safe. Keeps at most `idle_max` returned lists, with the memory that they have.
class GatheredPool {
 public:
  explicit GatheredPool(size_t idle_max) : idle_max_(idle_max) {}

  /// A list of empty payloads, of any length.
  Gathered Take() WEIR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    idle_.reserve(idle_max_);
    if (idle_.empty()) return {};
    Gathered list = std::move(idle_.back());
    idle_.pop_back();
    return list;
  }

  /// Leaves `list` empty. It runs in destructors, so it allocates nothing: Take has reserved the
  /// room.
  void Return(Gathered& list) noexcept WEIR_EXCLUDES(mutex_) {
    Gathered returned = std::exchange(list, {});
    if (returned.empty()) return;
    for (std::vector<std::byte>& payload : returned) payload.clear();
    MutexLock lock(mutex_);
    if (idle_.size() < std::min(idle_max_, idle_.capacity())) idle_.push_back(std::move(returned));
  }

 private:
  const size_t idle_max_;
  Mutex mutex_;
  std::vector<Gathered> idle_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
