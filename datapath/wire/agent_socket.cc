// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/agent_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

namespace weir {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

Status BadAddress(std::string_view address) {
  return InvalidArgument(
      StrCat("agent address: expected 'unix:/path' or 'tcp:host:port' with a "
             "numeric host or 'localhost', found '",
             address, "'"));
}

StatusOr<Address> ParseUnix(const std::string& address, const std::string& path) {
  Address result;
  auto* un = reinterpret_cast<sockaddr_un*>(&result.storage);
  if (path.empty() || path.size() >= sizeof un->sun_path) return BadAddress(address);
  un->sun_family = AF_UNIX;
  std::memcpy(un->sun_path, path.data(), path.size());
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return result;
}

StatusOr<Address> ParseTcp(const std::string& address, const std::string& rest) {
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos) return BadAddress(address);
  const std::string service = rest.substr(colon + 1);
  uint16_t port = 0;  // getaddrinfo would take 65537 for 1
  const auto [end, error] = std::from_chars(service.data(), service.data() + service.size(), port);
  if (error != std::errc() || end != service.data() + service.size() || port == 0) {
    return BadAddress(address);
  }
  std::string host = rest.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "localhost") host = "127.0.0.1";
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;  // a name server could hold up Stop
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), service.c_str(), &hints, &found) != 0) {
    return BadAddress(address);
  }
  Address result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.size = found->ai_addrlen;
  freeaddrinfo(found);
  return result;
}

StatusOr<Address> ParseAddress(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return ParseUnix(address, address.substr(5));
  if (address.rfind("tcp:", 0) == 0) return ParseTcp(address, address.substr(4));
  return BadAddress(address);
}

int MillisecondsUntil(TimePoint end) {
  const Duration left = end - RealClock().Now();
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count()) + 1;
}

// Waits until the connection that `fd` began has succeeded, failed or taken too long; returns its
// errno, or 0.
int FinishConnecting(int fd, TimePoint end, int wake_fd, const std::atomic<bool>& stopping) {
  pollfd waits[2] = {{fd, POLLOUT, 0}, {wake_fd, POLLIN, 0}};
  while (!stopping.load() && waits[0].revents == 0 && RealClock().Now() < end) {
    poll(waits, 2, MillisecondsUntil(end));
    uint64_t count = 0;
    if (waits[1].revents != 0) (void)!read(wake_fd, &count, sizeof count);
  }
  int error = waits[0].revents == 0 ? ETIMEDOUT : 0;
  socklen_t size = sizeof error;
  if (error == 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

Status CheckAgentAddress(const std::string& address) { return ParseAddress(address).status(); }

StatusOr<int> ConnectToAgent(const std::string& address, Duration timeout, int wake_fd,
                             const std::atomic<bool>& stopping) {
  WEIR_ASSIGN_OR_RETURN(const Address target, ParseAddress(address));
  const int fd = socket(target.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unavailable(StrCat("socket: ", std::strerror(errno)));
  const int one = 1;
  if (target.storage.ss_family != AF_UNIX) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  int error = 0;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&target.storage), target.size) != 0) {
    error = errno == EINPROGRESS
                ? FinishConnecting(fd, RealClock().Now() + timeout, wake_fd, stopping)
                : errno;
  }
  if (error == 0) return fd;
  close(fd);
  return Unavailable(StrCat("connect: ", std::strerror(error)));
}

}  // namespace weir
