// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/ring_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>

namespace weir::shm {
namespace {

class RingStream : public mesh::ByteStream {
 public:
  RingStream(Attachment attachment, size_t direct_bytes_min)
      : attached_(std::move(attachment)),
        memory_(attached_.peer, attached_.process.get(), attached_.control.get()),
        writer_(attached_.segment.End(attached_.created ? 0 : 1, attached_.peer_event_fd.get()),
                direct_bytes_min),
        reader_(attached_.segment.End(attached_.created ? 1 : 0, attached_.peer_event_fd.get()),
                &memory_) {}
  ~RingStream() override { writer_.exporter().Revoke(); }

  ssize_t Write(std::span<const iovec> parts) override {
    if (hung_up_) return -EPIPE;
    const ssize_t n = writer_.Write(parts);
    if (n > 0) bytes_written_.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    return n;
  }

  // Bytes that the peer wrote before it ended are delivered before its end is reported.
  ssize_t Read(std::span<const iovec> parts) override {
    const ssize_t n = reader_.Read(parts);
    if (n > 0) bytes_read_.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    return n == -EAGAIN && hung_up_ ? 0 : n;
  }

  size_t Retained() override { return writer_.Retained(); }
  bool Releases() override { return writer_.exporter().Released(); }

  void CloseWrite() override {
    writer_.exporter().Revoke();
    shutdown(attached_.control.get(), SHUT_WR);
  }

  Status Register(mesh::EventSet& events, uint32_t index) override {
    constexpr uint32_t kEvents = EPOLLIN | EPOLLRDHUP | EPOLLET;
    WEIR_RETURN_IF_ERROR(events.Add(attached_.control.get(), kEvents, index));
    if (!attached_.process) return OkStatus();
    // A forked child of the peer may hold the socket open after the peer's death.
    return events.Add(attached_.process.get(), kEvents, index | kHangUpBit);
  }

  uint32_t OnEvents(uint32_t events) override {
    hung_up_ = hung_up_ || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    return events;
  }

  bool Readable() override { return reader_.Readable(); }
  bool Writable() override { return !hung_up_ && writer_.Writable(); }
  void TurnEnds() override { reader_.TurnEnds(); }

  bool PrepareSleep(const Wish& wish) override {
    const bool bytes_wait = wish.bytes && !reader_.PrepareSleep();
    const bool room_waits = wish.room && !writer_.PrepareSleep();
    const bool release_waits = wish.release && !writer_.exporter().PrepareSleep();
    return !bytes_wait && !room_waits && !release_waits;
  }
  void Awake() override {
    reader_.Awake();
    writer_.Awake();
    writer_.exporter().Awake();
  }

  bool checks_payload() const override { return false; }
  bool shares_memory() const override { return true; }

  PathSample Sample(int peer) const override {
    PathSample sample;
    sample.peer = peer;
    sample.medium = "shm";
    sample.bytes_acked = bytes_written_.load(std::memory_order_relaxed);
    sample.bytes_received = bytes_read_.load(std::memory_order_relaxed);
    return sample;
  }

 private:
  const Attachment attached_;
  const PeerMemory memory_;
  RingWriter writer_;
  RingReader reader_;
  bool hung_up_ = false;
  std::atomic<uint64_t> bytes_written_ = 0, bytes_read_ = 0;  // Sample runs on any thread
};

}  // namespace

std::unique_ptr<mesh::ByteStream> MakeRingStream(Attachment attachment, size_t direct_bytes_min) {
  return std::make_unique<RingStream>(std::move(attachment), direct_bytes_min);
}

}  // namespace weir::shm
