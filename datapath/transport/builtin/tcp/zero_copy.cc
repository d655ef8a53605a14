// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/tcp/zero_copy.h"

#include <ctime>  // linux/errqueue.h needs it

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace weir::tcp {

ZeroCopy::ZeroCopy(int fd, size_t bytes_min) : fd_(fd), bytes_min_(bytes_min) {
  const int one = 1;
  on_ = bytes_min > 0 && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0;
}

void ZeroCopy::Wrote(size_t bytes, bool zero_copy) {
  if (zero_copy) {
    calls_.push_back({written_, false});
    ++issued_;
  }
  written_ += bytes;
}

size_t ZeroCopy::Retained() {
  while (!calls_.empty() && TakeReport()) {
  }
  return calls_.empty() ? 0 : static_cast<size_t>(written_ - calls_.front().begins);
}

// Reads one message of the error queue, which completes a range of calls. False when there is none.
bool ZeroCopy::TakeReport() {
  alignas(cmsghdr) char control[128];
  msghdr message = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return false;
  const uint32_t first = issued_ - static_cast<uint32_t>(calls_.size());  // wraps as the ids do
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    const bool report = (c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
                        (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR);
    if (!report) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(c), sizeof error);
    if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    // The kernel copied after all, as it does for every packet that stays on this host. Pinning the
    // pages was wasted effort and would be again, so this socket stops sending without a copy.
    if (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) on_ = false;
    const size_t begin = error.ee_info - first, count = error.ee_data - error.ee_info + size_t{1};
    for (size_t i = begin; i < calls_.size() && i - begin < count; ++i) calls_[i].over = true;
  }
  while (!calls_.empty() && calls_.front().over) calls_.pop_front();
  return true;
}

}  // namespace weir::tcp
