#include "datapath/transport/builtin/udp/receiver.h"

#include <algorithm>
#include <cstring>

namespace weir::udp {

Receiver::Receiver(size_t buffer_bytes)
    : capacity_(buffer_bytes),
      ring_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)),
      told_window_(buffer_bytes) {}

// ---- arriving

bool Receiver::OnPacket(const Packet& packet, TimePoint now) {
  if (packet.number <= forgotten_ || numbers_.Contains(packet.number)) return false;
  if (!Fits(packet)) return false;
  const uint64_t largest = numbers_.empty() ? forgotten_ : numbers_.back().end - 1;
  if (packet.number > largest) largest_came_ = now;
  NoteNumber(packet.number);
  if (packet.end) end_ = packet.offset + packet.payload.size();
  if (!packet.payload.empty()) Store(packet.offset, packet.payload);
  if (packet.eliciting()) Owe(packet, packet.number == largest + 1, now);
  return true;
}

bool Receiver::Fits(const Packet& packet) const {
  const uint64_t end = packet.offset + packet.payload.size();
  if (!packet.payload.empty() && end > window()) return false;
  if (end_.has_value() && (end > *end_ || (packet.end && end != *end_))) return false;
  if (!end_.has_value() && packet.end) {
    if (end < next_ || (!beyond_.empty() && end < beyond_.back().end)) return false;
  }
  return packet.payload.empty() || packet.offset <= next_ ||
         beyond_.SizeWith(packet.offset, end) <= kGapsMax;
}

void Receiver::NoteNumber(uint64_t number) {
  numbers_.Add(number, number + 1);
  if (numbers_.size() <= kAckRangesMax) return;
  forgotten_ = numbers_.front().end - 1;
  numbers_.PopFront();
}

void Receiver::Store(uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  if (end <= next_) return;
  if (offset < next_) {  // the beginning is here, and perhaps read already
    bytes = bytes.subspan(static_cast<size_t>(next_ - offset));
    offset = next_;
  }
  const size_t at = static_cast<size_t>(offset % capacity_);
  const size_t first = std::min(bytes.size(), capacity_ - at);
  std::memcpy(ring_.get() + at, bytes.data(), first);
  if (first < bytes.size()) std::memcpy(ring_.get(), bytes.data() + first, bytes.size() - first);
  if (offset > next_) {
    beyond_.Add(offset, end);
    return;
  }
  next_ = end;
  while (!beyond_.empty() && beyond_.front().begin <= next_) {
    next_ = std::max(next_, beyond_.front().end);
    beyond_.PopFront();
  }
}

// Every second packet is acknowledged, and what tells of a loss or an end at once: the sender
// learns of the gap from it. Source: RFC 9000 section 13.2.
void Receiver::Owe(const Packet& packet, bool follows, TimePoint now) {
  ++unacknowledged_;
  if (unacknowledged_ >= 2 || !follows || packet.end || packet.ping || !beyond_.empty()) {
    ack_at_ = TimePoint::min();
  } else if (ack_at_ == TimePoint::max()) {
    ack_at_ = now + kAckDelayMax;
  }
}

// ---- reading and telling

size_t Receiver::Read(std::span<const iovec> parts) {
  size_t total = 0;
  for (const iovec& part : parts) {
    size_t done = 0;
    while (done < part.iov_len && readable() > 0) {
      const size_t at = static_cast<size_t>(read_ % capacity_);
      const size_t bytes = std::min({part.iov_len - done, readable(), capacity_ - at});
      std::memcpy(static_cast<std::byte*>(part.iov_base) + done, ring_.get() + at, bytes);
      read_ += bytes;
      done += bytes;
    }
    total += done;
  }
  return total;
}

void Receiver::Tell(TimePoint now, Packet* packet) {
  packet->window = window();
  packet->marks = marks_;
  packet->ack_count = 0;
  packet->ack_delay_us = 0;
  if (!owes_ack()) return;
  for (size_t i = numbers_.size(); i-- > 0;) {
    const RangeSet::Range& range = numbers_.ranges()[i];
    if (packet->ack_count > 0) {
      const uint64_t gap = packet->acks[packet->ack_count - 1].first - range.end;
      if (gap > UINT32_MAX) break;
    }
    uint64_t first = range.begin;
    if (range.end - first > UINT32_MAX) first = range.end - UINT32_MAX;
    packet->acks[packet->ack_count++] = {first, range.end - 1};
    if (first != range.begin) break;
  }
  const auto delay = std::chrono::duration_cast<std::chrono::microseconds>(now - largest_came_);
  packet->ack_delay_us = static_cast<uint32_t>(
      std::clamp<int64_t>(delay.count(), 0, std::chrono::microseconds(1000000).count()));
  unacknowledged_ = 0;
  ack_at_ = TimePoint::max();
}

}  // namespace weir::udp
