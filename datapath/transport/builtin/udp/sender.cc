#include "datapath/transport/builtin/udp/sender.h"

#include <algorithm>
#include <cstring>

namespace weir::udp {
namespace {
constexpr uint64_t kReorderingMax = 256;
// Lost packets are remembered for as many numbers: an acknowledgement that comes after all shows
// that the path reorders.
constexpr uint64_t kRememberedNumbers = 2 * kReorderingMax;
constexpr Duration kTimeoutMax = std::chrono::seconds(2);
constexpr int kPersistentTimeouts = 3;
}  // namespace

struct Sender::Acked {
  size_t bytes = 0;
  bool newest = false;  // the largest number is among them
  Sent last = {};       // the one sent last
  bool any = false;
  uint64_t largest = 0;
};

Sender::Sender(size_t buffer_bytes, size_t datagram_bytes, uint64_t window)
    : capacity_(buffer_bytes),
      ring_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)),
      datagram_bytes_(datagram_bytes),
      window_(window),
      congestion_(datagram_bytes) {}

size_t Sender::Write(std::span<const iovec> parts) {
  size_t total = 0;
  for (const iovec& part : parts) {
    size_t done = 0;
    while (done < part.iov_len && room() > 0) {
      const size_t at = static_cast<size_t>(written_ % capacity_);
      const size_t bytes = std::min({part.iov_len - done, room(), capacity_ - at});
      std::memcpy(ring_.get() + at, static_cast<const std::byte*>(part.iov_base) + done, bytes);
      written_ += bytes;
      done += bytes;
    }
    total += done;
  }
  return total;
}

void Sender::Copy(const Piece& piece, std::byte* out) const {
  const size_t at = static_cast<size_t>(piece.offset % capacity_);
  const size_t first = std::min(piece.bytes, capacity_ - at);
  std::memcpy(out, ring_.get() + at, first);
  if (first < piece.bytes) std::memcpy(out + first, ring_.get(), piece.bytes - first);
}

// ---- what may leave

bool Sender::HasMore() const {
  if (!resend_.empty()) return true;
  return next_ < std::min(written_, window_) || (closed_ && next_ == written_);
}

bool Sender::MayLeave() const {
  // Probes find room beyond the bound: without them nothing might move again.
  if (probes_ > 0) return sent_.size() < 2 * kPacketsMax;
  return sent_.size() < kPacketsMax && in_flight_bytes_ + datagram_bytes_ <= congestion_.bytes();
}

// The first `bytes` of positions begin .. end, which may include the end's.
Sender::Piece Sender::Cut(uint64_t begin, uint64_t end, size_t bytes) const {
  const uint64_t data_end = std::min(end, written_);
  Piece piece;
  piece.offset = begin;
  piece.bytes = begin < data_end ? std::min<size_t>(bytes, data_end - begin) : 0;
  piece.end = end > written_ && begin + piece.bytes == written_;
  return piece;
}

// What repeats the oldest unacknowledged bytes, when all are in flight.
Sender::Piece Sender::ProbePiece(size_t bytes) const {
  if (una_ == next_) return {};
  return Cut(una_, acked_.empty() ? next_ : acked_.front().begin, bytes);
}

Sender::Piece Sender::Next(size_t bytes, TimePoint now) {
  if (!MayLeave()) return {};
  if (!HasMore()) {
    if (probes_ == 0) limited_until_ = delivered_ + in_flight_bytes_;
    return probes_ > 0 ? ProbePiece(bytes) : Piece();
  }
  if (probes_ == 0 && pacer_.ReadyAt(now) > now) return {};
  if (!resend_.empty()) return Cut(resend_.front().begin, resend_.front().end, bytes);
  const uint64_t data_end = std::min(written_, window_);
  return Cut(next_, closed_ && data_end == written_ ? limit() : data_end, bytes);
}

void Sender::OnSent(const Piece& piece, size_t bytes, TimePoint now) {
  const uint64_t end = piece.offset + piece.bytes + (piece.end ? 1 : 0);
  Sent sent = {};
  sent.number = number_;
  sent.begin = piece.empty() ? 0 : piece.offset;
  sent.end = piece.empty() ? 0 : end;
  sent.bytes = static_cast<uint32_t>(bytes);
  sent.sent = now;
  if (!piece.empty() && piece.offset < next_) ++retransmits_;
  next_ = std::max(next_, sent.end);
  resend_.Remove(sent.begin, sent.end);
  ping_ = false;  // whatever leaves is answered
  if (in_flight_packets_ == 0) first_sent_ = delivered_at_ = now;
  sent.delivered = delivered_;
  sent.delivered_at = delivered_at_;
  sent.first_sent = first_sent_;
  sent.application_limited = limited_until_ > delivered_;
  ++in_flight_packets_;
  in_flight_bytes_ += bytes;
  // Half a window in use counts as limited by it: bursts of whole batches leave the rest unused.
  sent.limited = 2 * in_flight_bytes_ >= congestion_.bytes();
  sent_.push_back(sent);
  timer_began_ = now;
  if (probes_ > 0) --probes_;
  pacer_.OnSent(bytes);
}

// ---- acknowledgements

