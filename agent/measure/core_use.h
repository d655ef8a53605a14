// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long the threads of a process wait for a core of their host, from the kernel's own accounts.
// A rank whose threads wait computes, encodes and sends late, which must not be taken for a slow
// network.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "datapath/base/clock.h"

namespace weir::agent {

/// Shares between two looks, each from 0 to 1.
struct CoreUse {
  // The process's threads waited for a core, over the time in which they could run. Waiting for
  // the quota of a control group counts.
  double wait_ratio = 0;
  // The thread of libweir that waited longest did so, over the time that passed.
  double datapath_wait_ratio = 0;
  // The hypervisor gave to others, over the time of the host's cores.
  double steal_ratio = 0;
  // Some thread of the host waited for a core, over the time that passed; 0 if the kernel does not
  // account for that.
  double pressure_ratio = 0;
};

/// Reads /proc/PID/task/*/schedstat, /proc/stat and /proc/pressure/cpu. Not thread-safe.
class CoreUseMeter {
 public:
  /// `proc`: where procfs is mounted.
  explicit CoreUseMeter(std::string proc = "/proc") : proc_(std::move(proc)) {}

  /// The shares since the look before, or the same as last time if that was less than
  /// kLookInterval ago or looks would take more than one part in kDuty of the time. Nothing at the
  /// first look at a process, and if the kernel does not account for waiting threads or hides the
  /// process. pid 0: a process that cannot be seen, as in another process namespace, of which the
  /// shares of the host are known. O(threads of the process), of which at most kThreadsMax are
  /// read.
  std::optional<CoreUse> Look(pid_t pid, TimePoint now);
  /// Drops what is known of a process that ended.
  void Forget(pid_t pid) { processes_.erase(pid); }

  static constexpr Duration kLookInterval = std::chrono::milliseconds(250);
  static constexpr int kDuty = 100;
  static constexpr size_t kThreadsMax = 1024;
  static constexpr size_t kProcessesMax = 256;

 private:
  /// Sums of one thread since it began.
  struct Thread {
    double ran_s = 0, waited_s = 0;
    bool datapath = false;
  };
  using Threads = std::map<pid_t, Thread>;
  /// Sums of the host since it booted; units are the kernel's ticks but for `pressure_s`.
  struct Host {
    double ticks = 0, stolen_ticks = 0, pressure_s = 0;
  };
  struct Process {
    Threads threads;
    Host host;
    std::optional<TimePoint> looked_at;  // empty: nothing to compare with
    TimePoint next_look{};
    std::optional<CoreUse> newest;
  };
  std::optional<Threads> ReadThreads(pid_t pid, const Threads& known) const;
  Host ReadHost() const;

  const std::string proc_;
  std::map<pid_t, Process> processes_;
};

}  // namespace weir::agent
