// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/tcp_connect_rtt.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace weir::agent {
namespace {

// Waits until the handshake ends. Returns 0 or the error number, which is ETIMEDOUT at the
// deadline.
int FinishConnect(int fd, TimePoint deadline, const Clock& clock, const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd ready{fd, POLLOUT, 0};
    const TimePoint now = clock.Now();
    if (now >= deadline) return ETIMEDOUT;
    if (poll(&ready, 1, PollMilliseconds(now, deadline, 100)) <= 0) continue;
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
    return error;
  }
  return ECANCELED;
}

}  // namespace

StatusOr<RttSummary> MeasureTcpConnect(const SocketAddress& target,
                                       const TcpConnectOptions& options, const Clock& clock,
                                       std::stop_token stop) {
  const uint32_t count = std::clamp<uint32_t>(options.count, 1, 64);
  std::vector<double> rtts;
  int last_error = 0;
  for (uint32_t i = 0; i < count && !stop.stop_requested(); ++i) {
    FileDescriptor fd(socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return ErrnoStatus("socket", errno);
    // A reset leaves no TIME_WAIT entries behind.
    const linger reset{1, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    const TimePoint start = clock.Now();
    int error = connect(fd.get(), target.get(), target.size()) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = FinishConnect(fd.get(), start + options.timeout, clock, stop);
    if (error == 0 || error == ECONNREFUSED) {
      rtts.push_back(ToSeconds(clock.Now() - start));
    } else {
      last_error = error;
    }
  }
  if (stop.stop_requested()) return Aborted("latency probe stopped");
  if (!rtts.empty()) return SummarizeRtts(rtts, count);
  if (last_error == ETIMEDOUT) {
    return DeadlineExceeded(StrCat("no answer to ", count, " tcp connects to ", target.ToString(),
                                   " within ", ToSeconds(options.timeout), " s each"));
  }
  return ErrnoStatus(StrCat("connect to ", target.ToString()), last_error);
}

}  // namespace weir::agent
