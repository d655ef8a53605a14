// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/tcp/striped_stream.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

namespace weir::tcp {
namespace {

// The position of the next byte in a list of buffers.
class Cursor {
 public:
  explicit Cursor(std::span<const iovec> parts) : parts_(parts) {}

  bool AtEnd() const { return parts_.empty(); }
  // Puts the next bytes, at most `bytes`, into `out` and returns the number of parts used.
  size_t Peek(size_t bytes, std::span<iovec> out) const {
    size_t count = 0, skip = skip_;
    for (const iovec& part : parts_) {
      if (bytes == 0 || count == out.size()) break;
      const size_t share = std::min(part.iov_len - skip, bytes);
      out[count++] = {static_cast<std::byte*>(part.iov_base) + skip, share};
      bytes -= share;
      skip = 0;
    }
    return count;
  }
  void Skip(size_t bytes) {
    skip_ += bytes;
    while (!parts_.empty() && skip_ >= parts_.front().iov_len) {
      skip_ -= parts_.front().iov_len;
      parts_ = parts_.subspan(1);
    }
  }

 private:
  std::span<const iovec> parts_;
  size_t skip_ = 0;  // of the first part
};

}  // namespace

StripedStream::StripedStream(std::vector<std::unique_ptr<SocketStream>> lanes)
    : lanes_(std::move(lanes)) {}

// Reads until a lane says that it has no more. A lane that returned fewer bytes may have ended, and
// no other event reports that.
template <typename Move>
ssize_t StripedStream::Deal(std::span<const iovec> parts, uint64_t* position, bool* failed,
                            Move move) {
  Cursor cursor(parts);
  ssize_t moved = 0;
  while (!cursor.AtEnd()) {
    iovec piece[32];
    const size_t count = cursor.Peek(kPieceBytes - *position % kPieceBytes, piece);
    SocketStream& lane = *lanes_[*position / kPieceBytes % lanes_.size()];
    ssize_t n = move(lane, std::span<const iovec>(piece, count));
    if (n == -EAGAIN && cut_) n = -ECONNRESET;
    if (n <= 0) {
      *failed = n != -EAGAIN;
      return moved > 0 ? moved : n;
    }
    *position += static_cast<uint64_t>(n);
    cursor.Skip(static_cast<size_t>(n));
    moved += n;
  }
  return moved;
}

ssize_t StripedStream::Write(std::span<const iovec> parts) {
  return Deal(parts, &written_, &write_failed_,
              [](SocketStream& lane, std::span<const iovec> piece) { return lane.Write(piece); });
}

ssize_t StripedStream::Read(std::span<const iovec> parts) {
  return Deal(parts, &read_, &read_failed_,
              [](SocketStream& lane, std::span<const iovec> piece) { return lane.Read(piece); });
}

// Counts from the first byte that some lane still reads.
size_t StripedStream::Retained() {
  const size_t lanes = lanes_.size();
  uint64_t released = written_;
  for (size_t i = 0; i < lanes; ++i) {
    const size_t retained = lanes_[i]->Retained();
    if (retained == 0) continue;
    // The bytes that lane i has carried: whole rounds, and its part of the last round.
    const uint64_t round = kPieceBytes * lanes, rest = written_ % round, before = i * kPieceBytes;
    const uint64_t of_rest = std::min<uint64_t>(rest - std::min(rest, before), kPieceBytes);
    const uint64_t at = written_ / round * kPieceBytes + of_rest - retained;
    released = std::min(released, at / kPieceBytes * round + before + at % kPieceBytes);
  }
  return static_cast<size_t>(written_ - released);
}

void StripedStream::CloseWrite() {
  for (const auto& lane : lanes_) lane->CloseWrite();
}

void StripedStream::Cut() {
  for (const auto& lane : lanes_) lane->Cut();
}

Status StripedStream::Register(mesh::EventSet& events, uint32_t index) {
  for (const auto& lane : lanes_) WEIR_RETURN_IF_ERROR(lane->Register(events, index));
  return OkStatus();
}

// The stream has ended when every lane has ended, because nothing can follow then. When one lane is
// cut, the stream is cut once the bytes that came over the other lanes are read.
uint32_t StripedStream::OnEvents(uint32_t events) {
  if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) return events;
  std::vector<int> sockets;
  AppendSockets(&sockets);
  std::vector<pollfd> polled;
  for (const int socket : sockets) polled.push_back({socket, POLLRDHUP, 0});
  if (poll(polled.data(), polled.size(), 0) < 0) return EPOLLIN | EPOLLOUT;
  const bool cut = std::any_of(polled.begin(), polled.end(),
                               [](const pollfd& p) { return (p.revents & POLLHUP) != 0; });
  const bool over = std::all_of(polled.begin(), polled.end(), [](const pollfd& p) {
    return (p.revents & (POLLRDHUP | POLLHUP)) != 0;
  });
  cut_ = cut_ || (cut && !over);
  return EPOLLIN | EPOLLOUT | (cut ? EPOLLHUP : 0u) | (over ? EPOLLRDHUP : 0u);
}

void StripedStream::AppendSockets(std::vector<int>* sockets) const {
  for (const auto& lane : lanes_) lane->AppendSockets(sockets);
}

// Returns the silence of the lane that is silent longest, because the stream cannot continue
// without its pieces.
StripedStream::Silence StripedStream::HostSilence() const {
  Silence worst;
  for (const auto& lane : lanes_) {
    const Silence silence = lane->HostSilence();
    if (silence.lasts > worst.lasts) worst = silence;
  }
  return worst;
}

PathSample StripedStream::Sample(int peer) const {
  PathSample all = lanes_[0]->Sample(peer);
  for (size_t i = 1; i < lanes_.size(); ++i) {
    const PathSample lane = lanes_[i]->Sample(peer);
    all.rtt_s = std::max(all.rtt_s, lane.rtt_s);
    if (lane.rtt_min_s > 0) {
      all.rtt_min_s = all.rtt_min_s > 0 ? std::min(all.rtt_min_s, lane.rtt_min_s) : lane.rtt_min_s;
    }
    all.rtt_deviation_s = std::max(all.rtt_deviation_s, lane.rtt_deviation_s);
    all.delivery_rate_bytes_per_s += lane.delivery_rate_bytes_per_s;
    all.application_limited = all.application_limited || lane.application_limited;
    all.bytes_acked += lane.bytes_acked;
    all.bytes_received += lane.bytes_received;
    all.busy_s = std::max(all.busy_s, lane.busy_s);
    all.receive_window_limited_s =
        std::max(all.receive_window_limited_s, lane.receive_window_limited_s);
    all.send_buffer_limited_s = std::max(all.send_buffer_limited_s, lane.send_buffer_limited_s);
    all.congestion_window_bytes += lane.congestion_window_bytes;
    all.retransmits += lane.retransmits;
  }
  return all;
}

}  // namespace weir::tcp
