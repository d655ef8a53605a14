// linux/tcp.h instead of netinet/tcp.h: the C library's tcp_info ends before delivery_rate.
#include "datapath/transport/builtin/tcp/socket.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

namespace weir::tcp {
namespace {

// A silent host is declared dead after 10 + 6 * 5 s when nothing is in flight; when something is,
// the operation's deadline names it first. TCP_USER_TIMEOUT is left alone: it also cuts a living
// peer whose window stays closed, such as a rank that writes a checkpoint while others already
// send.
constexpr int kKeepAliveIdleS = 10;
constexpr int kKeepAliveIntervalS = 5;
constexpr int kKeepAliveProbes = 6;

template <typename T>
bool SetOption(int fd, int level, int name, const T& value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

std::string Endpoint(const sockaddr_storage& storage, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (size == 0 || getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof host,
                               port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return storage.ss_family == AF_INET6 ? StrCat("[", host, "]:", port) : StrCat(host, ":", port);
}

std::string AvailableCongestionControls() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string line;
  std::getline(file, line);
  return line.empty() ? "unknown" : line;
}

// Everything that must be set before a connection exists: accepted sockets inherit it.
Status SetCreationOptions(int fd, const TransportOptions& options) {
  const std::string& name = options.congestion_control;
  if (!name.empty() && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                                  static_cast<socklen_t>(name.size())) != 0) {
    return InvalidArgument(StrCat("congestion control '", name, "': ", ErrorText(errno),
                                  "; available: ", AvailableCongestionControls()));
  }
  if (options.send_buffer_bytes > 0)
    SetOption(fd, SOL_SOCKET, SO_SNDBUF, options.send_buffer_bytes);
  if (options.receive_buffer_bytes > 0) {
    SetOption(fd, SOL_SOCKET, SO_RCVBUF, options.receive_buffer_bytes);
  }
  return OkStatus();
}

StatusOr<UniqueFd> NewSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Unavailable(StrCat("cannot create a socket: ", ErrorText(errno)));
  return fd;
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string ErrorText(int error) {
  std::string text = std::generic_category().message(error);
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
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

std::string LocalEndpoint(int fd) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) size = 0;
  return Endpoint(storage, size);
}

std::string RemoteEndpoint(int fd) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) size = 0;
  return Endpoint(storage, size);
}

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

void ConfigureConnection(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
}

bool IsSelfConnected(int fd) { return LocalEndpoint(fd) == RemoteEndpoint(fd); }

int TakeSocketError(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

PathSample ReadPathSample(int fd, int peer) {
  PathSample sample;
  sample.peer = peer;
  tcp_info info = {};  // an older kernel fills less: the rest stays zero, unknown
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return sample;
  constexpr double kMicrosecond = 1e-6;
  sample.rtt_s = info.tcpi_rtt * kMicrosecond;
  sample.rtt_deviation_s = info.tcpi_rttvar * kMicrosecond;
  if (info.tcpi_min_rtt != ~0u) sample.rtt_min_s = info.tcpi_min_rtt * kMicrosecond;
  sample.delivery_rate_bytes_per_s = static_cast<double>(info.tcpi_delivery_rate);
  // Never measured counts as limited by us, too: such a rate says nothing.
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

}  // namespace weir::tcp
