// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/stop_signal.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <chrono>

namespace weir {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

std::atomic<pthread_t> holder;
static_assert(std::atomic<pthread_t>::is_always_lock_free, "a signal handler reads it");

// Runs in a thread that a library started before main, as OpenBLAS does when it is loaded. Such a
// thread does not block the signal, whose default action ends the process. This handler passes it
// to the thread that waits.
void PassToHolder(int number) {
  const int before = errno;
  pthread_kill(holder.load(), number);
  errno = before;
}

}  // namespace

void HoldStopSignals() {
  signal(SIGPIPE, SIG_IGN);
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  holder = pthread_self();
  struct sigaction pass = {};
  pass.sa_handler = PassToHolder;
  pass.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &pass, nullptr);
}

int WaitForStopSignal() {
  const sigset_t signals = StopSignals();
  int received = 0;
  sigwait(&signals, &received);
  return received;
}

int WaitForStopSignal(Duration wait_max) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(wait_max);
  const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(wait_max - seconds);
  const timespec timeout = {.tv_sec = seconds.count(), .tv_nsec = rest.count()};
  const sigset_t signals = StopSignals();
  const int received = sigtimedwait(&signals, nullptr, &timeout);
  return received > 0 ? received : 0;
}

}  // namespace weir
