// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/stream.h"

#include <algorithm>
#include <cstring>

#include "datapath/transport/mesh/hello.h"

namespace weir::verbs {

Stream::Stream(Options options, MessagePort* port, FrameChannel channel)
    : Peer(options.self, options.peer, options.address, true, std::move(channel)),
      options_(std::move(options)),
      port_(port),
      credit_batch_((options_.ours.slots + kCreditMessagesMax - 1) / kCreditMessagesMax),
      last_heard_(RealClock().Now()),
      last_probe_(last_heard_),
      credits_(options_.theirs.slots),
      sent_bytes_(options_.send_slots) {
  WEIR_CHECK(options_.send_slots >= kSendSlotsMin && options_.ours.slots >= kSlotsMin);
}

// Both sides compute this, so a receiver knows the size of every piece before it arrives.
size_t Stream::PieceMax() const {
  return std::min(options_.ours.slot_bytes, options_.theirs.slot_bytes);
}

Status Stream::Drive(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) {
  WEIR_RETURN_IF_ERROR(Deliver(progress));
  if (!out().empty()) WEIR_RETURN_IF_ERROR(DriveSend(now, progress, sent));
  return ReturnCredits();
}

// ---- sending

Status Stream::DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) {
  while (!out().empty() && credits_ > 0 && !ended_ && !departed() &&
         outstanding() + kReservedSendSlots < options_.send_slots) {
    WEIR_RETURN_IF_ERROR(SendPiece(out().front(), sent));
    NoteSent(now);
    *progress = true;
  }
  return OkStatus();
}

Status Stream::SendPiece(mesh::Operation* op, std::atomic<uint64_t>* sent) {
  out().Encode(op);
  const std::span<std::byte> slot = port_->SendSlot(posted_ % options_.send_slots);
  const std::span<const std::byte> parts[] = {op->wire, op->body,
                                              std::span(op->tag).first(out().trailer_bytes())};
  size_t bytes = 0, skip = out().front_sent();
  for (const std::span<const std::byte> part : parts) {
    const size_t skipped = std::min(skip, part.size());
    const size_t size = std::min(part.size() - skipped, PieceMax() - bytes);
    if (size > 0) std::memcpy(slot.data() + bytes, part.data() + skipped, size);
    skip -= skipped;
    bytes += size;
  }
  WEIR_RETURN_IF_ERROR(Post(bytes, MessageKind::kData, false));
  --credits_;
  sent->fetch_add(bytes, std::memory_order_relaxed);
  out().Sent(bytes);
  return OkStatus();
}

// Every message carries the credits that the peer has not been told yet.
Status Stream::Post(size_t bytes, MessageKind kind, bool last) {
  const auto slot = static_cast<uint32_t>(posted_ % options_.send_slots);
  // Messages are signaled often enough that a completion is always due when all send slots are
  // used.
  const bool signaled = last || ++unsignaled_ >= options_.send_slots / 4;
  if (signaled) unsignaled_ = 0;
  sent_bytes_[slot] = static_cast<uint32_t>(bytes);
  const Status status = port_->Send(slot, bytes, Immediate(kind, freed_), signaled);
  if (!status.ok()) return Annotate(status, StrCat("sending to ", name()));
  freed_ = 0;
  ++posted_;
  return OkStatus();
}

Status Stream::ReturnCredits() {
  if (freed_ < credit_batch_ || ended_ || departed()) return OkStatus();
  if (outstanding() + 1 >= options_.send_slots)
    return OkStatus();  // the last slot is reserved for the shutdown notice
  return Post(0, MessageKind::kCredits, false);
}

void Stream::OnSent(uint32_t slot, TimePoint now) {
  const auto slots = options_.send_slots;
  const uint64_t last = done_ + (slot + slots - done_ % slots) % slots + 1;
  if (last > posted_) return;  // no such message is in flight
  uint64_t bytes = 0;
  for (; done_ < last; ++done_) bytes += sent_bytes_[done_ % slots];
  acked_.fetch_add(bytes, std::memory_order_relaxed);
  last_heard_ = now;
}

