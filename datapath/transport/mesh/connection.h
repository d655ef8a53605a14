#pragma once
// The frame stream to one peer over a stream of bytes: sends posted frames straight from the
// caller's memory, receives payloads straight into it, and finds out how the peer left.

#include <atomic>
#include <cstddef>
#include <vector>

#include "datapath/transport/mesh/byte_stream.h"
#include "datapath/transport/mesh/peer.h"

namespace weir::mesh {

/// Edge-triggered: OnEvents says what may be possible, Drive... works until the socket has no more.
class Connection : public Peer {
 public:
  /// `stream` outlives it. `channel` seals its frames; none: they have checksums.
  Connection(int self, int peer, const TransportAddress& address, ByteStream& stream,
             FrameChannel channel = {});

  /// Takes the bits of epoll.
  void OnEvents(uint32_t events);

  /// Moves what can be moved now, bounded so that other peers get their turn. *progress is set when
  /// bytes moved; `sent` counts them. kUnavailable: the peer died or aborted; kDataLoss: bad frame.
  Status Drive(TimePoint now, bool* progress, std::atomic<uint64_t>* sent);
  Status DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) override;

  /// To be called every now and then, at intervals longer than a round trip. kUnavailable: twice in
  /// a row the peer's host had been silent for ten round trips, and for `least`.
  Status CheckHost(Duration least);

  /// Reads what can be read now, although no event may have told of it yet.
  Status TryReceive(TimePoint now, bool* progress);

  /// Keeps a send that is half out.
  Status QueueShutdownNotice(std::string_view text) override;
  void Cut() override { stream_.Cut(); }
  bool flushed() const override { return (out().empty() && !out().holds()) || broken_; }
  bool CannotFinish(const Operation& op) const override {
    return op.send ? broken_ : departed() && staged() == 0 && !in().in_frame();
  }

  /// What the awaited operation can use.
  struct Interest {
    bool receives = true;  // false: nothing more is read
    bool sends = true;     // false: that a send is over changes nothing
  };
  /// Shared memory only: something can be moved now. Epoll does not tell.
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
  static constexpr size_t kLookAheadBytes = 8192;   // look-ahead: small messages need one read
  static constexpr size_t kPieceBytes = 256 << 10;  // checksummed while in the L2 cache
  static constexpr size_t kTurnBytes = 1 << 20;     // then another peer's turn
  static constexpr size_t kDrainBytesMax = 64 << 20;
  static constexpr int kBatchFrames = 16;

  size_t staged() const { return look_ahead_end_ - look_ahead_begin_; }
  // Not when the next payload waits for its receive: back-pressure belongs to the medium.
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
  /// One read into the posted buffer and the look-ahead buffer; *bytes 0 means end of stream or
  /// nothing there.
  Status ReadOnce(size_t* bytes);
  Status Consume();
  Status ConsumeHeader(bool* more);
  Status ConsumePayload(bool* more);
  Status ConsumeAbort(bool* more);
  Status Drain();
  Status FindEnd();
  Status FindReason();
  Status OnEnd(int error);

  ByteStream& stream_;
  bool readable_ = true, writable_ = true;
  bool hung_up_ = false;    // the kernel saw the end of the stream, perhaps behind unread data
  bool ended_ = false;      // and so did we
  bool broken_ = false;     // sending failed
  bool suspected_ = false;  // the host was silent when it was looked at last
  bool read_shutdown_notice_ = false;  // read in its place in the stream
  Operation shutdown_notice_;
  std::string shutdown_notice_text_;

  std::vector<std::byte> look_ahead_;
  size_t look_ahead_begin_ = 0, look_ahead_end_ = 0;
};

}  // namespace weir::mesh
