#include "datapath/transport/builtin/udp/link.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace weir::udp {
namespace {
// An idle peer is asked for a sign of life: the answer to a process that died is that nobody
// listens there. A peer that stays silent for long is on a host that died.
constexpr Duration kPingInterval = std::chrono::seconds(1);
constexpr Duration kSilenceMax = std::chrono::seconds(40);
// So many timeouts in a row, and only small datagrams may be what gets through; a path that bore
// long ones is given more time.
constexpr int kBlackHoleTimeouts = 3;
constexpr int kProvenTimeouts = 8;
}  // namespace

Link::Link(const Options& options, TimePoint now)
    : options_(options),
      sender_(options.send_bytes, options.datagram_bytes, options.peer_window),
      receiver_(options.receive_bytes),
      last_received_(now),
      last_ping_(now) {}

ssize_t Link::Write(std::span<const iovec> parts) {
  if (error_ != 0) return -error_;
  if (sender_.closed()) return -EPIPE;
  const size_t bytes = sender_.Write(parts);
  return bytes == 0 ? -EAGAIN : static_cast<ssize_t>(bytes);
}

ssize_t Link::Read(std::span<const iovec> parts) {
  if (const size_t bytes = receiver_.Read(parts); bytes > 0) return static_cast<ssize_t>(bytes);
  if (receiver_.complete()) return 0;
  return error_ != 0 ? -error_ : -EAGAIN;
}

bool Link::OnDatagram(std::span<const std::byte> datagram, TimePoint now, bool marked) {
  Packet packet;
  if (error_ != 0 || !DecodePacket(datagram, &packet).ok() ||
      packet.connection != options_.own_connection || !receiver_.OnPacket(packet, now)) {
    ++ignored_;
    return false;
  }
  if (!std::exchange(confirmed_, true)) sender_.OnPeerAppears();
  last_received_ = now;
  if (marked) receiver_.OnMark();
  sender_.OnWindow(packet.window);
  if (!sender_.OnAcks(packet, now)) ++ignored_;
  return true;
}

size_t Link::NextDatagram(TimePoint now, std::span<std::byte> out) {
  if (error_ != 0) return 0;
  const bool ack_due = receiver_.owes_ack() && receiver_.ack_at() <= now;
  const size_t head = PacketHeaderBytes(receiver_.owes_ack() ? receiver_.ack_count() : 0);
  const Sender::Piece piece = sender_.Next(sender_.datagram_bytes() - head, now);
  // A larger window is told by a ping, which is repeated until it is acknowledged.
  const bool ping = piece.empty() && (sender_.wants_ping() || receiver_.owes_window());
  if (piece.empty() && !ping && !ack_due) return 0;
  Packet packet;
  receiver_.Tell(now, &packet);
  packet.connection = options_.peer_connection;
  packet.number = sender_.TakeNumber();
  packet.ping = ping;
  packet.end = piece.end;
  packet.offset = piece.offset;
  const size_t payload_at = PacketHeaderBytes(packet.ack_count);
  EncodePacketHeader(packet, out);
  sender_.Copy(piece, out.data() + payload_at);
  const size_t bytes = payload_at + piece.bytes;
  Seal(out.first(bytes));
  if (ping) last_ping_ = now;
  if (ping || !piece.empty()) {
    sender_.OnSent(piece, bytes, now);
    receiver_.ToldForSure();
  }
  return bytes;
}

// ---- time

TimePoint Link::PingAt() const {
  if (settled() || sender_.in_flight()) return TimePoint::max();
  return std::max(last_received_, last_ping_) + kPingInterval;
}

void Link::OnTimer(TimePoint now) {
  if (error_ != 0) return;
  if (now >= last_received_ + kSilenceMax && !settled()) return Cut(ETIMEDOUT);
  sender_.OnTimer(now);
  if (now >= PingAt()) sender_.AskForPing();
  const int patience =
      sender_.longest_acked() > kDatagramBytesMin ? kProvenTimeouts : kBlackHoleTimeouts;
  if (sender_.timeouts() >= patience) OnTooLong(kDatagramBytesMin);
}

TimePoint Link::NextTimer(TimePoint now) {
  if (error_ != 0) return TimePoint::max();
  if (sender_.wants_ping() || receiver_.owes_window()) return now;
  TimePoint next = std::min(sender_.NextTimer(now), PingAt());
  if (receiver_.owes_ack()) next = std::min(next, receiver_.ack_at());
  if (!settled()) next = std::min(next, last_received_ + kSilenceMax);
  return std::max(next, now);
}

void Link::OnTooLong(size_t bytes_max) {
  const size_t bytes = std::max(bytes_max, kDatagramBytesMin);
  if (bytes < sender_.datagram_bytes()) sender_.SetDatagramBytes(bytes);
}

PathSample Link::Sample(int peer) const {
  PathSample sample;
  sample.peer = peer;
  sample.medium = "udp";
  const RttEstimator& rtt = sender_.rtt();
  sample.rtt_s = ToSeconds(rtt.smoothed());
  sample.rtt_min_s = ToSeconds(rtt.least());
  sample.rtt_deviation_s = ToSeconds(rtt.deviation());
  sample.delivery_rate_bytes_per_s = sender_.rate().bytes_per_s;
  sample.application_limited = sender_.rate().application_limited;
  sample.bytes_acked = sender_.acked_bytes();
  sample.bytes_received = receiver_.received();
  sample.congestion_window_bytes =
      static_cast<uint32_t>(std::min<size_t>(sender_.window().bytes(), UINT32_MAX));
  sample.retransmits = sender_.retransmits();
  return sample;
}

}  // namespace weir::udp
