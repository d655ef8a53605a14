#pragma once
// The frame stream to one peer over one non-blocking socket: sends posted frames straight from the
// caller's memory, receives payloads straight into it, and finds out how the peer left.

#include <atomic>
#include <cstddef>
#include <vector>

#include "datapath/transport/builtin/tcp/operation.h"
#include "datapath/transport/builtin/tcp/socket.h"
#include "datapath/wire/checksum.h"

namespace weir::tcp {

/// Longest text of a kAbort frame; a longer one is cut by the sender and refused by the receiver.
inline constexpr size_t kAbortTextMax = 2048;

/// Edge-triggered: OnEvents says what may be possible, Drive... works until the socket has no more.
/// Not thread-safe. Every error names the peer and means that the whole transport fails.
class Connection {
 public:
  /// `socket` was configured and stays owned by the caller, who closes it after this object.
  Connection(int self, int peer, TransportAddress address, int socket);

  void PostSend(Operation* op) { sends_.Push(op); }
  void PostReceive(Operation* op) { receives_.Push(op); }

  /// Takes the bits of epoll.
  void OnEvents(uint32_t events);

  /// Moves what can be moved now, bounded so that other peers get their turn. *progress is set when
  /// bytes moved; `sent` counts them. kUnavailable: the peer died or aborted; kDataLoss: bad frame.
  Status Drive(TimePoint now, bool* progress, std::atomic<uint64_t>* sent);
  Status DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent);

  /// The peer said goodbye: what it sent before is still delivered, nothing more will come.
  bool departed() const { return departed_; }
  /// The peer is gone and no byte in hand can finish `op` any more.
  bool CannotFinish(const Operation& op) const {
    return op.send ? broken_ : departed_ && staged() == 0 && !in_frame_;
  }

  /// Forgets queued sends of which no byte left, then queues one kAbort frame of our own.
  void QueueFarewell(std::string_view text);
  /// All queued bytes were handed to the kernel, or never can be.
  bool flushed() const { return sends_.empty() || broken_; }
  bool can_write() const { return writable_; }

  int socket() const { return socket_; }
  /// "rank 2 (10.0.0.3:40000)".
  const std::string& name() const { return name_; }
  /// "received 5 of 72 header bytes, last byte 3.2 s ago" for a deadline's message.
  std::string DescribeWait(const Operation& op, TimePoint now) const;

 private:
  static constexpr size_t kStageBytes = 8192;       // look-ahead: small messages need one read
  static constexpr size_t kPieceBytes = 256 << 10;  // checksummed while in the L2 cache
  static constexpr size_t kTurnBytes = 1 << 20;     // then another peer's turn
  static constexpr size_t kDrainBytesMax = 64 << 20;
  static constexpr int kBatchFrames = 16;

  size_t staged() const { return stage_end_ - stage_begin_; }
  void Encode(Operation* op);
  void Sent(size_t bytes);
  Status DriveReceive(TimePoint now, bool* progress);
  /// One read into the posted buffer and the stage; *bytes 0 means end of stream or nothing there.
  Status ReadOnce(size_t* bytes);
  Status Consume();
  Status ConsumeHeader(bool* more);
  Status ConsumePayload(bool* more);
  Status ConsumeAbort(bool* more);
  Status FinishPayload();
  void UpdateChecksum();
  Status Drain();
  Status FindEnd();
  Status OnEnd(int error);
  Status Corrupt(const std::string& what) const { return DataLoss(StrCat(name_, " sent ", what)); }

  const int self_;
  const int peer_;
  const int socket_;
  const std::string name_;
  bool readable_ = true, writable_ = true;
  bool hung_up_ = false;       // the kernel saw the end of the stream, perhaps behind unread data
  bool ended_ = false;         // and so did we
  bool broken_ = false;        // sending failed
  bool said_goodbye_ = false;  // read in its place in the stream
  bool departed_ = false;      // a goodbye was read, or seen behind frames that still wait
  TimePoint last_received_, last_sent_;

  OperationQueue sends_;
  size_t front_sent_ = 0;  // bytes of the first queued frame that the kernel has
  Operation farewell_;
  std::string farewell_text_;

  OperationQueue receives_;
  bool in_frame_ = false;
  FrameHeader in_;               // valid when in_frame_
  Operation* target_ = nullptr;  // receives in_'s payload
  size_t received_ = 0;          // payload bytes in target_'s buffer
  size_t checksummed_ = 0;       // of them, already in checksum_
  ChecksumStream checksum_;
  std::vector<std::byte> stage_;
  size_t stage_begin_ = 0, stage_end_ = 0;
};

}  // namespace weir::tcp
