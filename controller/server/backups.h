// SPDX-License-Identifier: Apache-2.0
#pragma once
// Backups for callers elsewhere: a copy of the state is made beside it, on a thread of its own, and
// handed out in parts.

#include <cstdint>
#include <string>
#include <thread>

#include "controller/store/store.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"

namespace weir {

struct BackupContents {
  bool ready = false;  // false: the copy is still being made
  uint64_t bytes = 0;  // of the whole copy
  std::string data;    // of the part
};

/// One copy at a time, in one file. Start and Read are called on the executor's thread.
class Backups {
 public:
  static constexpr size_t kPartBytesMax = 1u << 20;
  /// A copy that nobody has read for this long makes way for the next one.
  static constexpr Duration kAbandonedAfter = std::chrono::minutes(2);

  /// `path`: of the file for copies; what is there is removed. `store` and `clock` outlive this.
  Backups(const Store& store, std::string path, const Clock& clock = RealClock());
  /// Waits for the copy that is being made, and removes it.
  ~Backups();
  Backups(const Backups&) = delete;
  Backups& operator=(const Backups&) = delete;

  /// Begins a copy and returns its id. kFailedPrecondition: another one is being made or read.
  StatusOr<std::string> Start();
  /// kNotFound: there is no such copy, or not any more; the store's errors. The copy is removed
  /// when its end was read.
  StatusOr<BackupContents> Read(const std::string& id, uint64_t offset);

 private:
  void Remove();

  const Store& store_;
  const std::string path_;
  const Clock& clock_;
  std::string id_;  // empty: there is no copy
  TimePoint used_at_{};
  std::thread thread_;
  Mutex mutex_;
  bool done_ WEIR_GUARDED_BY(mutex_) = false;
  Status result_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
