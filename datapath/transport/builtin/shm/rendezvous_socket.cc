// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/rendezvous_socket.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "datapath/transport/mesh/hello.h"

namespace weir::shm {
namespace {

using mesh::ErrorText;
using mesh::UniqueFd;

std::string ReadLink(const std::string& path) {
  char target[256];
  const ssize_t n = readlink(path.c_str(), target, sizeof target);
  return n <= 0 ? "" : std::string(target, static_cast<size_t>(n));
}

socklen_t RendezvousAddress(const std::string& name, sockaddr_un* address) {
  std::string path = "weir-";
  for (const char c : name) {
    constexpr char kDigits[] = "0123456789abcdef";
    path += kDigits[static_cast<unsigned char>(c) >> 4];
    path += kDigits[static_cast<unsigned char>(c) & 15];
  }
  *address = {};
  address->sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract.
  const size_t length = std::min(path.size(), sizeof address->sun_path - 1);
  std::memcpy(address->sun_path + 1, path.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

UniqueFd NewSocket() {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

uint32_t NodeIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  const std::string network = ReadLink("/proc/self/ns/net");
  if (boot.empty() || network.empty()) return 0;
  const std::string identity = StrCat(boot, " ", network, " ", geteuid());
  const uint32_t hash = Checksum(std::as_bytes(std::span(identity)));
  return hash == 0 ? 1 : hash;
}

std::string NewRendezvousName() {
  std::string name(mesh::kRendezvousNameBytes, '\0');
  const ssize_t n = getrandom(name.data(), name.size(), 0);
  return n == static_cast<ssize_t>(name.size()) ? name : "";
}

StatusOr<UniqueFd> ListenAtRendezvous(const std::string& name, int backlog) {
  sockaddr_un address;
  const socklen_t size = RendezvousAddress(name, &address);
  UniqueFd fd = NewSocket();
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), backlog) != 0) {
    return Unavailable(StrCat("cannot listen on a unix socket: ", ErrorText(errno)));
  }
  return fd;
}

StatusOr<UniqueFd> ConnectToRendezvous(const std::string& name) {
  sockaddr_un address;
  const socklen_t size = RendezvousAddress(name, &address);
  UniqueFd fd = NewSocket();
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return Unavailable(StrCat("cannot reach its unix socket: ", ErrorText(errno)));
  }
  return fd;
}

StatusOr<pid_t> CheckPeer(int fd) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Unavailable(StrCat("cannot tell its user: ", ErrorText(errno)));
  }
  if (peer.uid != geteuid()) {
    return Unavailable(StrCat("user: expected ", geteuid(), ", found ", peer.uid));
  }
  return peer.pid;
}

UniqueFd WatchProcess(pid_t process) {
#ifdef SYS_pidfd_open
  if (process > 0) return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
#endif
  return UniqueFd();
}

Status SendHandshake(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t n;
  do {
    n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(bytes.size())) return OkStatus();
  return Unavailable(StrCat("cannot send over its unix socket: ", ErrorText(n < 0 ? errno : 0)));
}

StatusOr<std::optional<HandshakeMessage>> ReceiveHandshake(int fd) {
  HandshakeMessage received;
  received.bytes.resize(kHandshakeBytesMax);
  iovec part = {received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<HandshakeMessage>();
  if (n < 0) return Unavailable(ErrorText(errno));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(descriptor);
    }
  }
  if (n == 0) return Unavailable("closed the connection");
  const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
  if (cut && received.descriptors.size() < kDescriptorsMax) {
    return Unavailable(StrCat("cannot take its descriptors: ", ErrorText(EMFILE)));
  }
  if (cut || (message.msg_flags & MSG_TRUNC) != 0) {
    return DataLoss(StrCat("a message of more than ", kHandshakeBytesMax, " bytes or ",
                           kDescriptorsMax, " descriptors"));
  }
  received.bytes.resize(static_cast<size_t>(n));
  return std::optional<HandshakeMessage>(std::move(received));
}

Status CheckEventFd(int fd) {
  const std::string kind = ReadLink(StrCat("/proc/self/fd/", fd));
  // Older kernels write "anon_inode:[eventfd]", newer ones may add more behind it.
  if (kind.rfind("anon_inode:[eventfd", 0) != 0) {
    return DataLoss(StrCat("wake-up descriptor: expected an eventfd, found '", kind, "'"));
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return Unavailable(StrCat("wake-up descriptor: ", ErrorText(errno)));
  }
  return OkStatus();
}

}  // namespace weir::shm
