// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/frames.h"

namespace weir::mesh {

// ---- sending

void FrameSender::EncodeNow(Operation* op) {
  op->header.source_rank = static_cast<uint16_t>(self_);
  op->header.payload_bytes = static_cast<uint32_t>(op->payload.size());
  op->body = op->payload;
  if (sealer_) return Seal(op);
  const bool check = checks_payload_ || op->header.type == FrameType::kAbort;
  const uint32_t checksum = check ? Checksum(op->payload) : 0;
  op->header.payload_checksum = checksum ^ (op->corrupt ? 1u : 0u);
  EncodeFrameHeader(op->header, op->wire);
  op->encoded = true;
}

void FrameSender::Seal(Operation* op) {
  const size_t bytes = op->payload.size();
  if (sealer_->encrypts() && bytes > 0) {
    if (!spare_.empty()) {
      op->sealed = std::move(spare_.back());
      spare_.pop_back();
      spare_bytes_ -= op->sealed.size();
    }
    if (op->sealed.size() < bytes) op->sealed.resize(bytes);
    op->body = std::span(op->sealed).first(bytes);
  }
  EncodeFrameHeader(op->header, op->wire, FrameCheck::kTag);
  sealer_->Seal(op->wire, op->payload, std::span(op->sealed).first(op->sealed.empty() ? 0 : bytes),
                &op->tag);
  if (op->corrupt) op->tag[0] ^= std::byte{1};
  op->encoded = true;
}

// Keeps the memory for later frames, because fresh memory costs as much as encrypting into it.
void FrameSender::Spare(Operation* op) {
  constexpr size_t kSpareBytesMax = 8 << 20;
  if (spare_bytes_ + op->sealed.size() > kSpareBytesMax) return;
  spare_bytes_ += op->sealed.size();
  spare_.push_back(std::move(op->sealed));
}

void FrameSender::Forget() {
  TakeBackUnseen();
  queue_ = OperationQueue();
  front_sent_ = 0;
}

void FrameSender::ForgetAllButHalfSent() {
  TakeBackUnseen();
  Operation* const half = front_sent_ > 0 ? queue_.front() : nullptr;
  queue_ = OperationQueue();
  if (half != nullptr) queue_.Push(half);
}

// Takes back the numbers of frames that were sealed but not sent even in part. That is safe because
// no one has seen them, and necessary because the peer counts the frames that arrive.
void FrameSender::TakeBackUnseen() {
  if (sealer_) sealer_->TakeBackTo(first_number_ + frames_left_ + (front_sent_ > 0 ? 1 : 0));
}

// ---- receiving

StatusOr<FrameHeader> FrameReceiver::Decode(
    std::span<const std::byte, kFrameHeaderBytes> bytes) const {
  StatusOr<FrameHeader> header =
      DecodeFrameHeader(bytes, opener_ ? FrameCheck::kTag : FrameCheck::kChecksums);
  if (!header.ok()) return Annotate(header.status(), StrCat(name_, " sent a malformed frame"));
  return header;
}

Status FrameReceiver::Check(const FrameHeader& header) const {
  if (header.source_rank != peer_) {
    return Corrupt(StrCat("a frame that claims to be from rank ", header.source_rank));
  }
  if (header.type == FrameType::kHello) return Corrupt("a second hello");
  if (header.type == FrameType::kProof) return Corrupt("a proof after the handshake");
  if (header.type == FrameType::kAbort && header.payload_bytes > kAbortTextMax) {
    return Corrupt(StrCat("an abort text of ", header.payload_bytes, " bytes; expected at most ",
                          kAbortTextMax));
  }
  return OkStatus();
}

Status FrameReceiver::ReadAbort(const FrameHeader& header, std::span<const std::byte> body) {
  if (opener_) return AbortText(*opener_, header, body);
  if (Checksum(body) != header.payload_checksum) return Corrupt("a corrupt abort frame");
  return Reason(body);
}

Status FrameReceiver::ReadAbortAhead(const FrameHeader& header, std::span<const std::byte> bytes,
                                     std::span<const std::byte> body, uint64_t frames) const {
  if (!opener_) {
    if (Checksum(body) != header.payload_checksum) return Corrupt("a corrupt abort frame");
    return Reason(body);
  }
  WEIR_ASSIGN_OR_RETURN(FrameOpener ahead, opener_->Ahead(frames));
  ahead.Begin(bytes);
  return AbortText(ahead, header, body);
}

Status FrameReceiver::AbortText(FrameOpener& opener, const FrameHeader& header,
                                std::span<const std::byte> body) const {
  std::vector<std::byte> text(body.begin(), body.begin() + header.payload_bytes);
  opener.Update(text);
  if (!opener.Finish(body.last<kFrameTagBytes>())) return Unverified(header);
  return Reason(text);
}

Status FrameReceiver::Reason(std::span<const std::byte> text) const {
  if (text.empty()) return OkStatus();
  return Unavailable(StrCat("rank ", peer_, " reported: ", PrintableText(text)));
}

Status FrameReceiver::TooLong() const {
  return Corrupt(StrCat(header_.payload_bytes, " bytes (", Describe(header_), ") where at most ",
                        target_->buffer.size(), " were expected"));
}

Status FrameReceiver::Conclude(bool* whole, std::span<const std::byte> behind) {
  *whole = rest() == 0 && behind.size() >= trailer_bytes();
  if (!*whole) {
    constexpr size_t kWorthwhile = 64 << 10;
    if (received_ - checked_ >= kWorthwhile) CheckReceived();
    return OkStatus();
  }
  if (opener_) {
    CheckReceived();
    if (!opener_->Finish(behind.first<kFrameTagBytes>())) return Unverified(header_);
  } else if (const uint32_t found = PayloadChecksum(); found != header_.payload_checksum) {
    return Corrupt(StrCat("a corrupt payload (", Describe(header_), ", ", header_.payload_bytes,
                          " bytes): expected checksum ", header_.payload_checksum, ", found ",
                          found));
  }
  target_->header = header_;
  target_->done = true;
  queue_.Pop();
  target_ = nullptr;
  in_frame_ = false;
  return OkStatus();
}

void FrameReceiver::CheckReceived() {
  const std::span<std::byte> fresh = target_->buffer.subspan(checked_, received_ - checked_);
  if (opener_) {
    opener_->Update(fresh);
  } else if (checks_payload_) {
    if (checked_ == 0) checksum_.Reset();
    checksum_.Update(fresh);
  }
  checked_ = received_;
}

// A short frame is checked in one call.
uint32_t FrameReceiver::PayloadChecksum() {
  if (!checks_payload_) return 0;
  if (checked_ == 0) return Checksum(target_->buffer.first(received_));
  CheckReceived();
  return checksum_.Digest();
}

Status FrameReceiver::Unverified(const FrameHeader& header) const {
  return Corrupt(StrCat("a frame that does not verify (", Describe(header), ", ",
                        header.payload_bytes,
                        " bytes): it was changed, repeated, moved or left out on the way"));
}

Status FrameReceiver::Corrupt(const std::string& what) const {
  return DataLoss(StrCat(name_, " sent ", what));
}

Status FrameReceiver::Closed(std::string_view why) const {
  const std::string because = why.empty() ? std::string() : StrCat(" (", why, ")");
  return Unavailable(StrCat(name_, " closed the connection", because));
}

std::string PrintableText(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const std::byte byte : bytes) {
    const auto c = static_cast<char>(byte);
    text += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return text;
}

}  // namespace weir::mesh
