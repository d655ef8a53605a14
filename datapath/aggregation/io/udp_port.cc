// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/io/udp_port.h"

#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "datapath/aggregation/io/address.h"
#include "datapath/aggregation/io/row_limit.h"
#include "datapath/base/check.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace weir::aggregation {
namespace {

constexpr size_t kJoinedMax = 65536;  // the kernel joins at most this much
constexpr size_t kRowPacketsMax = 60;
constexpr size_t kLineBytes = size_t{1} << 20;
constexpr size_t kRowsMax = 1024;
constexpr size_t kRowsOpenMax = 64;  // a packet extends one of so many last rows, or begins one
constexpr Duration kFlushMax = std::chrono::milliseconds(10);

// A privileged program may exceed the administrator's limit. That matters because a window of
// packets of all workers arrives at once.
void SetBuffer(int fd, int forced, int polite, int bytes) {
  if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) == 0) return;
  setsockopt(fd, SOL_SOCKET, polite, &bytes, sizeof bytes);
}

// A packet takes as much of the kernel's buffer as the page fragment and the descriptor that hold
// it.
constexpr size_t kHeldBytesPerPacket = 2304;

// The size of the datagrams that the kernel joined into this received one (GRO), or 0 if it is a
// single datagram.
size_t JoinedSegmentBytes(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_UDP || c->cmsg_type != UDP_GRO) continue;
    int segment = 0;
    std::memcpy(&segment, CMSG_DATA(c), sizeof segment);
    return segment > 0 ? static_cast<size_t>(segment) : 0;
  }
  return 0;
}

}  // namespace

// The control data of a message: the size of the pieces of which a row was joined or into which it
// is segmented.
struct UdpPort::Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes = {};
};

struct UdpPort::Incoming {
  std::array<mmsghdr, kSlots> messages = {};
  std::array<iovec, kSlots> parts = {};
  std::array<sockaddr_in, kSlots> from = {};
  std::array<Control, kSlots> control;
  int slots = kSlots;
};

struct UdpPort::Outgoing {
  std::array<mmsghdr, kBatch> messages = {};
  std::array<iovec, kBatch> singles = {};  // pieces of messages that are no row
  std::array<sockaddr_in, kBatch> to = {};
  std::array<Control, kBatch> control;
  std::array<const Row*, kBatch> rows = {};  // null: a single packet
  size_t count = 0;
};

UdpPort::UdpPort(mesh::UniqueFd fd, bool rows)
    : fd_(std::move(fd)), outgoing_(std::make_unique<Outgoing>()) {
  int value = 0;
  socklen_t size = sizeof value;
  can_segment_ = rows && getsockopt(fd_.get(), SOL_UDP, UDP_SEGMENT, &value, &size) == 0;
  segments_ = can_segment_;
  line_.resize(kLineBytes);
  rows_.reserve(kRowsMax);
}

void UdpPort::PrepareToReceive(bool rows) {
  const int on = 1;
  const bool joins = rows && setsockopt(fd_.get(), SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
  slot_bytes_ = joins ? kJoinedMax : kPacketBytesMax + 1;
  slots_.resize(kSlots * slot_bytes_);
  incoming_ = std::make_unique<Incoming>();
}

UdpPort::~UdpPort() = default;

StatusOr<std::unique_ptr<UdpPort>> UdpPort::Bind(const UdpPortOptions& options) {
  WEIR_ASSIGN_OR_RETURN(const SourceAddress listen, ParseSourceAddress(options.listen));
  mesh::UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Unavailable(StrCat("cannot create a socket: ", mesh::ErrorText(errno)));
  SetBuffer(fd.get(), SO_SNDBUFFORCE, SO_SNDBUF, options.buffer_bytes);
  SetBuffer(fd.get(), SO_RCVBUFFORCE, SO_RCVBUF, options.buffer_bytes);
  sockaddr_in address = ToSocketAddress(listen);
  socklen_t size = sizeof address;
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Unavailable(StrCat("cannot bind UDP ", options.listen, ": ", mesh::ErrorText(errno)));
  }
  std::unique_ptr<UdpPort> port(new UdpPort(std::move(fd), options.rows));
  port->PrepareToReceive(options.rows);
  port->address_ = ToSourceAddress(address);
  int held_bytes = 0;
  size = sizeof held_bytes;
  if (getsockopt(port->fd(), SOL_SOCKET, SO_RCVBUF, &held_bytes, &size) == 0) {
    port->packets_held_ = static_cast<size_t>(held_bytes) / kHeldBytesPerPacket;
  }
  port->row_bytes_ = RowBytesFor(port->address_);
  return port;
}

