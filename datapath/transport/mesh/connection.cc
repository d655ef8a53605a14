// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/connection.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {

Connection::Connection(int self, int peer, const TransportAddress& address, ByteStream& stream,
                       FrameChannel channel)
    : Peer(self, peer, address, stream.checks_payload(), std::move(channel)),
      stream_(stream),
      look_ahead_(kLookAheadBytes) {}

void Connection::OnEvents(uint32_t events) {
  events = stream_.OnEvents(events);
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable_ = true;
  if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) writable_ = true;
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) hung_up_ = true;
}

Status Connection::Drive(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) {
  if (!out().empty() || out().holds()) WEIR_RETURN_IF_ERROR(DriveSend(now, progress, sent));
  if (!ended_ && (readable_ || stream_.Readable())) {
    readable_ = true;
    const Status status = DriveReceive(now, progress);
    stream_.TurnEnds();
    return status;
  }
  // A frame without payload is whole once its header was read, with no bytes buffered behind it.
  if (!in().empty() && (staged() > 0 || in().in_frame())) return Consume();
  return OkStatus();
}

Status Connection::TryReceive(TimePoint now, bool* progress) {
  if (ended_ || !WantsBytes()) return OkStatus();
  readable_ = true;
  return DriveReceive(now, progress);
}

// ---- sending

Status Connection::DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) {
  if (out().holds()) out().Release(stream_.Retained());
  if (!CanWrite()) return OkStatus();
  size_t turn = 0;
  while (writable_ && !out().empty() && turn < kTurnBytes) {
    iovec parts[3 * kBatchFrames];
    size_t count = 0, wanted = 0, skip = out().front_sent();
    const auto add = [&](std::span<const std::byte> bytes) {
      const size_t skipped = std::min(skip, bytes.size());
      skip -= skipped;
      if (skipped == bytes.size()) return;
      parts[count++] = {const_cast<std::byte*>(bytes.data()) + skipped, bytes.size() - skipped};
      wanted += bytes.size() - skipped;
    };
    for (Operation* op = out().front(); op != nullptr; op = op->next) {
      if (count + 3 > std::size(parts) || wanted >= kTurnBytes) break;
      out().Encode(op);
      add(op->wire);
      add(op->body);
      if (out().trailer_bytes() > 0) add(op->tag);
    }
    const ssize_t n = stream_.Write(std::span(parts, count));
    if (n < 0) {
      writable_ = false;
      if (n == -EAGAIN) break;
      // The peer is gone. The reason can only be in what it sent before.
      broken_ = hung_up_ = true;
      WEIR_RETURN_IF_ERROR(Drain());
      return ended_ ? OkStatus() : OnEnd(static_cast<int>(-n));
    }
    sent->fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    out().Sent(static_cast<size_t>(n), stream_.Retained());
    turn += static_cast<size_t>(n);
    NoteSent(now);
    *progress = true;
    if (static_cast<size_t>(n) < wanted)
      writable_ = false;  // the kernel reports when there is room
  }
  return OkStatus();
}

Status Connection::QueueShutdownNotice(std::string_view text) {
  out().ForgetAllButHalfSent();
  shutdown_notice_text_ = text.substr(0, kAbortTextMax);
  shutdown_notice_ = Operation();
  shutdown_notice_.header.type = FrameType::kAbort;
  shutdown_notice_.payload = std::as_bytes(std::span(shutdown_notice_text_));
  PostSend(&shutdown_notice_);
  return OkStatus();
}

// One silent check is not enough, because the unanswered request may just have been sent: with a
// closed window the kernel sends one only every two minutes.
Status Connection::CheckHost(Duration least) {
  if (ended_) return OkStatus();
  constexpr int kRoundTrips = 10;
  const auto [lasts, round_trip] = stream_.HostSilence();
  const Duration allowed = std::max(least, kRoundTrips * round_trip);
  const bool silent = lasts > allowed;
  if (!std::exchange(suspected_, silent) || !silent) return OkStatus();
  return Unavailable(
      StrCat(in().name(), " gives no sign of life: its host has answered nothing for ",
             ToSeconds(lasts), " s, ", ToSeconds(allowed),
             " s were allowed; an answer usually takes ", ToSeconds(round_trip), " s"));
}

// ---- receiving

