// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/stop_signal.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>

#include "deploy/program/log_flags.h"

namespace weir {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

sigset_t HeldSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : kSignals) sigaddset(&signals, number);
  return signals;
}

bool ChangesLevel(int number) { return number == SIGUSR1 || number == SIGUSR2; }

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
  const sigset_t signals = HeldSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  holder = pthread_self();
  struct sigaction pass = {};
  pass.sa_handler = PassToHolder;
  pass.sa_flags = SA_RESTART;
  for (const int number : kSignals) sigaction(number, &pass, nullptr);
}

int WaitForStopSignal() {
  const sigset_t signals = HeldSignals();
  while (true) {
    int received = 0;
    sigwait(&signals, &received);
    if (!ChangesLevel(received)) return received;
    ChangeLogLevelBySignal(received);
  }
}

int WaitForStopSignal(Duration wait_max) {
  const sigset_t signals = HeldSignals();
  const TimePoint end = RealClock().Now() + wait_max;
  while (true) {
    const Duration left = std::max(end - RealClock().Now(), Duration(0));
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds);
    const timespec timeout = {.tv_sec = seconds.count(), .tv_nsec = rest.count()};
    const int received = sigtimedwait(&signals, nullptr, &timeout);
    if (received <= 0) return 0;
    if (!ChangesLevel(received)) return received;
    ChangeLogLevelBySignal(received);
  }
}

}  // namespace weir
