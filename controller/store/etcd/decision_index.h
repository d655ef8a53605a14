// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which decisions a store holds, and which of them its limits delete.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "controller/store/store.h"

namespace weir {

/// Pure, not thread-safe. The rules are those of StoreLimits.
class DecisionIndex {
 public:
  struct Entry {
    bool switched = false;
    uint64_t bytes = 0;                  // payload and snapshot
    uint64_t snapshot_bytes = 0;         // of these; 0: it was deleted
    std::string base = {}, policy = {};  // names of shared texts; empty: none
  };
  struct Excess {
    struct One {
      std::string job;
      int64_t id = 0;
    };
    std::vector<One> decisions;  // to delete
    std::vector<One> inputs;     // snapshots to delete, of decisions that stay
  };

  void Add(const std::string& job, int64_t id, Entry entry) { jobs_[job][id] = std::move(entry); }
  void RemoveJob(const std::string& job) { jobs_.erase(job); }
  /// Null: there is no such decision.
  const Entry* Find(const std::string& job, int64_t id) const;

  /// Takes out what `job`, and then all jobs together, have beyond the limits, and returns it.
  /// O(decisions).
  Excess TakeExcess(const std::string& job, const StoreLimits& limits);
  /// The bytes of each job's decisions. O(decisions).
  std::map<std::string, uint64_t> Bytes() const;
  /// The shared texts that some decision still needs.
  std::set<std::string> Texts() const;

 private:
  std::map<std::string, std::map<int64_t, Entry>> jobs_;
};

}  // namespace weir
