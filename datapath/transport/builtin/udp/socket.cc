#include "datapath/transport/builtin/udp/socket.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "datapath/transport/builtin/udp/packet.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace weir::udp {
namespace {

constexpr int kSlots = 16;              // datagrams, or joined ones, that one call receives
constexpr size_t kJoinedBytes = 65536;  // the kernel joins no more
constexpr int kSegmentsMax = 64;
constexpr int kBufferBytes = 4 << 20;
// The code points of ECN: routers may mark what says ECT(0) instead of dropping it. RFC 3168.
constexpr int kMarkable = 2, kMarked = 3, kMarkBits = 3;
constexpr size_t kUdpHeaderBytes = 8, kIp4HeaderBytes = 20, kIp6HeaderBytes = 40;

bool SetOption(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// The kernel grants less where its administrator allows less: then more is lost in bursts.
void ConfigureSocket(int fd, int family, const TransportOptions& options) {
  SetOption(fd, SOL_SOCKET, SO_SNDBUF, std::max(options.send_buffer_bytes, kBufferBytes));
  SetOption(fd, SOL_SOCKET, SO_RCVBUF, std::max(options.receive_buffer_bytes, kBufferBytes));
  if (options.busy_poll > Duration(0)) {  // of the device's queue, where that can be done
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(options.busy_poll);
    SetOption(fd, SOL_SOCKET, SO_BUSY_POLL, static_cast<int>(std::min<int64_t>(us.count(), 1000)));
  }
  if (family == AF_INET6) {
    SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    SetOption(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    SetOption(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
    SetOption(fd, IPPROTO_IPV6, IPV6_TCLASS, kMarkable);
    SetOption(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  } else {
    SetOption(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    SetOption(fd, IPPROTO_IP, IP_RECVERR, 1);
    SetOption(fd, IPPROTO_IP, IP_TOS, kMarkable);
    SetOption(fd, IPPROTO_IP, IP_RECVTOS, 1);
  }
}

// Of a message that came from the error queue; false when it says nothing.
bool ErrorOf(msghdr& message, sock_extended_err* error) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    const bool about = (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                       (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR);
    if (!about || c->cmsg_len < CMSG_LEN(sizeof *error)) continue;
    std::memcpy(error, CMSG_DATA(c), sizeof *error);
    return true;
  }
  return false;
}

// Whether a received message was marked on its way. IPv4 gives an octet, IPv6 an integer.
bool IsMarked(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    int value = 0;
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      uint8_t octet = 0;
      std::memcpy(&octet, CMSG_DATA(c), sizeof octet);
      value = octet;
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      std::memcpy(&value, CMSG_DATA(c), sizeof value);
    } else {
      continue;
    }
    return (value & kMarkBits) == kMarked;
  }
  return false;
}

DatagramSocket::Outcome OutcomeOf(int error) {
  if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS) {
    return DatagramSocket::Outcome::kBlocked;
  }
  return error == EMSGSIZE ? DatagramSocket::Outcome::kTooLong : DatagramSocket::Outcome::kFailed;
}

}  // namespace

bool SameAddress(const mesh::SocketAddress& a, const mesh::SocketAddress& b) {
  if (a.storage.ss_family != b.storage.ss_family) return false;
  if (a.storage.ss_family == AF_INET) {
    const auto& x = reinterpret_cast<const sockaddr_in&>(a.storage);
    const auto& y = reinterpret_cast<const sockaddr_in&>(b.storage);
    return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  const auto& x = reinterpret_cast<const sockaddr_in6&>(a.storage);
  const auto& y = reinterpret_cast<const sockaddr_in6&>(b.storage);
  return x.sin6_port == y.sin6_port &&
         std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
}

DatagramSocket::DatagramSocket(mesh::UniqueFd fd, int family)
    : fd_(std::move(fd)), family_(family) {
  int segment = 0;
  socklen_t size = sizeof segment;
  segments_ = getsockopt(fd_.get(), SOL_UDP, UDP_SEGMENT, &segment, &size) == 0;
  joins_ = SetOption(fd_.get(), SOL_UDP, UDP_GRO, 1);
  slot_bytes_ = joins_ ? kJoinedBytes : kDatagramBytesMax + 1;
  slots_.resize(kSlots * slot_bytes_);
}

StatusOr<DatagramSocket> DatagramSocket::Bind(const TransportOptions& options,
                                              TransportAddress* bound) {
  WEIR_ASSIGN_OR_RETURN(const mesh::SocketAddress address, mesh::ResolveAddress(options.listen));
  const int family = address.storage.ss_family;
  mesh::UniqueFd fd(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Unavailable(StrCat("cannot create a socket: ", mesh::ErrorText(errno)));
  ConfigureSocket(fd.get(), family, options);
  if (bind(fd.get(), address.get(), address.size) != 0) {
    return Unavailable(StrCat("cannot listen on ", options.listen, ": ", mesh::ErrorText(errno)));
  }
  *bound = mesh::LocalEndpoint(fd.get());
  return DatagramSocket(std::move(fd), family);
}

// ---- receiving

bool DatagramSocket::Receive(const Sink& sink) {
  std::array<mmsghdr, kSlots> messages = {};
  std::array<iovec, kSlots> parts;
  std::array<mesh::SocketAddress, kSlots> from;
  alignas(cmsghdr) std::array<std::array<char, 2 * CMSG_SPACE(sizeof(int))>, kSlots> control;
  for (int i = 0; i < kSlots; ++i) {
    parts[i] = {slots_.data() + i * slot_bytes_, slot_bytes_};
    msghdr& message = messages[i].msg_hdr;
    message.msg_name = &from[i].storage;
    message.msg_namelen = sizeof from[i].storage;
    message.msg_iov = &parts[i];
    message.msg_iovlen = 1;
    message.msg_control = control[i].data();
    message.msg_controllen = control[i].size();
  }
  const int count = recvmmsg(fd_.get(), messages.data(), kSlots, MSG_DONTWAIT, nullptr);
  if (count < 0) {
    // An error is one that the network reported, which TakeErrors takes, or there is nothing.
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) reported_ = true;
    return errno == EINTR;
  }
  for (int i = 0; i < count; ++i) {
    msghdr& message = messages[i].msg_hdr;
    if (message.msg_flags & MSG_TRUNC) continue;  // longer than any of ours
    from[i].size = message.msg_namelen;
    std::span<std::byte> bytes(slots_.data() + i * slot_bytes_, messages[i].msg_len);
    const size_t segment = mesh::JoinedSegmentBytes(message);
    const bool marked = IsMarked(message);  // joined are only those marked alike
    while (!bytes.empty()) {
      const size_t size = segment == 0 ? bytes.size() : std::min(segment, bytes.size());
      sink(from[i], bytes.first(size), marked);
      bytes = bytes.subspan(size);
    }
  }
  return count == kSlots;
}

void DatagramSocket::TakeErrors(const ErrorSink& sink) {
  if (!std::exchange(reported_, false)) return;
  constexpr int kErrorsMax = 256;  // of one turn
  for (int i = 0; i < kErrorsMax; ++i) {
    std::array<std::byte, kPrefixBytes> quoted;
    iovec part = {quoted.data(), quoted.size()};
    alignas(cmsghdr) std::array<char, 512> control;
    mesh::SocketAddress to;
    msghdr message = {};
    message.msg_name = &to.storage;
    message.msg_namelen = sizeof to.storage;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t n = recvmsg(fd_.get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (n < 0) return;
    to.size = message.msg_namelen;
    sock_extended_err error = {};
    if (!ErrorOf(message, &error)) continue;
    sink(to, static_cast<int>(error.ee_errno), error.ee_info,
         std::span(quoted).first(static_cast<size_t>(n)));
  }
}

// ---- sending

DatagramSocket::Outcome DatagramSocket::Send(const mesh::SocketAddress& to,
                                             std::span<const std::byte> bytes, size_t segment) {
  // An error may be about an earlier datagram to somebody else; then this one has not left.
  constexpr int kAttempts = 4;
  Outcome outcome = Outcome::kFailed;
  for (int attempt = 0; attempt < kAttempts && outcome == Outcome::kFailed; ++attempt) {
    int error = 0;
    if (segments_ && bytes.size() > segment) {
      outcome = SendSegmented(to, bytes, segment, &error);
      if (error == EINVAL || error == EIO || error == EOPNOTSUPP) segments_ = false;
    } else {
      outcome = SendEach(to, bytes, segment, &error);
    }
    if (outcome != Outcome::kSent && outcome != Outcome::kBlocked) reported_ = true;
  }
  return outcome;
}

DatagramSocket::Outcome DatagramSocket::SendSegmented(const mesh::SocketAddress& to,
                                                      std::span<const std::byte> bytes,
                                                      size_t segment, int* error) {
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};  // only read
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control = {};
  msghdr message = {};
  message.msg_name = const_cast<sockaddr_storage*>(&to.storage);
  message.msg_namelen = to.size;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_UDP;
  c->cmsg_type = UDP_SEGMENT;
  c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const auto size = static_cast<uint16_t>(segment);
  std::memcpy(CMSG_DATA(c), &size, sizeof size);
  if (sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Outcome::kSent;
  *error = errno;
  return OutcomeOf(errno);
}

DatagramSocket::Outcome DatagramSocket::SendEach(const mesh::SocketAddress& to,
                                                 std::span<const std::byte> bytes, size_t segment,
                                                 int* error) {
  std::array<mmsghdr, kSegmentsMax> messages = {};
  std::array<iovec, kSegmentsMax> parts;
  size_t count = 0;
  for (; count < kSegmentsMax && !bytes.empty(); ++count) {
    const std::span<const std::byte> piece = bytes.first(std::min(segment, bytes.size()));
    bytes = bytes.subspan(piece.size());
    parts[count] = {const_cast<std::byte*>(piece.data()), piece.size()};
    msghdr& message = messages[count].msg_hdr;
    message.msg_name = const_cast<sockaddr_storage*>(&to.storage);
    message.msg_namelen = to.size;
    message.msg_iov = &parts[count];
    message.msg_iovlen = 1;
  }
  const int sent = sendmmsg(fd_.get(), messages.data(), static_cast<unsigned>(count),
                            MSG_DONTWAIT | MSG_NOSIGNAL);
  // Those behind a failure are lost, which is what a full queue does, too.
  if (sent > 0) return Outcome::kSent;
  *error = errno;
  return OutcomeOf(errno);
}

// ---- the path

size_t DatagramSocket::BytesOfMtu(size_t mtu) const {
  const size_t headers =
      kUdpHeaderBytes + (family_ == AF_INET6 ? kIp6HeaderBytes : kIp4HeaderBytes);
  return std::clamp(mtu > headers ? mtu - headers : 0, kDatagramBytesMin, kDatagramBytesMax);
}

size_t DatagramSocket::PathBytes(const mesh::SocketAddress& to) const {
  // Only a connected socket tells.
  const mesh::UniqueFd probe(socket(family_, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int mtu = 0;
  socklen_t size = sizeof mtu;
  const bool six = family_ == AF_INET6;
  if (!probe || connect(probe.get(), to.get(), to.size) != 0 ||
      getsockopt(probe.get(), six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &mtu,
                 &size) != 0) {
    return kDatagramBytesMin;
  }
  return BytesOfMtu(static_cast<size_t>(std::max(mtu, 0)));
}

}  // namespace weir::udp