bool Sender::OnAcks(const Packet& packet, TimePoint now) {
  if (packet.ack_count == 0) return true;
  if (packet.acks[0].last > number_) return false;
  Acked acked;
  acked.largest = packet.acks[0].last;
  for (size_t i = 0; i < packet.ack_count; ++i) {
    const AckRange& range = packet.acks[i];
    auto at = std::partition_point(sent_.begin(), sent_.end(),
                                   [&](const Sent& sent) { return sent.number < range.first; });
    for (; at != sent_.end() && at->number <= range.last; ++at) OnPacketAcked(*at, &acked);
  }
  largest_acked_ = std::max(largest_acked_, acked.largest);
  if (acked.newest) {
    rtt_.OnSample(now - acked.last.sent, std::chrono::microseconds(packet.ack_delay_us));
    congestion_.OnRoundTrip(rtt_.latest(), acked.last.sent, now);
  }
  // Only those that acknowledge something new: others may have been overtaken. A mark asks for what
  // a loss would, once a round trip. Source: RFC 9002 section 7.1.
  if (acked.any && static_cast<int16_t>(packet.marks - marks_) > 0) {
    marks_ = packet.marks;
    congestion_.OnLost(acked.last.sent, now);
  }
  if (acked.any) {
    timeouts_ = probes_ = 0;
    MeasureRate(acked, now);
  }
  while (!acked_.empty() && acked_.front().begin <= una_) {
    una_ = std::max(una_, acked_.front().end);
    acked_.PopFront();
  }
  FindLosses(now);
  Forget();
  pacer_.SetRate(congestion_, rtt_, datagram_bytes_);
  return true;
}

void Sender::OnPacketAcked(Sent& sent, Acked* acked) {
  if (sent.state == State::kAcked) return;
  if (sent.state == State::kLost) {  // it only came late: be more patient from now on
    ++spurious_;
    reordering_ = std::min(std::max(2 * reordering_, largest_acked_ - sent.number), kReorderingMax);
    patience_ = std::min(patience_ + 1, RttEstimator::kPatienceMax);
  } else {
    --in_flight_packets_;
    in_flight_bytes_ -= sent.bytes;
    acked->bytes += sent.bytes;
    congestion_.OnAcked(sent.bytes, sent.sent, sent.limited);
    acked->newest |= sent.number == acked->largest;
    if (!acked->any || sent.number > acked->last.number) acked->last = sent;
    acked->any = true;
  }
  sent.state = State::kAcked;
  longest_acked_ = std::max<size_t>(longest_acked_, sent.bytes);
  delivered_ += sent.bytes;
  resend_.Remove(sent.begin, sent.end);
  acked_.Add(std::max(sent.begin, una_), sent.end);
}

void Sender::MeasureRate(const Acked& acked, TimePoint now) {
  delivered_at_ = now;
  first_sent_ = acked.last.sent;
  const Duration sending = acked.last.sent - acked.last.first_sent;
  const Duration arriving = now - acked.last.delivered_at;
  const Duration took = std::max(sending, arriving);
  if (took < rtt_.least() || took <= Duration(0)) return;
  const double bytes_per_s =
      static_cast<double>(delivered_ - acked.last.delivered) / ToSeconds(took);
  if (acked.last.application_limited && bytes_per_s < rate_.bytes_per_s) return;
  rate_ = {bytes_per_s, acked.last.application_limited};
}

void Sender::FindLosses(TimePoint now) {
  const Duration delay = rtt_.LossDelay(patience_);
  const TimePoint lost_before = now - delay;
  loss_at_ = TimePoint::max();
  TimePoint newest_lost = TimePoint::min();
  for (Sent& sent : sent_) {
    if (sent.number > largest_acked_) break;
    if (sent.state != State::kInFlight) continue;
    if (sent.sent <= lost_before || sent.number + reordering_ <= largest_acked_) {
      Lose(sent);
      newest_lost = std::max(newest_lost, sent.sent);
    } else {
      loss_at_ = std::min(loss_at_, sent.sent + delay);
    }
  }
  if (newest_lost != TimePoint::min()) congestion_.OnLost(newest_lost, now);
}

void Sender::Lose(Sent& sent) {
  sent.state = State::kLost;
  --in_flight_packets_;
  in_flight_bytes_ -= sent.bytes;
  if (sent.begin == sent.end) {
    ping_ = true;
    return;
  }
  resend_.Add(std::max(sent.begin, una_), sent.end);
  for (const RangeSet::Range& range : acked_.ranges()) resend_.Remove(range.begin, range.end);
}

void Sender::Forget() {
  while (!sent_.empty()) {
    const Sent& oldest = sent_.front();
    if (oldest.state == State::kInFlight) return;
    if (oldest.state == State::kLost && oldest.number + kRememberedNumbers > largest_acked_) return;
    sent_.pop_front();
  }
}

// ---- time

void Sender::OnTimer(TimePoint now) {
  if (now >= loss_at_) FindLosses(now);
  if (in_flight_packets_ == 0 || now < TimeoutAt()) return;
  ++timeouts_;
  timer_began_ = now;
  // Two, because the probes themselves may be lost.
  probes_ = 2;
  if (una_ == next_) ping_ = true;
  if (timeouts_ >= kPersistentTimeouts) congestion_.OnPersistentLoss(now);
}

// Backs off by doubling. Source: RFC 6298 section 5; a lower maximum, because what else would show
// that the peer's process died?
TimePoint Sender::TimeoutAt() const {
  const Duration first = rtt_.ProbeTimeout();
  const Duration timeout = first * (int64_t{1} << std::min(timeouts_, 10));
  return timer_began_ + std::min(timeout, std::max(kTimeoutMax, first));
}

TimePoint Sender::NextTimer(TimePoint now) {
  TimePoint next = loss_at_;
  if (in_flight_packets_ > 0) next = std::min(next, TimeoutAt());
  if (HasMore() && MayLeave()) next = std::min(next, pacer_.ReadyAt(now));
  return next;
}

void Sender::SetDatagramBytes(size_t bytes) {
  datagram_bytes_ = bytes;
  congestion_.SetDatagramBytes(bytes);
}

}  // namespace weir::udp
