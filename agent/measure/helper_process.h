// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a helper program with a hard deadline, so that its faults (hang, exit, crash) cannot affect
// the agent. The agent starts itself this way for each libiperf test. It spawns and never forks,
// because a fork of a process with gRPC's threads inherits locked mutexes.

#include <sys/types.h>

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

struct HelperCommand {
  std::string program;  // absolute path
  std::vector<std::string> arguments;
  std::string input;  // at most 4 KiB, passed on its standard input
};

inline constexpr size_t kHelperOutputBytesMax = 1u << 20;
inline constexpr size_t kHelperErrorBytesMax = 4096;

/// A child process. Its standard input is a pipe that closes when this process ends, its standard
/// output is discarded, and its result is what it writes to descriptor 3. Not thread-safe.
class HelperProcess {
 public:
  /// kUnavailable when the program cannot be started.
  static StatusOr<std::unique_ptr<HelperProcess>> Spawn(const HelperCommand& command);
  /// Kills the child by its process id and reaps it.
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  /// Waits until the helper ends and returns what it wrote to descriptor 3. kDeadlineExceeded: it
  /// was killed. kAborted: `stop` was requested, and it was killed. kResourceExhausted: it wrote
  /// more than 1 MiB and was killed. kInternal: it ended without a result; the message says how,
  /// with the end of its standard error.
  StatusOr<std::string> Wait(TimePoint deadline, const Clock& clock, const std::stop_token& stop);

  pid_t pid() const { return pid_; }

 private:
  HelperProcess(pid_t pid, FileDescriptor input, FileDescriptor result, FileDescriptor error);
  int KillAndReap();
  bool Drain(int fd, std::string* into, size_t bytes_max);

  pid_t pid_;
  FileDescriptor input_;
  FileDescriptor result_;
  FileDescriptor error_;
};

}  // namespace weir::agent
