#include "datapath/transport/builtin/tcp/connection.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "datapath/transport/builtin/tcp/hello.h"

namespace weir::tcp {

Connection::Connection(int self, int peer, TransportAddress address, int socket)
    : self_(self),
      peer_(peer),
      socket_(socket),
      name_(StrCat("rank ", peer, " (", address, ")")),
      last_received_(RealClock().Now()),
      last_sent_(last_received_),
      stage_(kStageBytes) {}

void Connection::OnEvents(uint32_t events) {
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable_ = true;
  if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) writable_ = true;
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) hung_up_ = true;
}

Status Connection::Drive(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) {
  if (!sends_.empty() && writable_) WEIR_RETURN_IF_ERROR(DriveSend(now, progress, sent));
  if (readable_ && !ended_) return DriveReceive(now, progress);
  // A frame without payload is whole once its header was read, with nothing staged behind it.
  if (!receives_.empty() && (staged() > 0 || in_frame_)) return Consume();
  return OkStatus();
}

// ---- sending

void Connection::Encode(Operation* op) {
  op->header.source_rank = static_cast<uint16_t>(self_);
  op->header.payload_bytes = static_cast<uint32_t>(op->payload.size());
  // As late as possible: the kernel copies the same bytes next, from a warm cache.
  op->header.payload_checksum = Checksum(op->payload) ^ (op->corrupt ? 1u : 0u);
  EncodeFrameHeader(op->header, op->wire);
  op->encoded = true;
}

Status Connection::DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) {
  size_t turn = 0;
  while (writable_ && !sends_.empty() && turn < kTurnBytes) {
    iovec parts[2 * kBatchFrames];
    size_t count = 0, wanted = 0, skip = front_sent_;
    const auto add = [&](std::span<const std::byte> bytes) {
      const size_t skipped = std::min(skip, bytes.size());
      skip -= skipped;
      if (skipped == bytes.size()) return;
      parts[count++] = {const_cast<std::byte*>(bytes.data()) + skipped, bytes.size() - skipped};
      wanted += bytes.size() - skipped;
    };
    for (Operation* op = sends_.front(); op != nullptr; op = op->next) {
      if (count + 2 > std::size(parts) || wanted >= kTurnBytes) break;
      if (!op->encoded) Encode(op);
      add(op->wire);
      add(op->payload);
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      writable_ = false;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      // The peer is gone; only what it sent before says why.
      broken_ = hung_up_ = true;
      const int error = errno;
      WEIR_RETURN_IF_ERROR(Drain());
      return ended_ ? OkStatus() : OnEnd(error);
    }
    sent->fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    Sent(static_cast<size_t>(n));
    turn += static_cast<size_t>(n);
    last_sent_ = now;
    *progress = true;
    if (static_cast<size_t>(n) < wanted)
      writable_ = false;  // the kernel reports when there is room
  }
  return OkStatus();
}

void Connection::Sent(size_t bytes) {
  front_sent_ += bytes;
  while (!sends_.empty()) {
    Operation* op = sends_.front();
    const size_t frame = kFrameHeaderBytes + op->payload.size();
    if (front_sent_ < frame) return;
    front_sent_ -= frame;
    sends_.Pop();
    op->done = true;
  }
}

void Connection::QueueFarewell(std::string_view text) {
  Operation* partial = front_sent_ > 0 ? sends_.front() : nullptr;
  sends_ = OperationQueue();
  if (partial != nullptr) sends_.Push(partial);
  farewell_text_ = text.substr(0, kAbortTextMax);
  farewell_ = Operation();
  farewell_.header.type = FrameType::kAbort;
  farewell_.payload = std::as_bytes(std::span(farewell_text_));
  sends_.Push(&farewell_);
}

// ---- receiving

Status Connection::DriveReceive(TimePoint now, bool* progress) {
  WEIR_RETURN_IF_ERROR(Consume());
  size_t turn = 0;
  while (readable_ && !ended_ && turn < kTurnBytes) {
    if (in_frame_ && in_.type == FrameType::kData && target_ == nullptr) break;  // nobody asked yet
    size_t bytes = 0;
    WEIR_RETURN_IF_ERROR(ReadOnce(&bytes));
    if (bytes == 0) break;
    turn += bytes;
    last_received_ = now;
    *progress = true;
    WEIR_RETURN_IF_ERROR(Consume());
  }
  if (!hung_up_ || ended_ || turn >= kTurnBytes) return OkStatus();
  WEIR_RETURN_IF_ERROR(Drain());
  return Consume();
}

