#pragma once
// The sending half of a link: keeps stream bytes until they are acknowledged, finds out which were
// lost, and says what may leave next. Pure: times are given.

#include <sys/uio.h>

#include <deque>
#include <memory>

#include "datapath/transport/builtin/udp/congestion.h"
#include "datapath/transport/builtin/udp/packet.h"
#include "datapath/transport/builtin/udp/range_set.h"

namespace weir::udp {

/// What a measurement says of the path; zero: unknown.
struct DeliveryRate {
  double bytes_per_s = 0;
  bool application_limited = true;
};

/// Stream positions include one beyond the last byte, the end's: so that the end is sent again and
/// acknowledged like a byte. Every packet has a number of its own, also when it repeats bytes, so
/// an acknowledgement is never ambiguous. Source: RFC 9002; delivery rate:
/// draft-cheng-iccrg-delivery- rate-estimation-02. Holds at most `buffer_bytes` of the stream. Not
/// thread-safe.
class Sender {
 public:
  static constexpr size_t kPacketsMax = 16384;  // in memory

  /// `window`: the stream offset below which the peer takes bytes at first.
  Sender(size_t buffer_bytes, size_t datagram_bytes, uint64_t window);

  /// Takes bytes; 0 when there is no room or the stream was closed.
  size_t Write(std::span<const iovec> parts);
  size_t room() const { return closed_ ? 0 : capacity_ - static_cast<size_t>(written_ - una_); }
  void Close() { closed_ = true; }
  bool closed() const { return closed_; }
  /// Everything written was acknowledged, and the end if it was closed.
  bool drained() const { return una_ == limit(); }

  /// A piece of the stream for one packet. Empty without an end: nothing may leave now.
  struct Piece {
    uint64_t offset = 0;
    size_t bytes = 0;
    bool end = false;
    bool empty() const { return bytes == 0 && !end; }
  };
  /// The next piece of at most `bytes`, as far as window and pacing allow.
  Piece Next(size_t bytes, TimePoint now);
  /// A ping is due: a probe without bytes, or one that was asked for.
  bool wants_ping() const { return ping_; }
  void AskForPing() { ping_ = true; }
  /// The peer is there now: what was sent before may have met nobody, and that says nothing about
  /// the path.
  void OnPeerAppears() {
    ping_ = true;
    timeouts_ = 0;
  }
  /// Copies a piece.
  void Copy(const Piece& piece, std::byte* out) const;
  /// The number for the next packet.
  uint64_t TakeNumber() { return ++number_; }
  /// That packet leaves as a datagram of `bytes`, with this piece or as a ping.
  void OnSent(const Piece& piece, size_t bytes, TimePoint now);

  /// False: it acknowledges what was never sent, and nothing changed.
  bool OnAcks(const Packet& packet, TimePoint now);
  void OnWindow(uint64_t window) { window_ = std::max(window_, window); }
  /// Finds losses that time tells, and lets probes leave when acknowledgements do not come.
  void OnTimer(TimePoint now);
  /// When OnTimer or Next has something to do; the end of time when nothing will.
  TimePoint NextTimer(TimePoint now);
  /// So large may a datagram be from now on.
  void SetDatagramBytes(size_t bytes);
  size_t datagram_bytes() const { return datagram_bytes_; }

  bool in_flight() const { return in_flight_packets_ > 0; }
  /// Time-outs since the last acknowledgement.
  int timeouts() const { return timeouts_; }
  /// Bytes of the longest datagram that arrived.
  size_t longest_acked() const { return longest_acked_; }
  const RttEstimator& rtt() const { return rtt_; }
  const CongestionWindow& window() const { return congestion_; }
  const DeliveryRate& rate() const { return rate_; }
  uint64_t acked_bytes() const { return std::min(una_, written_); }
  /// Packets whose bytes were sent once more.
  uint64_t retransmits() const { return retransmits_; }
  uint64_t spurious() const { return spurious_; }

 private:
  enum class State : uint8_t { kInFlight, kAcked, kLost };
  struct Sent {
    uint64_t number;
    uint64_t begin, end;  // stream positions
    uint32_t bytes;       // of the datagram
    State state;
    bool limited;              // by the window, not by what was written
    bool application_limited;  // for the delivery rate
    TimePoint sent;
    uint64_t delivered;  // when it was sent
    TimePoint delivered_at, first_sent;
  };
  struct Acked;  // what one packet's acknowledgements add up to

  uint64_t limit() const { return written_ + (closed_ ? 1 : 0); }
  bool HasMore() const;
  bool MayLeave() const;
  Piece Cut(uint64_t begin, uint64_t end, size_t bytes) const;
  Piece ProbePiece(size_t bytes) const;
  void OnPacketAcked(Sent& sent, Acked* acked);
  void MeasureRate(const Acked& acked, TimePoint now);
  void FindLosses(TimePoint now);
  TimePoint TimeoutAt() const;
  void Lose(Sent& sent);
  void Forget();

  const size_t capacity_;
  const std::unique_ptr<std::byte[]> ring_;  // stream byte i at i modulo capacity_
  size_t datagram_bytes_;
  uint64_t una_ = 0, next_ = 0, written_ = 0;  // acknowledged up to, sent up to, written up to
  bool closed_ = false;
  uint64_t window_;
  RangeSet acked_;   // beyond una_
  RangeSet resend_;  // lost

  uint64_t number_ = 0, largest_acked_ = 0;
  std::deque<Sent> sent_;  // ascending numbers
  size_t in_flight_packets_ = 0, in_flight_bytes_ = 0, longest_acked_ = 0;
  TimePoint timer_began_{}, loss_at_ = TimePoint::max();
  uint64_t reordering_ = 3;  // packets; RFC 9002 section 6.1.1
  int patience_ = 0;         // and time, see LossDelay
  int timeouts_ = 0;
  int probes_ = 0;  // that may leave whatever the window says
  bool ping_ = false;

  RttEstimator rtt_;
  CongestionWindow congestion_;
  Pacer pacer_;
  uint64_t delivered_ = 0;
  TimePoint delivered_at_{}, first_sent_{};
  uint64_t limited_until_ = 0;  // delivered: up to there the application was what limited
  DeliveryRate rate_;
  uint64_t retransmits_ = 0, spurious_ = 0;
  uint16_t marks_ = 0;  // that the peer has told of
};

}  // namespace weir::udp
