#include "datapath/transport/mesh/frames.h"

namespace weir::mesh {

// ---- sending

void FrameSender::EncodeHeader(Operation* op) const {
  op->header.source_rank = static_cast<uint16_t>(self_);
  op->header.payload_bytes = static_cast<uint32_t>(op->payload.size());
  const bool check = checks_payload_ || op->header.type == FrameType::kAbort;
  const uint32_t checksum = check ? Checksum(op->payload) : 0;
  op->header.payload_checksum = checksum ^ (op->corrupt ? 1u : 0u);
  EncodeFrameHeader(op->header, op->wire);
  op->encoded = true;
}

void FrameSender::Forget() {
  queue_ = OperationQueue();
  front_sent_ = 0;
}

void FrameSender::ForgetAllButHalfSent() {
  Operation* const half = front_sent_ > 0 ? queue_.front() : nullptr;
  queue_ = OperationQueue();
  if (half != nullptr) queue_.Push(half);
}

// ---- receiving

StatusOr<FrameHeader> FrameReceiver::Decode(
    std::span<const std::byte, kFrameHeaderBytes> bytes) const {
  StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) return Annotate(header.status(), StrCat(name_, " sent a malformed frame"));
  return header;
}

Status FrameReceiver::Check(const FrameHeader& header) const {
  if (header.source_rank != peer_) {
    return Corrupt(StrCat("a frame that claims to be from rank ", header.source_rank));
  }
  if (header.type == FrameType::kHello) return Corrupt("a second hello");
  if (header.type == FrameType::kAbort && header.payload_bytes > kAbortTextMax) {
    return Corrupt(StrCat("an abort text of ", header.payload_bytes, " bytes; expected at most ",
                          kAbortTextMax));
  }
  return OkStatus();
}

Status FrameReceiver::ReadAbort(const FrameHeader& header, std::span<const std::byte> text) const {
  if (Checksum(text) != header.payload_checksum) return Corrupt("a corrupt abort frame");
  if (text.empty()) return OkStatus();
  return Unavailable(StrCat("rank ", peer_, " reported: ", PrintableText(text)));
}

Status FrameReceiver::TooLong() const {
  return Corrupt(StrCat(header_.payload_bytes, " bytes (", Describe(header_), ") where at most ",
                        target_->buffer.size(), " were expected"));
}

Status FrameReceiver::Conclude(bool* whole) {
  *whole = rest() == 0;
  if (!*whole) {
    constexpr size_t kWorthwhile = 64 << 10;
    if (checks_payload_ && received_ - checksummed_ >= kWorthwhile) UpdateChecksum();
    return OkStatus();
  }
  if (const uint32_t found = PayloadChecksum(); found != header_.payload_checksum) {
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

void FrameReceiver::UpdateChecksum() {
  if (checksummed_ == 0) checksum_.Reset();
  checksum_.Update(target_->buffer.subspan(checksummed_, received_ - checksummed_));
  checksummed_ = received_;
}

// A short frame is checked in one go.
uint32_t FrameReceiver::PayloadChecksum() {
  if (!checks_payload_) return 0;
  if (checksummed_ == 0) return Checksum(target_->buffer.first(received_));
  UpdateChecksum();
  return checksum_.Digest();
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
