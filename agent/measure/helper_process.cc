// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/helper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace weir::agent {
namespace {

constexpr size_t kInputBytesMax = 4096;  // fits an empty pipe, so writing never blocks

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

// Both ends are close-on-exec and numbered 10 or more, so that moving them to 0..3 overwrites none.
StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  const FileDescriptor low_read(ends[0]);
  const FileDescriptor low_write(ends[1]);
  Pipe result{FileDescriptor(fcntl(ends[0], F_DUPFD_CLOEXEC, 10)),
              FileDescriptor(fcntl(ends[1], F_DUPFD_CLOEXEC, 10))};
  if (!result.read.valid() || !result.write.valid()) return ErrnoStatus("fcntl", errno);
  return result;
}

// posix_spawn with the descriptors placed and the signal state reset.
int SpawnWith(const HelperCommand& command, int input, int result, int error, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, error, 2);
  posix_spawn_file_actions_adddup2(&actions, result, 3);
  posix_spawn_file_actions_addclosefrom_np(&actions, 4);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A separate process group: a Ctrl-C at the terminal reaches the agent, which then ends the
  // helper.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP));
  std::vector<char*> argv{const_cast<char*>(command.program.c_str())};
  for (const std::string& argument : command.arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const int failed =
      posix_spawn(pid, command.program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed;
}

std::string DescribeEnd(int wait_status) {
  if (WIFEXITED(wait_status)) return StrCat("exited with ", WEXITSTATUS(wait_status));
  if (WIFSIGNALED(wait_status)) return StrCat("was ended by signal ", WTERMSIG(wait_status));
  return "ended";
}

}  // namespace

StatusOr<std::unique_ptr<HelperProcess>> HelperProcess::Spawn(const HelperCommand& command) {
  if (command.input.size() > kInputBytesMax) {
    return InvalidArgument(
        StrCat("helper input of ", command.input.size(), " bytes, at most ", kInputBytesMax));
  }
  WEIR_ASSIGN_OR_RETURN(Pipe input, MakePipe());
  WEIR_ASSIGN_OR_RETURN(Pipe result, MakePipe());
  WEIR_ASSIGN_OR_RETURN(Pipe error, MakePipe());
  pid_t pid = -1;
  const int failed =
      SpawnWith(command, input.read.get(), result.write.get(), error.write.get(), &pid);
  if (failed != 0) return ErrnoStatus(StrCat("start ", command.program), failed);
  std::unique_ptr<HelperProcess> helper(new HelperProcess(
      pid, std::move(input.write), std::move(result.read), std::move(error.read)));
  // This fails if the helper has ended already; Wait then reports how. SIGPIPE is not raised for a
  // pipe whose reading end this process still holds.
  (void)!write(helper->input_.get(), command.input.data(), command.input.size());
  return helper;
}

HelperProcess::HelperProcess(pid_t pid, FileDescriptor input, FileDescriptor result,
                             FileDescriptor error)
    : pid_(pid), input_(std::move(input)), result_(std::move(result)), error_(std::move(error)) {
  fcntl(result_.get(), F_SETFL, O_NONBLOCK);
  fcntl(error_.get(), F_SETFL, O_NONBLOCK);
}

HelperProcess::~HelperProcess() { KillAndReap(); }

int HelperProcess::KillAndReap() {
  int status = 0;
  if (pid_ < 0) return status;
  // The child is not reaped yet, so the id still refers to it.
  kill(pid_, SIGKILL);
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

// Returns false when the pipe has ended. Bytes beyond the bound are read and discarded.
bool HelperProcess::Drain(int fd, std::string* into, size_t bytes_max) {
  std::array<char, 16384> chunk;
  while (true) {
    const ssize_t n = read(fd, chunk.data(), chunk.size());
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    into->append(chunk.data(), std::min(static_cast<size_t>(n), bytes_max - into->size()));
  }
}

StatusOr<std::string> HelperProcess::Wait(TimePoint deadline, const Clock& clock,
                                          const std::stop_token& stop) {
  std::string result;
  std::string error;
  bool result_open = true;
  bool error_open = true;
  while (result_open) {
    if (stop.stop_requested()) {
      KillAndReap();
      return Aborted("probe stopped");
    }
    const TimePoint now = clock.Now();
    if (now >= deadline) {
      KillAndReap();
      return DeadlineExceeded("probe helper killed at its deadline");
    }
    pollfd fds[2] = {{result_.get(), POLLIN, 0}, {error_open ? error_.get() : -1, POLLIN, 0}};
    if (poll(fds, 2, PollMilliseconds(now, deadline, 50)) <= 0) continue;
    if (fds[1].revents != 0) error_open = Drain(error_.get(), &error, kHelperErrorBytesMax);
    if (fds[0].revents != 0) result_open = Drain(result_.get(), &result, kHelperOutputBytesMax);
    if (result.size() == kHelperOutputBytesMax) {
      KillAndReap();
      return ResourceExhausted(StrCat("probe helper wrote ", kHelperOutputBytesMax, " bytes"));
    }
  }
  // The result pipe is closed: the helper has ended or is about to.
  int status = 0;
  while (true) {
    const pid_t reaped = waitpid(pid_, &status, WNOHANG);
    if (reaped == pid_) {
      pid_ = -1;
      break;
    }
    if (clock.Now() >= deadline || stop.stop_requested()) {
      status = KillAndReap();
      break;
    }
    pollfd wait_for_exit{error_open ? error_.get() : -1, POLLIN, 0};
    if (poll(&wait_for_exit, 1, 5) > 0)
      error_open = Drain(error_.get(), &error, kHelperErrorBytesMax);
  }
  if (!result.empty()) return result;
  if (error_open) Drain(error_.get(), &error, kHelperErrorBytesMax);
  while (!error.empty() && (error.back() == '\n' || error.back() == ' ')) error.pop_back();
  return Internal(StrCat("probe helper ", DescribeEnd(status), " without a result",
                         error.empty() ? "" : ": ", error));
}

}  // namespace weir::agent