Status Connection::ReadOnce(size_t* bytes) {
  iovec parts[2];
  int count = 0;
  size_t wanted = 0;
  bool look_ahead = true;
  if (target_ != nullptr) {  // the stage is empty: Consume used it up
    const size_t rest = in_.payload_bytes - received_;
    const size_t piece = std::min(rest, kPieceBytes);
    look_ahead = piece == rest;
    parts[count++] = {target_->buffer.data() + received_, piece};
    wanted = piece;
  }
  const size_t direct = wanted;
  if (look_ahead) {
    if (stage_begin_ > 0) {
      std::memmove(stage_.data(), stage_.data() + stage_begin_, staged());
      stage_end_ -= stage_begin_;
      stage_begin_ = 0;
    }
    parts[count++] = {stage_.data() + stage_end_, stage_.size() - stage_end_};
    wanted += stage_.size() - stage_end_;
  }
  ssize_t n;
  do {
    n = readv(socket_, parts, count);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) {
    readable_ = false;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return OkStatus();
    return OnEnd(n < 0 ? errno : 0);
  }
  *bytes = static_cast<size_t>(n);
  // A short read means an empty socket, unless the stream's end waits behind it.
  if (*bytes < wanted && !hung_up_) readable_ = false;
  received_ += std::min(*bytes, direct);
  stage_end_ += *bytes - std::min(*bytes, direct);
  return OkStatus();
}

Status Connection::Consume() {
  bool more = true;
  while (more) {
    more = false;
    if (!in_frame_) {
      WEIR_RETURN_IF_ERROR(ConsumeHeader(&more));
    } else if (in_.type == FrameType::kData) {
      WEIR_RETURN_IF_ERROR(ConsumePayload(&more));
    } else {
      WEIR_RETURN_IF_ERROR(ConsumeAbort(&more));
    }
  }
  return OkStatus();
}

Status Connection::ConsumeHeader(bool* more) {
  if (staged() < kFrameHeaderBytes) return OkStatus();
  const std::span<const std::byte, kFrameHeaderBytes> bytes(stage_.data() + stage_begin_,
                                                            kFrameHeaderBytes);
  StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) return Annotate(header.status(), StrCat(name_, " sent a malformed frame"));
  if (said_goodbye_) return Corrupt("a frame after its goodbye");
  if (header->source_rank != peer_) {
    return Corrupt(StrCat("a frame that claims to be from rank ", header->source_rank));
  }
  if (header->type == FrameType::kHello) return Corrupt("a second hello");
  if (header->type == FrameType::kAbort && header->payload_bytes > kAbortTextMax) {
    return Corrupt(StrCat("an abort text of ", header->payload_bytes, " bytes; expected at most ",
                          kAbortTextMax));
  }
  stage_begin_ += kFrameHeaderBytes;
  in_ = *header;
  in_frame_ = true;
  received_ = checksummed_ = 0;
  *more = true;
  return OkStatus();
}

Status Connection::ConsumePayload(bool* more) {
  if (target_ == nullptr) {
    if (receives_.empty()) return OkStatus();
    target_ = receives_.front();
    if (in_.payload_bytes > target_->buffer.size()) {
      return Corrupt(StrCat(in_.payload_bytes, " bytes (", Describe(in_), ") where at most ",
                            target_->buffer.size(), " were expected"));
    }
  }
  const size_t copy = std::min(staged(), in_.payload_bytes - received_);
  if (copy > 0 && received_ < in_.payload_bytes) {
    std::memcpy(target_->buffer.data() + received_, stage_.data() + stage_begin_, copy);
    stage_begin_ += copy;
    received_ += copy;
  }
  if (received_ < in_.payload_bytes) {
    UpdateChecksum();
    return OkStatus();
  }
  *more = true;
  return FinishPayload();
}

void Connection::UpdateChecksum() {
  constexpr size_t kWorthwhile = 64 << 10;
  if (received_ - checksummed_ < kWorthwhile) return;
  if (checksummed_ == 0) checksum_.Reset();
  checksum_.Update(target_->buffer.subspan(checksummed_, received_ - checksummed_));
  checksummed_ = received_;
}

