#include "datapath/base/program/stop_signal.h"

#include <pthread.h>
#include <signal.h>

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

}  // namespace

void HoldStopSignals() {
  signal(SIGPIPE, SIG_IGN);
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int WaitForStopSignal() {
  const sigset_t signals = StopSignals();
  int received = 0;
  sigwait(&signals, &received);
  return received;
}

int WaitForStopSignal(Duration patience) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(patience);
  const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(patience - seconds);
  const timespec timeout = {.tv_sec = seconds.count(), .tv_nsec = rest.count()};
  const sigset_t signals = StopSignals();
  const int received = sigtimedwait(&signals, nullptr, &timeout);
  return received > 0 ? received : 0;
}

}  // namespace weir
