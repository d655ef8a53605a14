#pragma once
// The receiving half of a link: puts stream bytes in order, within a window of memory, and knows
// what to acknowledge. Pure: times are given.

#include <sys/uio.h>

#include <memory>
#include <optional>

#include "datapath/transport/builtin/udp/congestion.h"
#include "datapath/transport/builtin/udp/packet.h"
#include "datapath/transport/builtin/udp/range_set.h"

namespace weir::udp {

/// Holds at most `buffer_bytes` of the stream and kGapsMax ranges of it. Not thread-safe.
class Receiver {
 public:
  static constexpr size_t kGapsMax = 1024;
  explicit Receiver(size_t buffer_bytes);

  /// Takes what is new in the packet. False: it was here before, or lies beyond the window or the
  /// end; then it is not acknowledged and nothing changed.
  bool OnPacket(const Packet& packet, TimePoint now);

  /// The packet that OnPacket took last came marked: its acknowledgement is urgent. Source:
  /// RFC 9000 section 13.2.1.
  void OnMark() {
    ++marks_;
    if (owes_ack()) ack_at_ = TimePoint::min();
  }

  /// Moves bytes that are in order out; 0 when there are none.
  size_t Read(std::span<const iovec> parts);
  size_t readable() const { return static_cast<size_t>(next_ - read_); }
  /// Everything up to the stream's end has come.
  bool complete() const { return end_.has_value() && next_ == *end_; }
  uint64_t received() const { return next_; }

  /// The stream offset below which the peer may send.
  uint64_t window() const { return read_ + capacity_; }
  /// The peer knows a window that is much smaller than it could be.
  bool owes_window() const { return !end_ && window() - told_window_ >= capacity_ / 4; }

  /// Something wants to be acknowledged.
  bool owes_ack() const { return unacknowledged_ > 0; }
  /// When, at the latest; the end of time when nothing does.
  TimePoint ack_at() const { return ack_at_; }
  size_t ack_count() const { return numbers_.size(); }
  /// Writes acknowledgements and window.
  void Tell(TimePoint now, Packet* packet);
  /// That packet is repeated until it arrives: the peer will know the window.
  void ToldForSure() { told_window_ = window(); }

 private:
  void NoteNumber(uint64_t number);
  bool Fits(const Packet& packet) const;
  void Store(uint64_t offset, std::span<const std::byte> bytes);
  void Owe(const Packet& packet, bool follows, TimePoint now);

  const size_t capacity_;
  const std::unique_ptr<std::byte[]> ring_;  // stream byte i at i modulo capacity_
  uint64_t read_ = 0, next_ = 0;             // read_ <= next_: what is in order
  std::optional<uint64_t> end_;
  RangeSet beyond_;  // stream bytes behind a gap
  uint64_t told_window_;

  RangeSet numbers_;        // of packets that came; the newest ranges
  uint64_t forgotten_ = 0;  // numbers up to here are in no range any more
  TimePoint largest_came_{};
  size_t unacknowledged_ = 0;
  uint16_t marks_ = 0;
  TimePoint ack_at_ = TimePoint::max();
};

}  // namespace weir::udp
