#include "datapath/transport/builtin/udp/endpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace weir::udp {
namespace {
constexpr int kReceiveTurns = 4;  // system calls, then what is due leaves
constexpr int kBatchTurns = 8;    // batches to one peer, then another's turn
constexpr Duration kRetryBlocked = std::chrono::milliseconds(1);
}  // namespace

Endpoint::Endpoint(DatagramSocket socket, int world)
    : fd_(socket.fd()),
      family_(socket.family()),
      socket_(std::move(socket)),
      channels_(static_cast<size_t>(world)),
      batch_(kBatchBytesMax + kDatagramBytesMax) {}

// ---- connecting

void Endpoint::Send(const mesh::SocketAddress& to, std::span<const std::byte> datagram) {
  MutexLock lock(mutex_);
  (void)socket_.Send(to, datagram, datagram.size());
}

std::vector<Caller> Endpoint::TakeCallers() {
  MutexLock lock(mutex_);
  return std::exchange(callers_, {});
}

std::vector<Unreachable> Endpoint::TakeUnreachable() {
  MutexLock lock(mutex_);
  return std::exchange(unreachable_, {});
}

void Endpoint::StopListening() {
  MutexLock lock(mutex_);
  listening_ = false;
  callers_ = {};
  unreachable_ = {};
}

size_t Endpoint::PathBytes(const mesh::SocketAddress& to) {
  MutexLock lock(mutex_);
  return socket_.PathBytes(to);
}

void Endpoint::AddLink(int rank, const mesh::SocketAddress& address, const Link::Options& options) {
  MutexLock lock(mutex_);
  channels_[rank].address = address;
  channels_[rank].link = std::make_unique<Link>(options, RealClock().Now());
  channels_[rank].link->Ping();
  dirty_ = true;
}

void Endpoint::DropLink(int rank) {
  MutexLock lock(mutex_);
  channels_[rank] = {};
}

uint64_t Endpoint::PeerConnection(int rank) const {
  MutexLock lock(mutex_);
  return LinkTo(rank) == nullptr ? 0 : LinkTo(rank)->options().peer_connection;
}

bool Endpoint::Confirmed(int rank) const {
  MutexLock lock(mutex_);
  return LinkTo(rank) != nullptr && LinkTo(rank)->confirmed();
}

bool Endpoint::Cut(int rank) const {
  MutexLock lock(mutex_);
  return LinkTo(rank) != nullptr && LinkTo(rank)->cut();
}

std::string Endpoint::AddressOf(int rank) const {
  MutexLock lock(mutex_);
  return mesh::Endpoint(channels_[rank].address.get(), channels_[rank].address.size);
}

// ---- driving

void Endpoint::Drive(TimePoint now) {
  MutexLock lock(mutex_);
  DriveLocked(now);
}

void Endpoint::DriveUnless(const std::atomic<bool>& busy, TimePoint now) {
  MutexLock lock(mutex_);
  if (!busy.load()) DriveLocked(now);
}

void Endpoint::DriveLocked(TimePoint now) {
  const DatagramSocket::Sink sink =
      [this, now](const mesh::SocketAddress& from, std::span<std::byte> datagram, bool marked)
          WEIR_NO_THREAD_SAFETY_ANALYSIS { OnDatagram(from, datagram, marked, now); };
  for (int turn = 0; turn < kReceiveTurns && socket_.Receive(sink); ++turn) {
  }
  TakeErrors();
  if (!SendHeld()) return;  // what waits for time waits for room first
  for (Channel& channel : channels_) {
    if (channel.link) channel.link->OnTimer(now);
  }
  FlushLocked(now);
}

void Endpoint::OnDatagram(const mesh::SocketAddress& from, std::span<const std::byte> datagram,
                          bool marked, TimePoint now) {
  const StatusOr<Prefix> prefix = DecodePrefix(datagram);
  if (!prefix.ok()) {
    ++ignored_;
    return;
  }
  if (prefix->type != DatagramType::kPacket) {
    StatusOr<Handshake> handshake = DecodeHandshake(datagram);
    if (!handshake.ok() || !listening_ || callers_.size() >= kCallersMax) {
      ++ignored_;
      return;
    }
    callers_.push_back({std::move(*handshake), from});
    return;
  }
  const auto rank = static_cast<size_t>(RankOf(prefix->connection));
  if (rank >= channels_.size() || !channels_[rank].link ||
      channels_[rank].link->options().own_connection != prefix->connection ||
      !SameAddress(from, channels_[rank].address)) {
    ++ignored_;
    return;
  }
  if (!channels_[rank].link->OnDatagram(datagram, now, marked)) ++ignored_;
}

void Endpoint::TakeErrors() {
  socket_.TakeErrors([this](const mesh::SocketAddress& to, int error, uint32_t mtu,
                            std::span<const std::byte> quoted)
                         WEIR_NO_THREAD_SAFETY_ANALYSIS { OnError(to, error, mtu, quoted); });
}

// Routers may quote nothing of the datagram: then its address must do.
void Endpoint::OnError(const mesh::SocketAddress& to, int error, uint32_t mtu,
                       std::span<const std::byte> quoted) {
  uint64_t connection = 0;
  if (quoted.size() >= kPrefixBytes) std::memcpy(&connection, quoted.data() + 8, sizeof connection);
  for (Channel& channel : channels_) {
    if (!channel.link || !SameAddress(to, channel.address)) continue;
    if (quoted.size() >= kPrefixBytes && connection != channel.link->options().peer_connection) {
      continue;  // about a connection that was before
    }
    // Other causes may pass: routes come back, and silence has a bound of its own.
    if (error == ECONNREFUSED) channel.link->Cut(error);
    if (error == EMSGSIZE) channel.link->OnTooLong(socket_.BytesOfMtu(mtu));
  }
  if (listening_ && unreachable_.size() < kCallersMax) unreachable_.push_back({to, error});
}

