// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tuner of one communicator: counts its calls, and changes NCCL's cost table where the table in
// use has a rule.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/nccl/plugin/agreement.h"
#include "datapath/nccl/plugin/table.h"

namespace weir::nccl::plugin {

struct TunerOptions {
  uint64_t communicator = 0;  // NCCL's id, equal on all ranks; 0: not known (version 4)
  uint32_t ranks = 1;
  uint32_t nodes = 1;
  std::string shared_directory = "/dev/shm";  // for the agreement; empty: never switches
  std::shared_ptr<const Table> first;         // in use from the first call on; not null
  // When the name of the shared file is removed even though not all ranks have opened it. NCCL
  // makes a communicator on all ranks together, so those that are missing then are on other
  // machines.
  Duration join_timeout = std::chrono::seconds(60);
};

struct TunerState {
  uint64_t communicator = 0;
  uint32_t ranks = 0, nodes = 0;
  uint64_t calls = 0;
  uint64_t steered = 0;  // calls whose choice a rule made
  uint64_t refused = 0;  // calls whose rule named a combination that NCCL does not offer
  uint64_t active = 0;   // identity of the table in use
  std::string obstacle;  // why another table cannot come into use; empty: none
};

/// Thread-safe. One per communicator and rank.
class Tuner {
 public:
  explicit Tuner(TunerOptions options);

  /// NCCL's question, see GetCollInfo in interface.h. Sets exactly one cell to 0 where a rule
  /// matches and its cell is available. Never fails and never waits for another rank.
  void Choose(int function, size_t bytes, int pipelined_operations, float* cost_table,
              int algorithms, int protocols, int* channels);
  /// NCCL's question for the chunk size of a call for which Choose was asked before.
  void ChooseChunk(int function, size_t bytes, int algorithm, int protocol, size_t* chunk_bytes);

  /// States which table is wanted next. It comes into use at the call on which all ranks agree.
  void Want(std::shared_ptr<const Table> table);
  /// To be called a few times a second: drives the agreement.
  void Tick();

  TunerState State() const;

 private:
  const TunerOptions options_;
  const TimePoint made_ = RealClock().Now();
  mutable Mutex mutex_;
  std::string obstacle_ WEIR_GUARDED_BY(mutex_);  // permanent
  // The participant is destroyed before the memory it uses.
  std::unique_ptr<SharedRegister> shared_ WEIR_GUARDED_BY(mutex_);
  std::unique_ptr<Participant> participant_ WEIR_GUARDED_BY(mutex_);
  std::shared_ptr<const Table> active_ WEIR_GUARDED_BY(mutex_);
  std::shared_ptr<const Table> accepted_ WEIR_GUARDED_BY(mutex_);  // null: none
  std::shared_ptr<const Table> wanted_ WEIR_GUARDED_BY(mutex_);    // null: none
  uint64_t calls_ WEIR_GUARDED_BY(mutex_) = 0;
  uint64_t steered_ WEIR_GUARDED_BY(mutex_) = 0;
  uint64_t refused_ WEIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir::nccl::plugin
