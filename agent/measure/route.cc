// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/route.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "agent/measure/udp_echo.h"

namespace weir::agent {
namespace {

constexpr size_t kPacketBytes = 40;

enum class Answer { kReached, kRouter, kUnreachable };
struct HopAnswer {
  Answer answer;
  std::string from;
  int error = 0;
};

class Prober {
 public:
  Prober(const SocketAddress& target, const RouteOptions& options, const Clock& clock,
         std::stop_token stop)
      : target_(target), options_(options), clock_(clock), stop_(std::move(stop)) {}

  StatusOr<Route> Run() {
    WEIR_RETURN_IF_ERROR(Open());
    Route route;
    const uint32_t hops_max = std::clamp<uint32_t>(options_.hops_max, 1, 64);
    for (uint32_t ttl = 1; ttl <= hops_max; ++ttl) {
      WEIR_ASSIGN_OR_RETURN(const std::optional<HopAnswer> answer, ProbeHop(ttl, &route));
      if (!answer) {
        route.routers.push_back("*");
        continue;
      }
      switch (answer->answer) {
        case Answer::kReached:
          route.hops = ttl;
          return route;
        case Answer::kRouter:
          route.routers.push_back(answer->from);
          break;
        case Answer::kUnreachable:
          return Unavailable(StrCat(target_.ToString(), " is unreachable, says ", answer->from,
                                    " at hop ", ttl, ": ", std::strerror(answer->error)));
      }
    }
    return DeadlineExceeded(StrCat(target_.ToString(), " not reached within ", hops_max, " hops"));
  }

 private:
  bool v6() const { return target_.family() == AF_INET6; }

  Status Open() {
    fd_ = FileDescriptor(socket(target_.family(), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_.valid()) return ErrnoStatus("socket", errno);
    const int on = 1;
    const int level = v6() ? IPPROTO_IPV6 : IPPROTO_IP;
    if (setsockopt(fd_.get(), level, v6() ? IPV6_RECVERR : IP_RECVERR, &on, sizeof on) != 0) {
      return FailedPrecondition(
          StrCat("hop count by error queue is not permitted here: ", std::strerror(errno)));
    }
    if (connect(fd_.get(), target_.get(), target_.size()) != 0) {
      return ErrnoStatus(StrCat("route to ", target_.ToString()), errno);
    }
    return OkStatus();
  }

  StatusOr<std::optional<HopAnswer>> ProbeHop(uint32_t ttl, Route* route) {
    const int value = static_cast<int>(ttl);
    const int level = v6() ? IPPROTO_IPV6 : IPPROTO_IP;
    if (setsockopt(fd_.get(), level, v6() ? IPV6_UNICAST_HOPS : IP_TTL, &value, sizeof value) !=
        0) {
      return FailedPrecondition(
          StrCat("setting the time to live is not permitted here: ", std::strerror(errno)));
    }
    for (uint32_t attempt = 0; attempt < std::max<uint32_t>(options_.attempts, 1); ++attempt) {
      if (stop_.stop_requested()) return Aborted("route probe stopped");
      const TimePoint now = clock_.Now();
      if (now >= options_.deadline) {
        return DeadlineExceeded(
            StrCat("route to ", target_.ToString(), ": at hop ", ttl, " when the time was up"));
      }
      const auto packet = MakeEchoRequest(options_.nonce, ttl, kPacketBytes);
      // The pending error of an earlier packet makes one send fail. Its content is read with the
      // answer below.
      ssize_t sent = send(fd_.get(), packet.data(), packet.size(), 0);
      if (sent < 0) sent = send(fd_.get(), packet.data(), packet.size(), 0);
      if (sent < 0 && errno == EPERM) {
        return FailedPrecondition("sending is not permitted here: a local firewall rejects it");
      }
      route->bytes_used += packet.size() + (v6() ? 48 : 28);
      WEIR_ASSIGN_OR_RETURN(std::optional<HopAnswer> answer,
                            Await(ttl, std::min(now + options_.hop_timeout, options_.deadline)));
      if (answer) return answer;
    }
    return std::optional<HopAnswer>();
  }

  StatusOr<std::optional<HopAnswer>> Await(uint32_t ttl, TimePoint until) {
    while (!stop_.stop_requested()) {
      const TimePoint now = clock_.Now();
      if (now >= until) break;
      pollfd ready{fd_.get(), POLLIN, 0};
      if (poll(&ready, 1, PollMilliseconds(now, until, 100)) <= 0) continue;
      if ((ready.revents & POLLERR) != 0) {
        const std::optional<HopAnswer> answer = ReadErrorQueue(ttl);
        if (answer) return answer;
      }
      std::array<std::byte, kEchoPacketBytesMax> packet;
      const ssize_t n = recv(fd_.get(), packet.data(), packet.size(), 0);
      uint64_t sequence = 0;
      if (n > 0 &&
          ParseEchoReply(std::span(packet).first(static_cast<size_t>(n)), options_.nonce,
                         &sequence) &&
          sequence == ttl) {
        return std::optional<HopAnswer>(HopAnswer{Answer::kReached, target_.ip()});
      }
    }
    return std::optional<HopAnswer>();
  }

  // Reads the next error about a packet of this hop, and skips late ones about earlier hops.
  std::optional<HopAnswer> ReadErrorQueue(uint32_t ttl) {
    while (true) {
      std::array<std::byte, kEchoPacketBytesMax> original;
      alignas(cmsghdr) std::array<char, 512> control;
      iovec io{original.data(), original.size()};
      msghdr message{};
      message.msg_iov = &io;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t n = recvmsg(fd_.get(), &message, MSG_ERRQUEUE);
      if (n < 0) return std::nullopt;
      uint64_t sequence = 0;
      if (n < static_cast<ssize_t>(kEchoPacketBytesMin)) continue;
      std::memcpy(&sequence, original.data() + 16, sizeof sequence);
      if (sequence != ttl) continue;
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        const std::optional<HopAnswer> answer = Interpret(*c);
        if (answer) return answer;
      }
    }
  }

