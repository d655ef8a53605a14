// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/socket.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace weir::agent {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileDescriptor::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof storage_)) {
  std::memcpy(&storage_, address, size_);
}

StatusOr<SocketAddress> SocketAddress::FromIp(std::string_view ip, uint16_t port) {
  const std::string text(ip);
  sockaddr_in v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
  }
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  }
  return InvalidArgument(StrCat("expected an IP address, found '", ip, "'"));
}

StatusOr<SocketAddress> SocketAddress::Parse(std::string_view host_port) {
  WEIR_ASSIGN_OR_RETURN(const auto parts, SplitHostPort(host_port));
  return FromIp(parts.first == "localhost" ? "127.0.0.1" : parts.first, parts.second);
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return 0;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24) == 127;
  }
  return family() == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

std::string SocketAddress::ip() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text,
              sizeof text);
  } else if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text,
              sizeof text);
  }
  return text;
}

std::string SocketAddress::ToString() const {
  return family() == AF_INET6 ? StrCat("[", ip(), "]:", port()) : StrCat(ip(), ":", port());
}

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  return a.family() == b.family() && a.port() == b.port() && a.ip() == b.ip();
}

StatusOr<std::pair<std::string, uint16_t>> SplitHostPort(std::string_view host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return InvalidArgument(StrCat("expected HOST:PORT, found '", host_port, "'"));
  }
  std::string_view host = host_port.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return InvalidArgument(
        StrCat("expected [HOST]:PORT for an IPv6 address, found '", host_port, "'"));
  }
  const std::string_view digits = host_port.substr(colon + 1);
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() ||
      port > 65535) {
    return InvalidArgument(StrCat("expected a port from 0 to 65535, found '", digits, "'"));
  }
  return std::pair<std::string, uint16_t>(std::string(host), static_cast<uint16_t>(port));
}

Status ErrnoStatus(std::string_view what, int error) {
  return Unavailable(StrCat(what, ": ", std::strerror(error)));
}

StatusOr<FileDescriptor> BindSocket(const SocketAddress& address, int type) {
  FileDescriptor fd(socket(address.family(), type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus("socket", errno);
  const int on = 1;
  if (type == SOCK_STREAM) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), address.get(), address.size()) != 0) {
    return ErrnoStatus(StrCat("bind ", address.ToString()), errno);
  }
  if (type == SOCK_STREAM && listen(fd.get(), 128) != 0) {
    return ErrnoStatus(StrCat("listen ", address.ToString()), errno);
  }
  return fd;
}

StatusOr<SocketAddress> LocalAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return ErrnoStatus("getsockname", errno);
  }
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), size);
}

int PollMilliseconds(TimePoint now, TimePoint deadline, int cap_ms) {
  if (deadline <= now) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::min<int64_t>(ms, cap_ms));
}

void NameThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace weir::agent
