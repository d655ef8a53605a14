// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of the socket interface that a mesh needs: owned descriptors, addresses and options.
// Errors name the address and the cause.

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
/// The same for the socket's local and remote address; "unknown" if it has none.
std::string LocalEndpoint(int fd);
std::string RemoteEndpoint(int fd);

/// A non-blocking listening socket; *bound is its address. kInvalidArgument: bad address or unknown
/// congestion control (available ones are listed); kUnavailable: cannot bind; kResourceExhausted:
/// no descriptor is left.
StatusOr<UniqueFd> Listen(const TransportOptions& options, int backlog, TransportAddress* bound);

/// A non-blocking socket that has begun to connect to `address`. *in_progress: it is not connected
/// yet. kUnavailable: refused or unreachable; kResourceExhausted: no descriptor is left.
StatusOr<UniqueFd> StartDial(const SocketAddress& address, const TransportOptions& options,
                             bool* in_progress);

/// Whether both ends of a connection have the same address, so that its bytes cross no network
/// unless they are redirected.
bool StaysOnThisHost(int fd);
/// Whether the address is in 127.0.0.0/8 or ::1, which no host accepts from a network.
bool IsLoopback(const SocketAddress& address);
/// Whether both ends of a connection have such addresses.
bool IsLoopback(int fd);

/// Sets the options of every data connection. Nagle's delay is off. Keepalives detect a dead host;
/// they are sent four times within `host_silence_min` unless it is 0. Between hosts the connection
/// gets the system's congestion control unless the options or the route name one. Within a host it
/// keeps the one that Listen and StartDial set, which does not pace.
void ConfigureConnection(int fd, const TransportOptions& options);

/// Whether a socket is connected to itself, which TCP permits if a loopback dial gets the dialed
/// port as its own ephemeral port.
bool IsSelfConnected(int fd);

/// Returns and clears the pending error of a socket; 0 if there is none.
int TakeSocketError(int fd);

/// Converts `left` to milliseconds for poll and epoll_wait, from 0 to an hour. It rounds up,
/// because otherwise the last part of a millisecond would be spent polling.
int PollTimeout(Duration left);

/// The text of an errno, such as "connection refused". For EMFILE it includes the limit.
std::string ErrorText(int error);

}  // namespace weir::mesh
