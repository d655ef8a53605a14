// SPDX-License-Identifier: Apache-2.0
// Paces every TCP connection of a process: the demo's substitute for an emulated network where
// network namespaces are not permitted.
//
// Loaded with LD_PRELOAD into the training ranks, so that Gloo and Weir are treated alike. Each
// connection is limited by the kernel's own pacing (SO_MAX_PACING_RATE). The file that
// WEIR_PACE_FILE names contains the rate, in bytes per second as decimal text, and may change at
// any time; 0 or no file means unlimited. The limit applies per connection and direction, not per
// host.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace {

constexpr int kDescriptorsMax = 4096;
constexpr long kPollNanoseconds = 20 * 1000 * 1000;

// Never destroyed: the thread below runs until the process ends.
std::array<std::atomic<bool>, kDescriptorsMax>& Paced() {
  static auto* paced = new std::array<std::atomic<bool>, kDescriptorsMax>();
  return *paced;
}
std::atomic<uint64_t> current_rate{UINT64_MAX};

uint64_t ReadRate(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return UINT64_MAX;
  char text[32] = {};
  const ssize_t got = read(file, text, sizeof text - 1);
  ::close(file);
  const uint64_t rate = got > 0 ? strtoull(text, nullptr, 10) : 0;
  return rate == 0 ? UINT64_MAX : rate;
}

void Apply(int descriptor) {
  const uint64_t rate = current_rate.load();
  setsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

void Follow(const char* path) {
  for (;;) {
    const uint64_t rate = ReadRate(path);
    if (rate != current_rate.exchange(rate)) {
      for (int descriptor = 0; descriptor < kDescriptorsMax; ++descriptor) {
        if (Paced()[size_t(descriptor)]) Apply(descriptor);
      }
    }
    const timespec pause = {0, kPollNanoseconds};
    nanosleep(&pause, nullptr);
  }
}

// Paces `descriptor` if it is an IPv4 or IPv6 stream and WEIR_PACE_FILE is set.
void Pace(int descriptor) {
  static const char* const path = getenv("WEIR_PACE_FILE");
  if (path == nullptr || descriptor < 0 || descriptor >= kDescriptorsMax) return;
  int domain = 0, type = 0;
  socklen_t size = sizeof domain;
  if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return;
  size = sizeof type;
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return;
  if ((domain != AF_INET && domain != AF_INET6) || type != SOCK_STREAM) return;
  static std::once_flag once;
  std::call_once(once, [] {
    current_rate = ReadRate(path);
    // The thread is detached on purpose: it owns nothing, and the process has no point at which it
    // could be joined.
    std::thread(Follow, path).detach();
  });
  Paced()[size_t(descriptor)] = true;
  Apply(descriptor);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define WEIR_INTERPOSED extern "C" __attribute__((visibility("default")))

WEIR_INTERPOSED int connect(int descriptor, const sockaddr* address, socklen_t size) {
  static auto* const next = Next<decltype(connect)>("connect");
  const int result = next(descriptor, address, size);
  const int error = errno;
  if (result == 0 || error == EINPROGRESS) Pace(descriptor);
  errno = error;
  return result;
}

WEIR_INTERPOSED int accept(int listener, sockaddr* address, socklen_t* size) {
  static auto* const next = Next<decltype(accept)>("accept");
  const int result = next(listener, address, size);
  const int error = errno;
  if (result >= 0) Pace(result);
  errno = error;
  return result;
}

WEIR_INTERPOSED int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  static auto* const next = Next<decltype(accept4)>("accept4");
  const int result = next(listener, address, size, flags);
  const int error = errno;
  if (result >= 0) Pace(result);
  errno = error;
  return result;
}

WEIR_INTERPOSED int close(int descriptor) {
  static auto* const next = Next<decltype(close)>("close");
  if (descriptor >= 0 && descriptor < kDescriptorsMax) Paced()[size_t(descriptor)] = false;
  return next(descriptor);
}