Status Stream::ProbeIfSilent(TimePoint now, Duration silence) {
  if (ended_ || departed() || now - std::max(last_heard_, last_probe_) < silence) return OkStatus();
  if (outstanding() + kReservedSendSlots >= options_.send_slots) return OkStatus();
  last_probe_ = now;
  const auto slot = static_cast<uint32_t>(posted_ % options_.send_slots);
  sent_bytes_[slot] = 0;
  unsignaled_ = 0;
  WEIR_RETURN_IF_ERROR(port_->Probe(slot));
  ++posted_;
  return OkStatus();
}

Status Stream::QueueShutdownNotice(std::string_view text) {
  out().Forget();
  if (ended_ || departed() || outstanding() >= options_.send_slots) return OkStatus();
  const std::vector<std::byte> frame = mesh::EncodeAbort(options_.self, text, out().sealer());
  std::copy(frame.begin(), frame.end(), port_->SendSlot(posted_ % options_.send_slots).begin());
  return Post(frame.size(), MessageKind::kShutdownNotice, true);
}

// ---- receiving

Status Stream::OnMessage(uint32_t slot, size_t bytes, uint32_t immediate, TimePoint now) {
  NoteReceived(now);
  last_heard_ = now;
  if (departed()) return in().Corrupt("a message after its shutdown notice");
  credits_ += immediate & 0xffff;
  if (credits_ > options_.theirs.slots) {
    return in().Corrupt(StrCat("credits for ", credits_, " slots; it has ", options_.theirs.slots));
  }
  switch (immediate >> 16) {
    case static_cast<uint32_t>(MessageKind::kData):
      if (held_slots_ >= options_.ours.slots) {
        return in().Corrupt(StrCat("more than the ", options_.ours.slots, " messages it may"));
      }
      received_total_.fetch_add(bytes, std::memory_order_relaxed);
      held_.push_back({slot, static_cast<uint32_t>(bytes), nullptr});
      ++held_slots_;
      return OkStatus();
    case static_cast<uint32_t>(MessageKind::kCredits):
      if (bytes != 0) return in().Corrupt(StrCat("credits with ", bytes, " bytes; expected none"));
      return port_->Receive(slot);
    case static_cast<uint32_t>(MessageKind::kShutdownNotice):
      return OnShutdownNotice(port_->ReceiveSlot(slot).first(bytes));
    default:
      return in().Corrupt(StrCat("a message of unknown kind ", immediate >> 16));
  }
}

StatusOr<FrameHeader> Stream::ReadHeader(std::span<const std::byte> bytes) const {
  if (bytes.size() < kFrameHeaderBytes) {
    return in().Corrupt(StrCat("the beginning of a frame in ", bytes.size(),
                               " bytes; expected at least ", kFrameHeaderBytes));
  }
  WEIR_ASSIGN_OR_RETURN(const FrameHeader header, in().Decode(bytes.first<kFrameHeaderBytes>()));
  WEIR_RETURN_IF_ERROR(in().Check(header));
  return header;
}

// A shutdown notice is handled on arrival. A reason must not wait behind frames without a receive,
// and after an orderly notice only the messages held here can still be delivered.
Status Stream::OnShutdownNotice(std::span<const std::byte> frame) {
  WEIR_ASSIGN_OR_RETURN(const FrameHeader header, ReadHeader(frame));
  const std::span<const std::byte> body = frame.subspan(kFrameHeaderBytes);
  if (header.type != FrameType::kAbort ||
      header.payload_bytes + in().trailer_bytes() != body.size()) {
    return in().Corrupt("a corrupt abort frame");
  }
  WEIR_ASSIGN_OR_RETURN(const uint64_t frames, FramesHeld());
  const Status status = in().ReadAbortAhead(header, frame.first<kFrameHeaderBytes>(), body, frames);
  if (status.code() != StatusCode::kDataLoss) Depart();
  return status;
}

// How many frames begin in the messages that are held here. Only tags depend on it.
StatusOr<uint64_t> Stream::FramesHeld() {
  uint64_t frames = 0;
  size_t rest = in().in_frame() ? FrontRest() : 0;
  for (const Held& piece : held_) {
    if (in().trailer_bytes() == 0) break;
    if (rest == 0) {
      WEIR_ASSIGN_OR_RETURN(const FrameHeader header, ReadHeader(BytesOf(piece)));
      rest = kFrameHeaderBytes + header.payload_bytes + in().trailer_bytes();
      ++frames;
    }
    rest -= std::min<size_t>(rest, piece.bytes);
  }
  return frames;
}

