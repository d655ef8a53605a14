// SPDX-License-Identifier: Apache-2.0
// linux/tcp.h instead of netinet/tcp.h: the C library's tcp_info ends before delivery_rate.
#include "datapath/transport/builtin/tcp/socket_stream.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "datapath/transport/builtin/tcp/striped_stream.h"

namespace weir::tcp {
namespace {
using mesh::ByteStream;
using mesh::UniqueFd;

// TCP_INFO as a sample.
PathSample ReadPathSample(int fd, int peer) {
  PathSample sample;
  sample.peer = peer;
  sample.medium = "tcp";
  tcp_info info = {};  // an older kernel fills less: the rest stays zero, unknown
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return sample;
  constexpr double kMicrosecond = 1e-6;
  sample.rtt_s = info.tcpi_rtt * kMicrosecond;
  sample.rtt_deviation_s = info.tcpi_rttvar * kMicrosecond;
  if (info.tcpi_min_rtt != ~0u) sample.rtt_min_s = info.tcpi_min_rtt * kMicrosecond;
  sample.delivery_rate_bytes_per_s = static_cast<double>(info.tcpi_delivery_rate);
  // A rate that was never measured counts as limited by the application: it says nothing.
  sample.application_limited =
      info.tcpi_delivery_rate_app_limited != 0 || info.tcpi_delivery_rate == 0;
  sample.bytes_acked = info.tcpi_bytes_acked;
  sample.bytes_received = info.tcpi_bytes_received;
  sample.busy_s = static_cast<double>(info.tcpi_busy_time) * kMicrosecond;
  sample.receive_window_limited_s = static_cast<double>(info.tcpi_rwnd_limited) * kMicrosecond;
  sample.send_buffer_limited_s = static_cast<double>(info.tcpi_sndbuf_limited) * kMicrosecond;
  sample.congestion_window_bytes = info.tcpi_snd_cwnd * info.tcpi_snd_mss;
  sample.retransmits = info.tcpi_total_retrans;
  return sample;
}

template <typename Call>
ssize_t Result(Call call) {
  ssize_t n;
  do {
    n = call();
  } while (n < 0 && errno == EINTR);
  if (n >= 0) return n;
  return errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

}  // namespace

SocketStream::SocketStream(UniqueFd socket, size_t zero_copy_bytes_min)
    : socket_(std::move(socket)),
      within_host_(mesh::StaysOnThisHost(socket_.get())),
      loopback_(mesh::IsLoopback(socket_.get())),
      zero_copy_(socket_.get(), zero_copy_bytes_min) {
  const int on = 1;
  stamped_ =
      !within_host_ && setsockopt(socket_.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) == 0;
}

ssize_t SocketStream::Write(std::span<const iovec> parts) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts.data());  // only read
  message.msg_iovlen = parts.size();
  const auto send = [&](int flags) {
    return Result(
        [&] { return sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT | flags); });
  };
  bool zero_copy = std::any_of(parts.begin(), parts.end(), [this](const iovec& part) {
    return zero_copy_.Wants(part.iov_len);
  });
  ssize_t n = zero_copy ? send(MSG_ZEROCOPY) : send(0);
  if (zero_copy && n == -ENOBUFS) {  // too much memory is pinned, or too many reports wait
    zero_copy = false;
    n = send(0);
  }
  if (n > 0) zero_copy_.Wrote(static_cast<size_t>(n), zero_copy);
  return n;
}

// The kernel stamps each packet when it comes from the device, so what a busy reader reads late is
// not late. The stamp is that of the last byte that a call returns.
ssize_t SocketStream::ReadStamped(std::span<const iovec> parts) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(timespec))> control;
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts.data());  // only read
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = Result([&] { return recvmsg(socket_.get(), &message, MSG_DONTWAIT); });
  arrived_s_ = 0;
  if (n <= 0) return n;
  for (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(c))) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec at = {};
    std::memcpy(&at, CMSG_DATA(c), sizeof at);
    arrived_s_ = static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
  }
  return n;
}

ssize_t SocketStream::Read(std::span<const iovec> parts) {
  if (stamped_) return ReadStamped(parts);
  if (parts.size() == 1) {  // recv has less to set up, which matters for small frames
    return Result(
        [&] { return recv(socket_.get(), parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT); });
  }
  return Result([&] { return readv(socket_.get(), parts.data(), static_cast<int>(parts.size())); });
}

void SocketStream::CloseWrite() { shutdown(socket_.get(), SHUT_WR); }

// After an ordinary close the kernel goes on sending what is queued, from the memory that it was
// given in. A reset drops the queue.
void SocketStream::Cut() {
  if (zero_copy_.Retained() == 0) return;
  const linger reset = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

// A long payload arrives from another host in many packets, and each would wake this rank, which
// costs about as much as copying it; so the kernel reports only larger parts. Not within a host,
// where the sender's copy and this one should overlap, nor for a short rest, which comes in one
// packet anyway.
void SocketStream::Expect(size_t bytes) {
  constexpr size_t kShort = 16 << 10, kMost = 256 << 10;
  if (within_host_) return;
  const size_t low_water = bytes < kShort ? 1 : std::min(bytes, kMost);
  if (low_water == low_water_) return;
  const int value = static_cast<int>(low_water);
  if (setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value) == 0) {
    low_water_ = low_water;
  }
}

Status SocketStream::Register(mesh::EventSet& events, uint32_t index) {
  return events.Add(socket_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, index);
}

// EPOLLERR alone means a report for zero_copy_; a connection that is cut also has EPOLLHUP.
uint32_t SocketStream::OnEvents(uint32_t events) {
  if (!zero_copy_.used() || !(events & EPOLLERR) || (events & EPOLLHUP)) return events;
  return (events & ~uint32_t{EPOLLERR}) | EPOLLIN;
}

// Data (sent or retransmitted), a keepalive or a probe of a closed window asks the peer's host for
// an acknowledgement, and any later acknowledgement answers it. While a living peer keeps its
// window closed, these requests are minutes apart, so silence between them says nothing. A single
// unanswered probe says nothing either, because kernels answer at most two probes of a closed
// window a second.
SocketStream::Silence SocketStream::HostSilence() const {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  constexpr int kQuestionsMin = 2;
  const bool asked = info.tcpi_probes >= kQuestionsMin ||
                     (info.tcpi_unacked > 0 && info.tcpi_retransmits >= kQuestionsMin &&
                      info.tcpi_last_data_sent < info.tcpi_last_ack_recv);
  if (!asked) return {};
  const uint32_t lasts_ms = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
  return {std::chrono::milliseconds(lasts_ms),
          std::chrono::microseconds(uint64_t{info.tcpi_rtt} + 4 * uint64_t{info.tcpi_rttvar})};
}

PathSample SocketStream::Sample(int peer) const { return ReadPathSample(socket_.get(), peer); }

std::unique_ptr<ByteStream> MakeStream(mesh::Sockets sockets, const TransportOptions& options) {
  const bool one = sockets.size() == 1;
  const size_t bytes_min = options.zero_copy_bytes_min;
  std::vector<std::unique_ptr<SocketStream>> lanes;
  for (UniqueFd& socket : sockets) {
    lanes.push_back(std::make_unique<SocketStream>(
        std::move(socket), one ? bytes_min : std::min(bytes_min, StripedStream::kPieceBytes)));
  }
  if (one) return std::move(lanes.front());
  return std::make_unique<StripedStream>(std::move(lanes));
}

}  // namespace weir::tcp