Status UdpPort::Connect(SourceAddress peer) {
  const sockaddr_in address = ToSocketAddress(peer);
  if (connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Unavailable(StrCat("cannot reach ", AddressText(peer), ": ", mesh::ErrorText(errno)));
  }
  connected_ = true;
  return OkStatus();
}

void UdpPort::Wait(TimePoint now, TimePoint deadline, int wake_fd) const {
  pollfd ready[2] = {{fd_.get(), POLLIN, 0}, {wake_fd, POLLIN, 0}};  // poll skips descriptor -1
  poll(ready, 2, mesh::PollTimeout(deadline - now));
}

// ---- receiving

bool UdpPort::Receive(const Sink& sink) {
  WEIR_CHECK(incoming_ != nullptr);
  Incoming& in = *incoming_;
  for (int i = 0; i < in.slots; ++i) {
    in.parts[i] = {slots_.data() + static_cast<size_t>(i) * slot_bytes_, slot_bytes_};
    msghdr& message = in.messages[i].msg_hdr;
    message = {};
    message.msg_name = &in.from[i];
    message.msg_namelen = sizeof in.from[i];
    message.msg_iov = &in.parts[i];
    message.msg_iovlen = 1;
    message.msg_control = in.control[i].bytes.data();
    message.msg_controllen = in.control[i].bytes.size();
  }
  const int count = recvmmsg(fd_.get(), in.messages.data(), static_cast<unsigned>(in.slots),
                             MSG_DONTWAIT, nullptr);
  if (count < 0) {
    if (errno == ECONNREFUSED) ++counters_.refused;
    return errno == ECONNREFUSED || errno == EINTR;
  }
  size_t bytes_received = 0;
  for (int i = 0; i < count; ++i) {
    msghdr& message = in.messages[i].msg_hdr;
    if ((message.msg_flags & MSG_TRUNC) != 0) {
      ++counters_.truncated;
      continue;
    }
    std::span<const std::byte> bytes(slots_.data() + static_cast<size_t>(i) * slot_bytes_,
                                     in.messages[i].msg_len);
    bytes_received += bytes.size();
    const size_t segment = JoinedSegmentBytes(message);
    const SourceAddress from = ToSourceAddress(in.from[i]);
    do {  // an empty datagram counts, too
      const size_t size = segment == 0 ? bytes.size() : std::min(segment, bytes.size());
      ++counters_.received;
      sink(from, bytes.first(size));
      bytes = bytes.subspan(size);
    } while (!bytes.empty());
  }
  // Joined datagrams soon exceed the cache, so only a few of them are received at a time.
  constexpr size_t kCacheBytes = size_t{256} << 10;
  const size_t each = count == 0 ? 1 : bytes_received / static_cast<size_t>(count) + 1;
  in.slots = static_cast<int>(std::clamp<size_t>(kCacheBytes / each, 4, kSlots));
  return count > 0;
}

// ---- sending

bool UdpPort::Extends(const Row& row, size_t size) const {
  // A row ends with the first packet that is shorter than the others.
  return size > 0 && size <= row.segment && row.bytes == row.packets * row.segment &&
         row.packets < kRowPacketsMax && row.bytes + size <= row_bytes_;
}

// Replies go to the same addresses in the same order again and again, so the row after the one that
// was used last is usually the right one.
UdpPort::Row& UdpPort::RowFor(SourceAddress to, size_t size) {
  const size_t oldest = rows_used_ > kRowsOpenMax ? rows_used_ - kRowsOpenMax : 0;
  for (size_t i = oldest; i < rows_used_; ++i) {
    row_recent_ = row_recent_ + 1 < rows_used_ ? std::max(row_recent_ + 1, oldest) : oldest;
    Row& row = rows_[row_recent_];
    if (row.ended || row.to != to) continue;
    if (Extends(row, size)) return row;
    row.ended = true;
    break;
  }
  if (rows_used_ == rows_.size()) rows_.emplace_back();
  row_recent_ = rows_used_++;
  Row& row = rows_[row_recent_];
  row.pieces.clear();
  row = {.to = to, .segment = size, .pieces = std::move(row.pieces)};
  return row;
}

void UdpPort::Send(std::span<const SourceAddress> to, std::span<const std::byte> packet) {
  WEIR_CHECK(packet.size() <= kPacketBytesMax && to.size() <= kWorkersMax);
  const bool full = line_size_ + packet.size() > line_.size() || rows_used_ + to.size() > kRowsMax;
  if (full) Flush();
  std::byte* const at = line_.data() + line_size_;
  if (!packet.empty()) std::memcpy(at, packet.data(), packet.size());
  line_size_ += packet.size();
  for (const SourceAddress address : to) {
    Row& row = RowFor(address, packet.size());
    row.bytes += packet.size();
    ++row.packets;
    iovec* const last = row.pieces.empty() ? nullptr : &row.pieces.back();
    if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == at) {
      last->iov_len += packet.size();
    } else {
      row.pieces.push_back({at, packet.size()});
    }
  }
}