  std::optional<HopAnswer> Interpret(const cmsghdr& header) const {
    const bool ours = (header.cmsg_level == IPPROTO_IP && header.cmsg_type == IP_RECVERR) ||
                      (header.cmsg_level == IPPROTO_IPV6 && header.cmsg_type == IPV6_RECVERR);
    if (!ours || header.cmsg_len < CMSG_LEN(sizeof(sock_extended_err) + sizeof(sockaddr_in))) {
      return std::nullopt;
    }
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(&header), sizeof error);
    const auto* offender = reinterpret_cast<const sockaddr*>(CMSG_DATA(&header) + sizeof error);
    const SocketAddress from(offender,
                             static_cast<socklen_t>(header.cmsg_len - CMSG_LEN(0) - sizeof error));
    HopAnswer answer{Answer::kUnreachable, from.ip(), static_cast<int>(error.ee_errno)};
    if (error.ee_origin == SO_EE_ORIGIN_ICMP) {
      if (error.ee_type == ICMP_TIME_EXCEEDED) answer.answer = Answer::kRouter;
      if (error.ee_type == ICMP_DEST_UNREACH && error.ee_code == ICMP_PORT_UNREACH) {
        answer.answer = Answer::kReached;
      }
    } else if (error.ee_origin == SO_EE_ORIGIN_ICMP6) {
      if (error.ee_type == ICMP6_TIME_EXCEEDED) answer.answer = Answer::kRouter;
      if (error.ee_type == ICMP6_DST_UNREACH && error.ee_code == ICMP6_DST_UNREACH_NOPORT) {
        answer.answer = Answer::kReached;
      }
    } else {
      answer.from = "this host";
    }
    return answer;
  }

  const SocketAddress& target_;
  const RouteOptions& options_;
  const Clock& clock_;
  std::stop_token stop_;
  FileDescriptor fd_;
};

}  // namespace

StatusOr<Route> MeasureRoute(const SocketAddress& target, const RouteOptions& options,
                             const Clock& clock, std::stop_token stop) {
  return Prober(target, options, clock, std::move(stop)).Run();
}

}  // namespace weir::agent
