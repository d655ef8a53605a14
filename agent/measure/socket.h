// SPDX-License-Identifier: Apache-2.0
#pragma once
// Socket functions for the agent's probers and listeners: an owned descriptor, an address that is
// an IP literal (no resolver, so no hidden wait), and socket calls that return errors as Status.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

/// Owns one file descriptor and closes it.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { Close(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

/// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t size);
  /// `ip`: a literal such as "10.0.0.7" or "fd00::7". kInvalidArgument for anything else.
  static StatusOr<SocketAddress> FromIp(std::string_view ip, uint16_t port);
  /// "HOST:PORT" or "[HOST]:PORT" with an IP literal or "localhost". kInvalidArgument otherwise.
  static StatusOr<SocketAddress> Parse(std::string_view host_port);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  bool is_loopback() const;
  /// "10.0.0.7" or "fd00::7".
  std::string ip() const;
  /// "10.0.0.7:80" or "[fd00::7]:80".
  std::string ToString() const;
  friend bool operator==(const SocketAddress& a, const SocketAddress& b);

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// Splits "HOST:PORT" or "[HOST]:PORT". kInvalidArgument names what is missing.
StatusOr<std::pair<std::string, uint16_t>> SplitHostPort(std::string_view host_port);

/// The error of a failed system call as a Status: "`what`: text of errno". kUnavailable.
Status ErrnoStatus(std::string_view what, int error);

/// A non-blocking close-on-exec socket that is bound to `address` (and listens, if SOCK_STREAM).
StatusOr<FileDescriptor> BindSocket(const SocketAddress& address, int type);

/// The address of a bound socket.
StatusOr<SocketAddress> LocalAddress(int fd);

/// Milliseconds for poll(2) until `deadline`, rounded up, within [0, cap_ms].
int PollMilliseconds(TimePoint now, TimePoint deadline, int cap_ms);

/// Names the calling thread; only 15 characters are used.
void NameThread(const char* name);

}  // namespace weir::agent