Status Connection::FinishPayload() {
  uint32_t found;
  if (checksummed_ == 0) {
    found = Checksum(target_->buffer.first(received_));
  } else {
    checksum_.Update(target_->buffer.subspan(checksummed_, received_ - checksummed_));
    found = checksum_.Digest();
  }
  if (found != in_.payload_checksum) {
    return Corrupt(StrCat("a corrupt payload (", Describe(in_), ", ", in_.payload_bytes,
                          " bytes): expected checksum ", in_.payload_checksum, ", found ", found));
  }
  target_->header = in_;
  target_->done = true;
  receives_.Pop();
  target_ = nullptr;
  in_frame_ = false;
  return OkStatus();
}

Status Connection::ConsumeAbort(bool* more) {
  if (staged() < in_.payload_bytes) return OkStatus();
  const std::span<const std::byte> text(stage_.data() + stage_begin_, in_.payload_bytes);
  if (Checksum(text) != in_.payload_checksum) return Corrupt("a corrupt abort frame");
  stage_begin_ += in_.payload_bytes;
  in_frame_ = false;
  if (text.empty()) {
    departed_ = said_goodbye_ = true;
    *more = true;
    return OkStatus();
  }
  return Unavailable(StrCat("rank ", peer_, " reported: ", PrintableText(text)));
}

// ---- the end of the stream

// Reads everything up to the end of the stream, which has already arrived, so its size is bounded
// by the socket's buffer. Frames of a peer that left in order wait in the stage for their receives.
Status Connection::Drain() {
  while (!ended_) {
    if (stage_.size() - stage_end_ < kStageBytes) {
      if (staged() > kDrainBytesMax) return OnEnd(ENOBUFS);
      stage_.resize(stage_.size() * 2);
    }
    ssize_t n;
    do {
      n = read(socket_, stage_.data() + stage_end_, stage_.size() - stage_end_);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      readable_ = false;
      return OkStatus();
    }
    if (n <= 0) return OnEnd(n < 0 ? errno : 0);
    stage_end_ += static_cast<size_t>(n);
  }
  return OkStatus();
}

// Walks the staged frames to the last one: was it a goodbye, or a reason?
Status Connection::FindEnd() {
  size_t at = stage_begin_;
  if (in_frame_) at += in_.payload_bytes - received_;
  while (at <= stage_end_ && stage_end_ - at >= kFrameHeaderBytes) {
    const std::span<const std::byte, kFrameHeaderBytes> bytes(stage_.data() + at,
                                                              kFrameHeaderBytes);
    const StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
    if (!header.ok()) return Annotate(header.status(), StrCat(name_, " sent a malformed frame"));
    at += kFrameHeaderBytes;
    if (header->type == FrameType::kAbort && stage_end_ - at >= header->payload_bytes) {
      if (header->payload_bytes == 0) {
        if (at != stage_end_) return Corrupt("a frame after its goodbye");
        departed_ = true;
        stage_end_ -= kFrameHeaderBytes;
        return OkStatus();
      }
      stage_begin_ = at;
      in_ = *header;
      bool more = false;
      return ConsumeAbort(&more);
    }
    at += header->payload_bytes;
  }
  return OkStatus();
}

Status Connection::OnEnd(int error) {
  ended_ = true;
  readable_ = writable_ = false;
  broken_ = true;
  if (!departed_) WEIR_RETURN_IF_ERROR(FindEnd());
  if (departed_) return OkStatus();
  if (error == 0) return Unavailable(StrCat(name_, " closed the connection"));
  return Unavailable(StrCat(name_, " closed the connection (", ErrorText(error), ")"));
}

std::string Connection::DescribeWait(const Operation& op, TimePoint now) const {
  const auto seconds = [&](TimePoint then) { return StrCat(ToSeconds(now - then), " s"); };
  if (op.send) {
    return StrCat(name_, " takes no more data: ", op.payload.size(),
                  " bytes to send, last accepted ", seconds(last_sent_), " ago, last received ",
                  seconds(last_received_), " ago");
  }
  return StrCat(
      "no answer from ", name_, ": last received anything ", seconds(last_received_), " ago",
      in_frame_ ? StrCat(", in the middle of a frame of ", in_.payload_bytes, " bytes") : "");
}

}  // namespace weir::tcp
