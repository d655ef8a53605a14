// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frame stream to one peer over a stream of bytes. It sends posted frames straight from the
// caller's memory, receives payloads straight into it, and determines how the peer left.

#include <atomic>
#include <cstddef>
#include <vector>

#include "datapath/transport/mesh/byte_stream.h"
#include "datapath/transport/mesh/peer.h"

namespace weir::mesh {

/// Edge-triggered: OnEvents reports what may be possible, and Drive and DriveSend work until the
/// stream has no more.
class Connection : public Peer {
 public:
  /// `stream` outlives it. `channel` seals its frames; without one they have checksums.
  Connection(int self, int peer, const TransportAddress& address, ByteStream& stream,
             FrameChannel channel = {});

  /// Takes the bits that epoll reported.
  void OnEvents(uint32_t events);

  /// Moves what can be moved now, bounded so that other peers get their turn. *progress is set when
  /// bytes moved; `sent` counts them. kUnavailable: the peer died or aborted; kDataLoss: bad frame.
  Status Drive(TimePoint now, bool* progress, std::atomic<uint64_t>* sent);
  Status DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) override;

  /// To be called at intervals longer than a round trip. kUnavailable: at two calls in a row, the
  /// peer's host had been silent for ten round trips and for `least`.
  Status CheckHost(Duration least);

  /// Reads what can be read now, even if no event has reported it yet.
  Status TryReceive(TimePoint now, bool* progress);

  /// Completes a frame that was sent in part before the notice.
  Status QueueShutdownNotice(std::string_view text) override;
  void Cut() override { stream_.Cut(); }
  bool flushed() const override { return (out().empty() && !out().holds()) || broken_; }
  bool CannotFinish(const Operation& op) const override {
    return op.send ? broken_ : departed() && staged() == 0 && !in().in_frame();
  }

  /// The events that can complete the awaited operation.
  struct Interest {
    bool receives = true;  // false: no bytes are read
    bool sends = true;     // false: the end of a send does not matter
  };
  /// For shared memory, which epoll does not report: whether something can be moved now.
  bool HasNews(const Interest& interest) {
    const ByteStream::Wish wish = WishFor(interest);
    return (wish.bytes && stream_.Readable()) || (wish.room && stream_.Writable()) ||
           (wish.release && stream_.Releases());
  }
  /// See ByteStream.
  bool PrepareSleep(const Interest& interest) { return stream_.PrepareSleep(WishFor(interest)); }
  bool shares_memory() const { return stream_.shares_memory(); }
  void Awake() { stream_.Awake(); }
  ByteStream& stream() { return stream_; }

 private:
  static constexpr size_t kLookAheadBytes = 8192;   // a small message needs one read
  static constexpr size_t kPieceBytes = 256 << 10;  // checksummed while in the L2 cache
  static constexpr size_t kTurnBytes = 1 << 20;     // after these comes another peer's turn
  static constexpr size_t kDrainBytesMax = 64 << 20;
  static constexpr int kBatchFrames = 16;

  size_t staged() const { return look_ahead_end_ - look_ahead_begin_; }
  // No bytes are wanted while the next payload has no receive, so that the medium holds the sender
  // back.
  bool WantsBytes() const {
    return !ended_ && !(in().in_frame() && in().header().type == FrameType::kData && in().empty());
  }
  bool WantsRoom() const { return !broken_ && !out().empty(); }
  ByteStream::Wish WishFor(const Interest& interest) const {
    return {.bytes = interest.receives && WantsBytes(),
            .room = WantsRoom(),
            .release = interest.sends && !broken_ && out().holds()};
  }
  bool CanWrite() { return !broken_ && (writable_ = writable_ || stream_.Writable()); }
  Status DriveReceive(TimePoint now, bool* progress);
  /// Reads once, into the posted buffer and the look-ahead buffer. *bytes is 0 at the end of the
  /// stream and if there is nothing to read.
  Status ReadOnce(size_t* bytes);
  Status Consume();
  Status ConsumeHeader(bool* more);
  Status ConsumePayload(bool* more);
  Status ConsumeAbort(bool* more);
  /// Whether the arrival of the present frame's bytes is measured.
  bool NotesArrivals() const {
    return in().header().payload_bytes >= kMeasuredPayloadBytesMin &&
           in().header().type == FrameType::kData && stream_.arrivals() != nullptr;
  }
  /// Takes note of payload bytes that were just read.
  void NoteArrival(size_t bytes);
  Status Drain();
  Status FindEnd();
  Status FindReason();
  Status OnEnd(int error);

  ByteStream& stream_;
  bool readable_ = true, writable_ = true;
  bool hung_up_ = false;    // the kernel has the end of the stream, perhaps behind unread data
  bool ended_ = false;      // the end of the stream was read
  bool broken_ = false;     // sending failed
  bool suspected_ = false;  // the host was silent at the last check
  bool read_shutdown_notice_ = false;  // it was read at its place in the stream
  Operation shutdown_notice_;
  std::string shutdown_notice_text_;

  std::vector<std::byte> look_ahead_;
  size_t look_ahead_begin_ = 0, look_ahead_end_ = 0;
};

}  // namespace weir::mesh
