// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/socket.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

namespace weir::mesh {
namespace {

// The kernel gives up a silent host after 40 s when nothing is in flight, and a waiting rank sooner
// (Connection::CheckHost). TCP_USER_TIMEOUT is not set, because it also cuts a living peer whose
// window stays closed, such as a rank that writes a checkpoint while others already send.
constexpr int kKeepAliveIdleS = 10;
constexpr int kKeepAliveIntervalS = 5;
constexpr int kSilentS = 40;

template <typename T>
bool SetOption(int fd, int level, int name, const T& value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// The address has size 0 if the system does not return it.
SocketAddress AddressOf(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) address.size = 0;
  return address;
}

std::string EndpointOf(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  const SocketAddress address = AddressOf(fd, ask);
  return Endpoint(address.get(), address.size);
}

std::string AvailableCongestionControls() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string line;
  std::getline(file, line);
  return line.empty() ? "unknown" : line;
}

// Every kernel has this congestion control, and it does not pace. A connection that has paced once
// keeps pacing even under another control, so connections begin with this one.
constexpr std::string_view kReno = "reno";

bool SetCongestionControl(int fd, std::string_view name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size())) == 0;
}

// Empty if not known.
std::string CongestionControlOf(int fd) {
  char name[64] = {};
  socklen_t size = sizeof name - 1;
  const bool known = getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0;
  return known ? name : "";
}

// Sets the options that must be set before a connection exists. Accepted sockets inherit them.
Status SetCreationOptions(int fd, const TransportOptions& options) {
  const std::string& name = options.congestion_control;
  if (name.empty()) {
    SetCongestionControl(fd, kReno);
  } else if (!SetCongestionControl(fd, name)) {
    return InvalidArgument(StrCat("congestion control '", name, "': ", ErrorText(errno),
                                  "; available: ", AvailableCongestionControls()));
  }
  if (options.send_buffer_bytes > 0)
    SetOption(fd, SOL_SOCKET, SO_SNDBUF, options.send_buffer_bytes);
  if (options.receive_buffer_bytes > 0) {
    SetOption(fd, SOL_SOCKET, SO_RCVBUF, options.receive_buffer_bytes);
  }
  if (options.pacing_bytes_per_s > 0) {
    const uint64_t share = options.pacing_bytes_per_s / static_cast<uint64_t>(options.connections);
    if (!SetOption(fd, SOL_SOCKET, SO_MAX_PACING_RATE, std::max<uint64_t>(share, 1))) {
      return Unavailable(StrCat("cannot pace at ", share, " bytes/s: ", ErrorText(errno)));
    }
  }
  if (options.busy_poll > Duration(0)) {
    // The kernel polls the device's queue if it can. Waits poll in any case. A time above the
    // system's default needs a privilege, and an error does not matter.
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(options.busy_poll);
    SetOption(fd, SOL_SOCKET, SO_BUSY_POLL, static_cast<int>(std::min<int64_t>(us.count(), 1000)));
  }
  return OkStatus();
}

StatusOr<UniqueFd> NewSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) return fd;
  const int error = errno;
  const std::string why = StrCat("cannot create a socket: ", ErrorText(error));
  return error == EMFILE || error == ENFILE ? ResourceExhausted(why) : Unavailable(why);
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string ErrorText(int error) {
  std::string text = std::generic_category().message(error);
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  rlimit limit = {};
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += StrCat(" (this process may have ", limit.rlim_cur, ": ulimit -n)");
  }
  return text;
}

StatusOr<SocketAddress> ResolveAddress(const TransportAddress& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    return InvalidArgument(StrCat("address '", text, "': expected host:port or [ipv6]:port"));
  }
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  const bool digits = port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(port) > 65535) {
    return InvalidArgument(
        StrCat("address '", text, "': expected a port of 0..65535, found '", port, "'"));
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return InvalidArgument(
        StrCat("address '", text, "': cannot resolve host '", host, "': ", gai_strerror(error)));
  }
  SocketAddress address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

std::string Endpoint(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (size == 0 || getnameinfo(address, size, host, sizeof host, port, sizeof port,
                               NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return address->sa_family == AF_INET6 ? StrCat("[", host, "]:", port) : StrCat(host, ":", port);
}

std::string LocalEndpoint(int fd) { return EndpointOf(fd, getsockname); }
std::string RemoteEndpoint(int fd) { return EndpointOf(fd, getpeername); }

StatusOr<UniqueFd> Listen(const TransportOptions& options, int backlog, TransportAddress* bound) {
  WEIR_ASSIGN_OR_RETURN(const SocketAddress address, ResolveAddress(options.listen));
  WEIR_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address.storage.ss_family));
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  WEIR_RETURN_IF_ERROR(SetCreationOptions(fd.get(), options));
  if (bind(fd.get(), address.get(), address.size) != 0 || listen(fd.get(), backlog) != 0) {
    return Unavailable(StrCat("cannot listen on ", options.listen, ": ", ErrorText(errno)));
  }
  *bound = LocalEndpoint(fd.get());
  return fd;
}

StatusOr<UniqueFd> StartDial(const SocketAddress& address, const TransportOptions& options,
                             bool* in_progress) {
  WEIR_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address.storage.ss_family));
  WEIR_RETURN_IF_ERROR(SetCreationOptions(fd.get(), options));
  *in_progress = false;
  if (connect(fd.get(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS) return Unavailable(ErrorText(errno));
    *in_progress = true;
  }
  return fd;
}

// A socket that dials an address of its own host gets the same address as its local one.
bool StaysOnThisHost(int fd) {
  const SocketAddress own = AddressOf(fd, getsockname), peer = AddressOf(fd, getpeername);
  if (own.size == 0 || peer.size == 0) return false;
  if (own.storage.ss_family != peer.storage.ss_family) return false;
  if (own.storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(own.storage).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(peer.storage).sin_addr.s_addr;
  }
  return own.storage.ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(own.storage).sin6_addr,
                            &reinterpret_cast<const sockaddr_in6&>(peer.storage).sin6_addr);
}

bool IsLoopback(const SocketAddress& address) {
  if (address.size == 0) return false;
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  if (address.storage.ss_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

bool IsLoopback(int fd) {
  return IsLoopback(AddressOf(fd, getsockname)) && IsLoopback(AddressOf(fd, getpeername));
}

void ConfigureConnection(int fd, const TransportOptions& options) {
  // Between hosts a connection gets the system's control, which a new socket has, unless the route
  // named one.
  if (options.congestion_control.empty() && !StaysOnThisHost(fd) &&
      CongestionControlOf(fd) == kReno) {
    const auto fresh = NewSocket(AF_INET);
    if (fresh.ok()) SetCongestionControl(fd, CongestionControlOf(fresh->get()));
  }
  const Duration silence_min = options.host_silence_min;
  int every_s = kKeepAliveIdleS;
  if (silence_min > Duration(0)) {
    every_s = static_cast<int>(std::clamp(ToSeconds(silence_min) / 4, 1.0, 1.0 * kKeepAliveIdleS));
  }
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, every_s);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::min(every_s, kKeepAliveIntervalS));
  const int probes = (kSilentS - every_s) / std::min(every_s, kKeepAliveIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, probes);
}

bool IsSelfConnected(int fd) { return LocalEndpoint(fd) == RemoteEndpoint(fd); }

int TakeSocketError(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

int PollTimeout(Duration left) {
  constexpr Duration kOne = std::chrono::milliseconds(1), kMax = std::chrono::hours(1);
  return static_cast<int>((std::clamp(left, Duration(0), kMax) + kOne - Duration(1)) / kOne);
}

}  // namespace weir::mesh
