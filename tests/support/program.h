// SPDX-License-Identifier: Apache-2.0
#pragma once
// Programs that a test starts, whose output it reads, and which it ends.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "datapath/base/clock.h"

namespace weir {

inline constexpr double kPatienceS = 20;

/// A started program whose output is read with a deadline; it ends with this object.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments) {
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.data()));
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Program() {
    if (pid_ > 0 && !code_) {
      kill(pid_, SIGTERM);
      Wait();
    }
    close(out_);
    close(err_);
  }

  /// Reads both streams until `done` returns true or both end. Returns false when the time has
  /// passed.
  template <typename Done>
  bool ReadUntil(Done done) {
    const TimePoint deadline = RealClock().Now() + FromSeconds(kPatienceS);
    bool open[2] = {true, true};
    while (!done() && (open[0] || open[1])) {
      pollfd ready[2] = {{open[0] ? out_ : -1, POLLIN, 0}, {open[1] ? err_ : -1, POLLIN, 0}};
      const double left_s = ToSeconds(deadline - RealClock().Now());
      if (left_s <= 0 || poll(ready, 2, 100) < 0) return false;
      for (int i = 0; i < 2; ++i) {
        if (ready[i].revents == 0) continue;
        char chunk[4096];
        const ssize_t n = read(ready[i].fd, chunk, sizeof chunk);
        if (n <= 0) open[i] = false;
        if (n > 0) (i == 0 ? output : error).append(chunk, static_cast<size_t>(n));
      }
    }
    return done();
  }
  int Wait() {
    if (!code_) {
      int status = 0;
      waitpid(pid_, &status, 0);
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return *code_;
  }
  void Signal(int number) { kill(pid_, number); }

  std::string output, error;

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  std::optional<int> code_;
};

}  // namespace weir
