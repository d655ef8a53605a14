// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/worker.h"

#include <algorithm>
#include <limits>

#include "datapath/base/check.h"

namespace weir::aggregation {
namespace {

// A reply that takes eight times as long as usual will not come: retransmissions, which double
// their time-out, have been sent three times by then.
constexpr int kSilentRoundTrips = 8;
// How late a reply may be after the replies to later packets have come, as a part of the smoothed
// round trip. Source: RFC 8985 (RACK), section 6.2, which takes a quarter of the least round trip.
constexpr int kReorderingPart = 4;

}  // namespace

Worker::Worker(const Lease& lease, const TimeoutLimits& limits, int rank)
    : lease_(lease),
      rank_(rank),
      first_timeout_(limits.first),
      round_trip_(limits),
      window_(static_cast<double>(lease.slots)),
      threshold_(window_),
      flights_(lease.slots),
      next_rounds_(lease.slots),
      line_(lease.slots),
      buffer_(kPacketBytesMax) {}

Status Worker::Start(uint32_t operation, TimePoint deadline) {
  if (!status_.ok()) {
    return FailedPrecondition(StrCat("rank ", rank_, ": lease ", lease_.id, " epoch ", lease_.epoch,
                                     " is spent: ", Message(status_)));
  }
  if (!done()) {
    return FailedPrecondition(StrCat("rank ", rank_, ": operation ", operation_, " still runs"));
  }
  operation_ = operation;
  deadline_ = deadline;
  answered_ = 0;
  heard_at_.reset();
  return OkStatus();
}

void Worker::Launch(size_t slot, uint64_t index) {
  Flight& flight = flights_[slot];
  WEIR_CHECK(!flight.waiting);
  if (next_rounds_[slot] == std::numeric_limits<uint32_t>::max()) {
    return Fail(ResourceExhausted(StrCat("rank ", rank_, ": lease ", lease_.id, " epoch ",
                                         lease_.epoch, " has no rounds left, take another epoch")));
  }
  flight = {
      .index = index, .round = next_rounds_[slot]++, .waiting = true, .in_line = flight.in_line};
  ++waiting_;
  Queue(slot);
}

void Worker::Queue(size_t slot) {
  if (flights_[slot].in_line) return;
  flights_[slot].in_line = true;
  WEIR_CHECK(line_size_ < line_.size());
  line_[(line_head_ + line_size_++) % line_.size()] = static_cast<uint16_t>(slot);
}

std::span<const std::byte> Worker::NextPacket(TimePoint now) {
  while (status_.ok() && line_size_ > 0 && static_cast<double>(under_way_) < window_) {
    const uint16_t slot = line_[line_head_];
    line_head_ = (line_head_ + 1) % line_.size();
    --line_size_;
    Flight& flight = flights_[slot];
    flight.in_line = false;
    if (!flight.waiting) continue;  // the reply came while it was queued to be sent again
    PacketHeader header = RequestHeader(lease_);
    header.slot = slot;
    header.round = flight.round;
    header.operation = operation_;
    header.offset = static_cast<uint32_t>(flight.index);
    Build(flight.index, &header, std::span(buffer_).subspan(kPacketHeaderBytes));
    flight.offset = header.offset;
    EncodePacketHeader(header, std::span(buffer_).first<kPacketHeaderBytes>());
    const std::span<std::byte> packet =
        std::span(buffer_).first(kPacketHeaderBytes + PayloadBytes(header));
    if (lease_.checked) SealPacket(packet);
    flight.sent = true;
    ++under_way_;
    flight.sent_at = now;
    flight.expires_at = now + round_trip_.timeout();
    ++counters_.sent;
    if (flight.resent) ++counters_.resent;
    return packet;
  }
  return {};
}

void Worker::OnPacket(std::span<const std::byte> datagram, TimePoint now) {
  if (done()) {
    ++counters_.unexpected;
    return;
  }
  const StatusOr<Packet> packet = DecodePacket(datagram);
  if (!packet.ok() || !Fits(lease_, packet->header) || (packet->header.flags & kPacketReply) == 0) {
    ++counters_.malformed;
    return;
  }
  const PacketHeader& h = packet->header;
  const Flight& flight = flights_[h.slot];
  // A reply to a packet that was never sent may be forged and is ignored, unless rounds may end
  // without this worker. Then the reply of the others may come while this worker's packet is
  // queued, and asking for it again may be slow. Only then is `offset` unset, and the index stands
  // for it.
  const bool others_may_end_it = lease_.cutoff > Duration::zero();
  const uint32_t offset = flight.sent ? flight.offset : static_cast<uint32_t>(flight.index);
  if (!flight.waiting || (!flight.sent && !others_may_end_it) || h.round != flight.round ||
      h.operation != operation_ || h.offset != offset) {
    ++counters_.unexpected;
    return;
  }
  OnReply(*packet, now);
}

void Worker::OnReply(const Packet& packet, TimePoint now) {
  const PacketHeader& h = packet.header;
  Flight& flight = flights_[h.slot];
  const uint64_t index = flight.index;
  const bool notice = (h.flags & kPacketNotice) != 0;
  if (notice && h.detail == static_cast<uint32_t>(Notice::kMismatch)) {
    return Fail(FailedPrecondition(
        StrCat("rank ", rank_, ": the others sum another operation or offset than ", Describe(h))));
  }
  if (!notice && !flight.resent && !flight.in_line) {
    round_trip_.OnSample(now - flight.sent_at);
    overtaken_at_ = std::max(overtaken_at_, flight.sent_at);
  }
  ++(notice ? counters_.expired : counters_.replies);
  heard_at_ = now;
  EndWait(&flight);
  GrowWindow();
  ++answered_;
  const Status accepted = notice ? AcceptLoss(index) : Accept(index, packet);
  if (!accepted.ok()) Fail(accepted);
}

Status Worker::AcceptLoss(uint64_t index) {
  return DataLoss(StrCat("rank ", rank_, ": the aggregator has forgotten the round of packet ",
                         index, " of operation ", operation_));
}

void Worker::SkipTo(size_t slot, uint32_t next_round) {
  if (flights_[slot].waiting) EndWait(&flights_[slot]);
  next_rounds_[slot] = next_round;
}

void Worker::EndWait(Flight* flight) {
  if (!flight->in_line) --under_way_;
  flight->waiting = false;
  --waiting_;
}

// A window that gets no reply at all shrinks too, but is soon as large again: the aggregator or
// another worker may just have been away.
void Worker::OnExpiry(TimePoint now) {
  if (!round_trip_.OnExpiry(now, window_ <= 1)) return;
  const uint64_t resent = counters_.resent - resent_at_expiry_;
  const bool in_vain = resent > 0 && counters_.unexpected - unexpected_at_expiry_ > resent / 2;
  const bool silent = counters_.replies == replies_at_expiry_;
  resent_at_expiry_ = counters_.resent;
  unexpected_at_expiry_ = counters_.unexpected;
  replies_at_expiry_ = counters_.replies;
  if (!in_vain && !silent) return;
  window_ = std::max(1.0, window_ / 2);
  if (in_vain) threshold_ = window_;
}

void Worker::GrowWindow() {
  if (!round_trip_.Fits()) return;
  window_ = std::min(static_cast<double>(flights_.size()),
                     window_ + (window_ < threshold_ ? 1 : 1 / window_));
}

void Worker::Fail(const Status& status) { status_ = status; }

std::optional<TimePoint> Worker::SilentAt() const {
  if (silence_floor_ == Duration::zero() || !heard_at_.has_value()) return std::nullopt;
  const Duration smoothed = round_trip_.smoothed();
  const Duration usual = smoothed == Duration::zero() ? first_timeout_ : smoothed;
  return *heard_at_ + std::max(silence_floor_, kSilentRoundTrips * usual);
}

std::string Worker::DescribeWait() const {
  const auto waits = std::find_if(flights_.begin(), flights_.end(),
                                  [](const Flight& flight) { return flight.waiting; });
  WEIR_CHECK(waits != flights_.end());  // holds because the operation is not done
  return StrCat("rank ", rank_, ": no reply from the aggregator to lease ", lease_.id,
                " operation ", operation_, " slot ", waits - flights_.begin(), " round ",
                waits->round, " for ",
                answered_ == 0 ? "any packet" : StrCat("this packet after ", answered_, " others"));
}

// All workers send in the same order, so a slow worker delays all replies alike. A reply to a later
// packet therefore shows that this packet, or another worker's part of it, is lost. When nothing
// gets through, there are no later replies, and the time-out decides.
TimePoint Worker::LostAt(const Flight& flight) const {
  if (flight.sent_at >= overtaken_at_) return flight.expires_at;
  const Duration smoothed = round_trip_.smoothed();
  return std::min(flight.expires_at, flight.sent_at + smoothed + smoothed / kReorderingPart);
}

std::optional<TimePoint> Worker::NextTimer() const {
  if (done()) return std::nullopt;
  TimePoint next = std::min(deadline_, SilentAt().value_or(deadline_));
  for (const Flight& flight : flights_) {
    if (flight.waiting && !flight.in_line) next = std::min(next, LostAt(flight));
  }
  return next;
}

void Worker::OnTimer(TimePoint now) {
  if (done()) return;
  if (now >= deadline_) return Fail(DeadlineExceeded(DescribeWait()));
  if (!heard_at_.has_value()) heard_at_ = now;
  if (const auto silent_at = SilentAt(); silent_at.has_value() && now >= *silent_at) {
    if (answered_ > 0 && GiveUp()) return;
    return Fail(
        Unavailable(StrCat(DescribeWait(), "; silent for ", ToSeconds(now - *heard_at_), " s")));
  }
  bool expired = false;
  for (size_t slot = 0; slot < flights_.size(); ++slot) {
    Flight& flight = flights_[slot];
    if (!flight.waiting || flight.in_line || now < LostAt(flight)) continue;
    expired = expired || now >= flight.expires_at;
    flight.resent = true;
    Queue(slot);
    --under_way_;
  }
  if (expired) OnExpiry(now);
}

Status ChunkWorker::StartChunks(const Plan& plan) {
  constexpr uint64_t kPacketsMax = std::numeric_limits<uint32_t>::max();
  if (plan.packets > kPacketsMax || plan.lag > slots()) {
    return InvalidArgument(StrCat("operation ", plan.operation, ": at most ", kPacketsMax,
                                  " packets and lag ", slots(), ", found ", plan.packets, " and ",
                                  plan.lag));
  }
  WEIR_RETURN_IF_ERROR(Start(plan.operation, plan.deadline));
  plan_ = plan;
  received_.assign(plan.packets, false);
  first_rounds_.clear();
  for (size_t slot = 0; slot < slots(); ++slot) first_rounds_.push_back(NextRound(slot));
  for (uint64_t index = 0; index < std::min<uint64_t>(plan.packets, slots()); ++index) {
    LaunchIfReady(index);
  }
  return OkStatus();
}

void ChunkWorker::LaunchIfReady(uint64_t index) {
  if (index >= plan_.packets || received_[index] || Waiting(index % slots())) return;
  if (index >= slots() && !received_[index - slots()]) return;
  if (plan_.lag > 0 && index >= plan_.lag && !received_[index - plan_.lag]) return;
  Launch(index % slots(), index);
}

void ChunkWorker::LaunchAfter(uint64_t index) {
  received_[index] = true;
  LaunchIfReady(index + slots());
  if (plan_.lag > 0 && plan_.lag < slots()) LaunchIfReady(index + plan_.lag);
}

Status ChunkWorker::Accept(uint64_t index, const Packet& packet) {
  WEIR_RETURN_IF_ERROR(AcceptChunk(index, packet));
  LaunchAfter(index);
  return OkStatus();
}

Status ChunkWorker::AcceptLoss(uint64_t index) {
  WEIR_RETURN_IF_ERROR(AcceptChunkLoss(index));
  LaunchAfter(index);
  return OkStatus();
}

bool ChunkWorker::GiveUp() {
  if (lease().cutoff == Duration::zero()) return false;
  for (size_t slot = 0; slot < slots(); ++slot) {
    const uint64_t further = plan_.packets > slot ? (plan_.packets - slot - 1) / slots() + 1 : 0;
    if (further > std::numeric_limits<uint32_t>::max() - first_rounds_[slot]) return false;
    SkipTo(slot, first_rounds_[slot] + static_cast<uint32_t>(further));
  }
  for (uint64_t index = 0; index < plan_.packets; ++index) {
    if (received_[index]) continue;
    received_[index] = true;
    if (!AcceptChunkLoss(index).ok()) return false;
  }
  return true;
}

}  // namespace weir::aggregation