TimePoint Endpoint::NextTimer(TimePoint now) {
  MutexLock lock(mutex_);
  if (!held_.bytes.empty()) return now + kRetryBlocked;
  TimePoint next = TimePoint::max();
  for (const Channel& channel : channels_) {
    if (channel.link) next = std::min(next, channel.link->NextTimer(now));
  }
  return next;
}

bool Endpoint::Drained() const {
  MutexLock lock(mutex_);
  return std::all_of(channels_.begin(), channels_.end(), [](const Channel& channel) {
    return !channel.link || channel.link->drained();
  });
}

// ---- sending

void Endpoint::Flush(TimePoint now) {
  MutexLock lock(mutex_);
  if (dirty_) FlushLocked(now);
}

bool Endpoint::SendHeld() {
  if (held_.bytes.empty()) return true;
  if (socket_.Send(held_.to, held_.bytes, held_.segment) == DatagramSocket::Outcome::kBlocked) {
    return false;
  }
  held_.bytes.clear();
  return true;
}

void Endpoint::FlushLocked(TimePoint now) {
  if (!SendHeld()) return;
  dirty_ = false;
  const size_t count = channels_.size();
  first_ = count == 0 ? 0 : (first_ + 1) % count;
  for (size_t i = 0; i < count; ++i) {
    Channel& channel = channels_[(first_ + i) % count];
    if (channel.link && !FlushChannel(channel, now)) return;
  }
}

bool Endpoint::FlushChannel(Channel& channel, TimePoint now) {
  for (int turn = 0; turn < kBatchTurns; ++turn) {
    size_t segment = 0;
    const size_t bytes = FillBatch(*channel.link, now, &segment);
    if (bytes == 0) return true;
    const std::span<const std::byte> batch = std::span(batch_).first(bytes);
    switch (socket_.Send(channel.address, batch, segment)) {
      case DatagramSocket::Outcome::kSent:
      case DatagramSocket::Outcome::kFailed:
        break;
      case DatagramSocket::Outcome::kTooLong: {
        const size_t fits = socket_.PathBytes(channel.address);
        channel.link->OnTooLong(fits < segment ? fits : kDatagramBytesMin);
        break;
      }
      case DatagramSocket::Outcome::kBlocked:
        held_ = {channel.address, {batch.begin(), batch.end()}, segment};
        return false;
    }
  }
  dirty_ = true;
  return true;
}

// Datagrams of one size, of which only the last may be shorter: what the kernel can cut itself.
size_t Endpoint::FillBatch(Link& link, TimePoint now, size_t* segment) {
  constexpr size_t kBatchCountMax = 64;
  size_t filled = 0;
  *segment = 0;
  for (size_t count = 0; count < kBatchCountMax; ++count) {
    const size_t longest = count == 0 ? link.datagram_bytes() : *segment;
    if (filled + longest > kBatchBytesMax) break;
    const size_t bytes = link.NextDatagram(now, std::span(batch_).subspan(filled));
    if (bytes == 0) break;
    if (count == 0) *segment = bytes;
    filled += bytes;
    if (bytes < *segment || *segment < link.datagram_bytes()) break;
  }
  return filled;
}

// ---- the streams

ssize_t Endpoint::Write(int rank, std::span<const iovec> parts) {
  MutexLock lock(mutex_);
  Channel& channel = channels_[rank];
  if (!channel.link) return -ENOTCONN;
  const ssize_t bytes = channel.link->Write(parts);
  if (bytes > 0 && SendHeld()) FlushChannel(channel, RealClock().Now());
  return bytes;
}

ssize_t Endpoint::Read(int rank, std::span<const iovec> parts) {
  MutexLock lock(mutex_);
  if (!channels_[rank].link) return -ENOTCONN;
  const ssize_t bytes = channels_[rank].link->Read(parts);
  dirty_ |= channels_[rank].link->owes_window();
  return bytes;
}

void Endpoint::CloseWrite(int rank) {
  MutexLock lock(mutex_);
  Channel& channel = channels_[rank];
  if (!channel.link) return;
  channel.link->CloseWrite();
  if (SendHeld()) FlushChannel(channel, RealClock().Now());
}

bool Endpoint::Readable(int rank) const {
  MutexLock lock(mutex_);
  const Link* const link = LinkTo(rank);
  return link != nullptr && (link->readable() || link->hung_up());
}

bool Endpoint::Writable(int rank) const {
  MutexLock lock(mutex_);
  return LinkTo(rank) != nullptr && LinkTo(rank)->writable();
}

bool Endpoint::HungUp(int rank) const {
  MutexLock lock(mutex_);
  return LinkTo(rank) == nullptr || LinkTo(rank)->hung_up();
}

PathSample Endpoint::Sample(int rank) const {
  MutexLock lock(mutex_);
  return LinkTo(rank) == nullptr ? PathSample{.peer = rank} : LinkTo(rank)->Sample(rank);
}

uint64_t Endpoint::ignored() const {
  MutexLock lock(mutex_);
  return ignored_;
}

}  // namespace weir::udp