Status Connection::DriveReceive(TimePoint now, bool* progress) {
  WEIR_RETURN_IF_ERROR(Consume());
  size_t turn = 0;
  while (readable_ && !ended_ && turn < kTurnBytes) {
    const bool in_payload = in().in_frame() && in().header().type == FrameType::kData;
    if (in_payload && !in().aimed()) break;  // no receive is posted yet
    size_t bytes = 0;
    WEIR_RETURN_IF_ERROR(ReadOnce(&bytes));
    if (bytes == 0) break;
    turn += bytes;
    NoteReceived(now);
    *progress = true;
    WEIR_RETURN_IF_ERROR(Consume());
  }
  if (!readable_ && !ended_) {
    stream_.Expect(in().aimed() ? in().rest() + in().trailer_bytes() - staged() : 1);
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
  if (in().aimed() && in().rest() > 0) {  // Consume has emptied the look-ahead buffer
    const size_t size = NotesArrivals()
                            ? ArrivalLog::PieceBytes(in().header().payload_bytes, in().received())
                            : kPieceBytes;
    const size_t piece = std::min(in().rest(), size);
    look_ahead = piece == in().rest();
    parts[count++] = {in().room(), piece};
    wanted = piece;
  }
  const size_t direct = wanted;
  if (look_ahead) {
    if (look_ahead_begin_ > 0) {
      std::memmove(look_ahead_.data(), look_ahead_.data() + look_ahead_begin_, staged());
      look_ahead_end_ -= look_ahead_begin_;
      look_ahead_begin_ = 0;
    }
    parts[count++] = {look_ahead_.data() + look_ahead_end_, look_ahead_.size() - look_ahead_end_};
    wanted += look_ahead_.size() - look_ahead_end_;
  }
  const ssize_t n = stream_.Read(std::span(parts, static_cast<size_t>(count)));
  if (n <= 0) {
    readable_ = false;
    return n == -EAGAIN ? OkStatus() : OnEnd(static_cast<int>(-n));
  }
  *bytes = static_cast<size_t>(n);
  // A short read means an empty socket, unless the stream's end waits behind it.
  if (*bytes < wanted && !hung_up_) readable_ = false;
  in().Advance(std::min(*bytes, direct));
  if (direct > 0 && NotesArrivals()) NoteArrival(std::min(*bytes, direct));
  look_ahead_end_ += *bytes - std::min(*bytes, direct);
  return OkStatus();
}

void Connection::NoteArrival(size_t bytes) {
  const double at_s = stream_.arrived_s();
  if (at_s > 0) stream_.arrivals()->Add({at_s, static_cast<uint32_t>(bytes)});
}

Status Connection::Consume() {
  bool more = true;
  while (more) {
    more = false;
    if (!in().in_frame()) {
      WEIR_RETURN_IF_ERROR(ConsumeHeader(&more));
    } else if (in().header().type == FrameType::kData) {
      WEIR_RETURN_IF_ERROR(ConsumePayload(&more));
    } else {
      WEIR_RETURN_IF_ERROR(ConsumeAbort(&more));
    }
  }
  return OkStatus();
}

Status Connection::ConsumeHeader(bool* more) {
  if (staged() < kFrameHeaderBytes) return OkStatus();
  const std::span<const std::byte, kFrameHeaderBytes> bytes(look_ahead_.data() + look_ahead_begin_,
                                                            kFrameHeaderBytes);
  const StatusOr<FrameHeader> header = in().Decode(bytes);
  if (!header.ok()) return header.status();
  if (read_shutdown_notice_) return in().Corrupt("a frame after its shutdown notice");
  WEIR_RETURN_IF_ERROR(in().Check(*header));
  look_ahead_begin_ += kFrameHeaderBytes;
  in().Begin(*header, bytes);
  if (NotesArrivals()) NoteArrival(std::min<size_t>(staged(), header->payload_bytes));
  *more = true;
  return OkStatus();
}

Status Connection::ConsumePayload(bool* more) {
  WEIR_RETURN_IF_ERROR(in().Aim());
  if (!in().aimed()) return OkStatus();
  const size_t copy = std::min(staged(), in().rest());
  if (copy > 0) {
    std::memcpy(in().room(), look_ahead_.data() + look_ahead_begin_, copy);
    look_ahead_begin_ += copy;
    in().Advance(copy);
  }
  WEIR_RETURN_IF_ERROR(
      in().Conclude(more, std::span(look_ahead_).subspan(look_ahead_begin_, staged())));
  if (*more) look_ahead_begin_ += in().trailer_bytes();
  return OkStatus();
}

Status Connection::ConsumeAbort(bool* more) {
  const FrameHeader& header = in().header();
  const size_t body = header.payload_bytes + in().trailer_bytes();
  if (staged() < body) return OkStatus();
  WEIR_RETURN_IF_ERROR(in().ReadAbort(header, {look_ahead_.data() + look_ahead_begin_, body}));
  look_ahead_begin_ += body;
  read_shutdown_notice_ = true;
  Depart();
  in().End();
  *more = true;
  return OkStatus();
}

// ---- the end of the stream

// Reads everything up to the end of the stream, which has already arrived, so its size is bounded
// by the socket's buffer. Frames of a peer that left in order wait in the look-ahead buffer for
// their receives.
Status Connection::Drain() {
  while (!ended_) {
    if (look_ahead_.size() - look_ahead_end_ < kLookAheadBytes) {
      if (staged() > kDrainBytesMax) return OnEnd(ENOBUFS);
      look_ahead_.resize(look_ahead_.size() * 2);
    }
    const iovec part = {look_ahead_.data() + look_ahead_end_, look_ahead_.size() - look_ahead_end_};
    const ssize_t n = stream_.Read(std::span(&part, 1));
    if (n == -EAGAIN) {
      readable_ = false;
      return OkStatus();
    }
    if (n <= 0) return OnEnd(static_cast<int>(-n));
    look_ahead_end_ += static_cast<size_t>(n);
  }
  return OkStatus();
}

// Scans the buffered frames up to the last one, to learn whether the peer left in order or why.
Status Connection::FindEnd() {
  size_t at = look_ahead_begin_;
  if (in().in_frame()) at += in().rest() + in().trailer_bytes();
  for (uint64_t frames = 0; at <= look_ahead_end_ && look_ahead_end_ - at >= kFrameHeaderBytes;
       ++frames) {
    const size_t begin = at;
    const std::span<const std::byte, kFrameHeaderBytes> bytes(look_ahead_.data() + at,
                                                              kFrameHeaderBytes);
    WEIR_ASSIGN_OR_RETURN(const FrameHeader header, in().Decode(bytes));
    at += kFrameHeaderBytes;
    const size_t body = header.payload_bytes + in().trailer_bytes();
    if (header.type == FrameType::kAbort && look_ahead_end_ - at >= body) {
      WEIR_RETURN_IF_ERROR(
          in().ReadAbortAhead(header, bytes, {look_ahead_.data() + at, body}, frames));
      if (at + body != look_ahead_end_) return in().Corrupt("a frame after its shutdown notice");
      Depart();
      look_ahead_end_ = begin;
      return OkStatus();
    }
    at += body;
  }
  return OkStatus();
}

// Looks for the reason why the peer left, which may follow a lost payload. Skips other frames.
Status Connection::FindReason() {
  std::vector<std::byte> bytes(kLookAheadBytes);
  size_t end = 0, skip = 0, read = 0;
  while (read < kDrainBytesMax) {
    const iovec part = {bytes.data() + end, bytes.size() - end};
    const ssize_t n = stream_.Read(std::span(&part, 1));
    if (n == -ECONNRESET) {  // the frame ends where its payload is lost
      end = skip = 0;
      read += kLookAheadBytes;  // counts towards the limit, too
      continue;
    }
    if (n <= 0) break;
    read += static_cast<size_t>(n);
    end += static_cast<size_t>(n);
    size_t at = 0;
    for (;;) {
      const size_t skipped = std::min(skip, end - at);
      skip -= skipped;
      at += skipped;
      if (skip > 0 || end - at < kFrameHeaderBytes) break;
      const std::span<const std::byte> rest(bytes.data() + at, end - at);
      WEIR_ASSIGN_OR_RETURN(const FrameHeader header, in().Decode(rest.first<kFrameHeaderBytes>()));
      WEIR_RETURN_IF_ERROR(in().Check(header));
      const std::span<const std::byte> behind = rest.subspan(kFrameHeaderBytes);
      if (header.type == FrameType::kAbort) {
        if (behind.size() < header.payload_bytes) break;
        return in().ReadAbortAhead(header, rest.first<kFrameHeaderBytes>(),
                                   behind.first(header.payload_bytes), 0);
      }
      at += kFrameHeaderBytes;
      skip = header.payload_bytes;
    }
    std::memmove(bytes.data(), bytes.data() + at, end - at);
    end -= at;
  }
  return OkStatus();
}

Status Connection::OnEnd(int error) {
  ended_ = true;
  out().Release(stream_.Retained());  // what the peer acknowledged before it left
  readable_ = writable_ = false;
  broken_ = true;
  if (error == EPROTO) return in().Corrupt("ring positions that cannot be");
  if (error == ECONNRESET && in().trailer_bytes() == 0) WEIR_RETURN_IF_ERROR(FindReason());
  if (!departed()) WEIR_RETURN_IF_ERROR(FindEnd());
  if (departed()) return OkStatus();
  return in().Closed(error == 0 ? std::string() : ErrorText(error));
}

}  // namespace weir::mesh