void UdpPort::Flush() {
  if (rows_used_ == 0) return;
  const TimePoint deadline = RealClock().Now() + kFlushMax;
  for (Row& row : std::span(rows_).first(rows_used_)) {
    if (segments_ && row.packets > 1) {
      AddMessage(row.to, row.pieces, &row, deadline);
    } else {
      AddSinglePackets(row, deadline);
    }
  }
  SendMessages(deadline);
  rows_used_ = row_recent_ = 0;
  line_size_ = 0;
}

void UdpPort::AddSinglePackets(const Row& row, TimePoint deadline) {
  for (const iovec& piece : row.pieces) {
    size_t at = 0;
    do {  // an empty packet counts, too
      const size_t size = std::min(row.segment, piece.iov_len - at);
      iovec one = {static_cast<std::byte*>(piece.iov_base) + at, size};
      AddMessage(row.to, {&one, 1}, nullptr, deadline);
      at += size;
    } while (at < piece.iov_len);
  }
}

void UdpPort::AddMessage(SourceAddress to, std::span<iovec> pieces, const Row* row,
                         TimePoint deadline) {
  Outgoing& out = *outgoing_;
  if (out.count == kBatch) SendMessages(deadline);
  const size_t i = out.count++;
  out.rows[i] = row;
  if (row == nullptr) {
    out.singles[i] = pieces[0];
    pieces = {&out.singles[i], 1};
  }
  msghdr& message = out.messages[i].msg_hdr;
  message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  if (!connected_) {
    out.to[i] = ToSocketAddress(to);
    message.msg_name = &out.to[i];
    message.msg_namelen = sizeof out.to[i];
  }
  if (row == nullptr) return;
  message.msg_control = out.control[i].bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof(uint16_t));
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_UDP;
  c->cmsg_type = UDP_SEGMENT;
  c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const auto segment = static_cast<uint16_t>(row->segment);
  std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
}

void UdpPort::SendMessages(TimePoint deadline) {
  Outgoing& out = *outgoing_;
  size_t done = 0;
  bool repeated = false;  // the next call reports an error of an earlier datagram
  while (done < out.count) {
    const int count =
        sendmmsg(fd_.get(), out.messages.data() + done, static_cast<unsigned>(out.count - done),
                 MSG_DONTWAIT | MSG_NOSIGNAL);
    for (int i = 0; i < count; ++i, ++done) {
      counters_.sent += out.rows[done] == nullptr ? 1 : out.rows[done]->packets;
    }
    if (count > 0) {
      counters_.messages += static_cast<uint64_t>(count);
      repeated = false;
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (error == ECONNREFUSED) ++counters_.refused;
    if (error == ECONNREFUSED && !repeated) {
      repeated = true;
      continue;
    }
    const TimePoint now = RealClock().Now();
    if ((error == EAGAIN || error == EWOULDBLOCK) && now < deadline) {
      pollfd room = {fd_.get(), POLLOUT, 0};
      poll(&room, 1, mesh::PollTimeout(deadline - now));
      continue;
    }
    OnSendError(error, done++);
    repeated = false;
  }
  out.count = 0;
}

void UdpPort::OnSendError(int error, size_t message) {
  const Row* const row = outgoing_->rows[message];
  const bool cannot_cut = error == EINVAL || error == EIO || error == EOPNOTSUPP;
  if (row == nullptr || !cannot_cut) {
    counters_.unsent += row == nullptr ? 1 : row->packets;
    return;
  }
  can_segment_ = segments_ = false;
  msghdr one = outgoing_->messages[message].msg_hdr;
  one.msg_control = nullptr;
  one.msg_controllen = 0;
  for (const iovec& piece : row->pieces) {
    for (size_t at = 0; at < piece.iov_len; at += row->segment) {
      iovec part = {static_cast<std::byte*>(piece.iov_base) + at,
                    std::min(row->segment, piece.iov_len - at)};
      one.msg_iov = &part;
      one.msg_iovlen = 1;
      const bool sent = sendmsg(fd_.get(), &one, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
      ++(sent ? counters_.sent : counters_.unsent);
      if (sent) ++counters_.messages;
    }
  }
}

}  // namespace weir::aggregation