// Bytes of the frame that comes in, from the first held piece on.
size_t Stream::FrontRest() const {
  return front_offset_ + in().rest() + in().trailer_bytes() - tag_bytes_;
}

Status Stream::Deliver(bool* progress) {
  while (!held_.empty()) {
    if (!in().in_frame()) WEIR_RETURN_IF_ERROR(BeginFrame(held_.front()));
    WEIR_RETURN_IF_ERROR(in().Aim());
    if (!in().aimed()) return Spill();
    WEIR_RETURN_IF_ERROR(TakePiece());
    *progress = true;
  }
  return OkStatus();
}

std::span<const std::byte> Stream::BytesOf(const Held& piece) {
  if (piece.copy) return {piece.copy.get(), piece.bytes};
  return port_->ReceiveSlot(piece.slot).first(piece.bytes);
}

// Lets the slot of `piece` receive again, unless no more messages can arrive.
Status Stream::Release(const Held& piece) {
  --held_slots_;
  ++freed_;
  return ended_ || departed() ? OkStatus() : port_->Receive(piece.slot);
}

// Moves pieces without a receive out of their slots. Otherwise ranks that each send hundreds of
// small frames before they receive would wait for each other for ever, although little memory is
// enough to avoid it.
Status Stream::Spill() {
  if (held_slots_ * 2 < options_.ours.slots) return OkStatus();
  uint32_t left = held_slots_;
  for (auto piece = held_.rbegin(); left > 0; ++piece) {  // the newest are in slots
    if (piece->copy) continue;
    --left;
    if (spilled_bytes_ + piece->bytes > kSpillBytesMax) continue;
    auto copy = std::make_unique<std::byte[]>(piece->bytes);
    std::memcpy(copy.get(), BytesOf(*piece).data(), piece->bytes);
    spilled_bytes_ += piece->bytes;
    WEIR_RETURN_IF_ERROR(Release(*piece));
    piece->copy = std::move(copy);
  }
  return OkStatus();
}

Status Stream::BeginFrame(const Held& piece) {
  WEIR_ASSIGN_OR_RETURN(const FrameHeader header, ReadHeader(BytesOf(piece)));
  if (header.type == FrameType::kAbort) return in().Corrupt("an abort frame among its data");
  in().Begin(header, BytesOf(piece).first<kFrameHeaderBytes>());
  front_offset_ = kFrameHeaderBytes;
  return OkStatus();
}

Status Stream::TakePiece() {
  const Held& piece = held_.front();
  const size_t expected = std::min(FrontRest(), PieceMax());
  if (piece.bytes != expected) {
    return in().Corrupt(StrCat("a piece of ", piece.bytes, " bytes in a frame of ",
                               in().header().payload_bytes, "; expected ", expected));
  }
  std::span<const std::byte> bytes = BytesOf(piece).subspan(front_offset_);
  const size_t size = std::min(bytes.size(), in().rest());
  if (size > 0) std::memcpy(in().room(), bytes.data(), size);
  in().Advance(size);
  bytes = bytes.subspan(size);
  std::copy(bytes.begin(), bytes.end(), tag_.begin() + tag_bytes_);
  tag_bytes_ += bytes.size();
  front_offset_ = 0;
  if (piece.copy) {
    spilled_bytes_ -= piece.bytes;
  } else {
    WEIR_RETURN_IF_ERROR(Release(piece));
  }
  held_.pop_front();
  bool whole = false;
  WEIR_RETURN_IF_ERROR(in().Conclude(&whole, std::span(tag_).first(tag_bytes_)));
  if (whole) tag_bytes_ = 0;
  return OkStatus();
}

// ---- the end

Status Stream::OnEnd(std::string_view why) {
  ended_ = true;
  if (departed()) return OkStatus();
  return in().Closed(why);
}

}  // namespace weir::verbs
