#pragma once
// What a mesh needs of the socket interface: owned descriptors, addresses and options, each with
// errors that name the address and the cause.

#include <sys/socket.h>

#include <string>
#include <utility>

#include "datapath/transport/transport.h"

namespace weir::mesh {

/// Owns a file descriptor; -1 is none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Parses "host:port" or "[ipv6]:port". A host name is resolved by the system's resolver, which
/// waits as long as resolv.conf says; numeric addresses never wait. kInvalidArgument: malformed or
/// unknown.
StatusOr<SocketAddress> ResolveAddress(const TransportAddress& text);

/// "10.0.0.3:40000" or "[fd00::1]:40000"; "unknown" when `size` is 0 or it is neither.
std::string Endpoint(const sockaddr* address, socklen_t size);
/// That of the socket's own or the peer's end; "unknown" when the socket has none.
std::string LocalEndpoint(int fd);
std::string RemoteEndpoint(int fd);

/// A non-blocking listening socket; *bound is its address. kInvalidArgument: bad address or unknown
/// congestion control (available ones are listed); kUnavailable: cannot bind; kResourceExhausted:
/// no descriptor is left.
StatusOr<UniqueFd> Listen(const TransportOptions& options, int backlog, TransportAddress* bound);

/// A non-blocking socket whose connection to `address` was started. *in_progress: it is not yet
/// made. kUnavailable: refused or unreachable; kResourceExhausted: no descriptor is left.
StatusOr<UniqueFd> StartDial(const SocketAddress& address, const TransportOptions& options,
                             bool* in_progress);

/// Whether both ends of a connection have the same address, so that its bytes cross no network,
/// unless somebody has redirected them.
bool StaysOnThisHost(int fd);
/// Of 127.0.0.0/8 or ::1, which no host accepts from a network.
bool IsLoopback(const SocketAddress& address);
/// Whether both ends of a connection are such.
bool IsLoopback(int fd);

/// The options every data connection has: no Nagle delay; keepalive, so that a dead host is
/// noticed, asked four times within `host_silence_min`, if that is not 0; between hosts, unless the
/// options or the route name one, the system's congestion control. Sockets of Listen and StartDial
/// begin with one that does not pace, which those within a host keep.
void ConfigureConnection(int fd, const TransportOptions& options);

/// True when a loopback dial met itself, which TCP permits on an ephemeral port nobody listens on.
bool IsSelfConnected(int fd);

/// The pending error of a socket, 0 if none.
int TakeSocketError(int fd);

/// `left` for poll and epoll_wait, in milliseconds of 0 to an hour. Rounded up: a millisecond late
/// beats a busy last millisecond.
int PollTimeout(Duration left);

/// "connection refused" and the like; for EMFILE how many descriptors the process may have, too.
std::string ErrorText(int error);

}  // namespace weir::mesh
