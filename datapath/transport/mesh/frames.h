#pragma once
// Frames out of posted sends and into posted receives, apart from how their bytes travel: what a
// frame to or from one peer must look like, and how its payload is checked.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/transport/mesh/operation.h"
#include "datapath/wire/checksum.h"

namespace weir::mesh {

/// Longest text of a kAbort frame; a longer one is cut by the sender and refused by the receiver.
inline constexpr size_t kAbortTextMax = 2048;

/// The posted sends to one peer, and how far the first of them has left. Not thread-safe.
class FrameSender {
 public:
  /// With a sealer a tag follows every frame. Else, without `checks_payload`, data frames carry
  /// checksum 0.
  FrameSender(int self, bool checks_payload, std::unique_ptr<FrameSealer> sealer)
      : self_(self),
        checks_payload_(checks_payload),
        sealer_(std::move(sealer)),
        first_number_(sealer_ ? sealer_->next() : 0) {}

  void Post(Operation* op) { queue_.Push(op); }
  bool empty() const { return queue_.empty(); }
  /// The first frame that has not left whole.
  Operation* front() const { return queue_.front(); }
  /// Bytes of it that have left, header included.
  size_t front_sent() const { return front_sent_; }
  /// Behind every payload.
  size_t trailer_bytes() const { return sealer_ ? kFrameTagBytes : 0; }
  /// Seals the frame that comes next, for one that is sent apart from the queue; may be none.
  FrameSealer* sealer() const { return sealer_.get(); }
  /// Makes op->wire, body and tag what leaves, once, of one frame after the other. As late as
  /// possible: what sends the frame reads the same bytes next, from a warm cache.
  void Encode(Operation* op) {
    if (!op->encoded) EncodeNow(op);
  }
  /// So many more bytes have left: finishes the sends that are whole, but for those in the last
  /// `retained` bytes of all that have left, which the medium still reads from where they are.
  void Sent(size_t bytes, size_t retained = 0) {
    left_ += bytes;
    front_sent_ += bytes;
    while (!queue_.empty()) {
      Operation* const op = queue_.front();
      const size_t frame = kFrameHeaderBytes + op->payload.size() + trailer_bytes();
      if (front_sent_ < frame) break;
      front_sent_ -= frame;
      ++frames_left_;
      queue_.Pop();
      op->ends = left_ - front_sent_;
      held_.Push(op);
    }
    Release(retained);
  }
  /// Sends that have left, but that the medium still reads.
  bool holds() const { return !held_.empty(); }
  /// The medium reads only the last `retained` bytes any more.
  void Release(size_t retained) {
    while (!held_.empty() && held_.front()->ends <= left_ - retained) {
      Operation* const op = held_.front();
      held_.Pop();
      if (!op->sealed.empty()) Spare(op);
      op->done = true;
    }
  }
  /// Forgets all sends, or all but the one that is half out.
  void Forget();
  void ForgetAllButHalfSent();

 private:
  void EncodeNow(Operation* op);
  void Seal(Operation* op);
  void Spare(Operation* op);
  void TakeBackUnseen();

  const int self_;
  const bool checks_payload_;
  const std::unique_ptr<FrameSealer> sealer_;  // none: frames have checksums
  const uint64_t first_number_;                // of the sealer, when this began
  uint64_t frames_left_ = 0;                   // left whole
  std::vector<std::vector<std::byte>> spare_;  // for encrypted payloads
  size_t spare_bytes_ = 0;
  OperationQueue queue_, held_;
  size_t front_sent_ = 0;
  uint64_t left_ = 0;
};

/// The posted receives from one peer, and the frame that is coming in. Not thread-safe. Every error
/// names the peer and means that the whole transport fails.
class FrameReceiver {
 public:
  /// `name` is "rank 2 (10.0.0.3:40000)". With an opener every frame must verify. Else, without
  /// `checks_payload`, data frames must carry checksum 0: both sides know the medium, and neither
  /// believes the other on it.
  FrameReceiver(int peer, std::string name, bool checks_payload,
                std::unique_ptr<FrameOpener> opener)
      : peer_(peer),
        name_(std::move(name)),
        checks_payload_(checks_payload),
        opener_(std::move(opener)) {}

  void Post(Operation* op) { queue_.Push(op); }
  bool empty() const { return queue_.empty(); }
  const std::string& name() const { return name_; }

  /// Behind every payload.
  size_t trailer_bytes() const { return opener_ ? kFrameTagBytes : 0; }

  /// kDataLoss: no header.
  StatusOr<FrameHeader> Decode(std::span<const std::byte, kFrameHeaderBytes> bytes) const;
  /// kDataLoss: a header that this peer may not send here.
  Status Check(const FrameHeader& header) const;
  /// Reads an abort frame that began: `body` is its text and trailer. OK: it is a shutdown notice;
  /// kUnavailable: the peer's reason; kDataLoss: corrupt.
  Status ReadAbort(const FrameHeader& header, std::span<const std::byte> body);
  /// The same of a whole frame in which `bytes` is the header, `frames` behind the next one to
  /// begin.
  Status ReadAbortAhead(const FrameHeader& header, std::span<const std::byte> bytes,
                        std::span<const std::byte> body, uint64_t frames) const;

  /// The payload of `header`, which was checked and encoded as `bytes`, comes next.
  void Begin(const FrameHeader& header, std::span<const std::byte> bytes) {
    header_ = header;
    in_frame_ = true;
    received_ = checked_ = 0;
    if (opener_) opener_->Begin(bytes);
  }
  bool in_frame() const { return in_frame_; }
  /// Of the frame that comes in; valid when in_frame().
  const FrameHeader& header() const { return header_; }
  size_t received() const { return received_; }
  size_t rest() const { return header_.payload_bytes - received_; }

  /// Finds where the payload goes, unless it is known or nobody has asked. kDataLoss: too long.
  Status Aim() {
    if (target_ != nullptr || queue_.empty()) return OkStatus();
    target_ = queue_.front();
    return header_.payload_bytes <= target_->buffer.size() ? OkStatus() : TooLong();
  }
  bool aimed() const { return target_ != nullptr; }
  /// Where the rest of the payload goes; aimed().
  std::byte* room() const { return target_->buffer.data() + received_; }
  /// So many more payload bytes are in the room.
  void Advance(size_t bytes) { received_ += bytes; }
  /// Checks what is in the room, in the caller's memory and while it is in the cache. *whole: it
  /// was the last of the frame, whose receive is done; the first trailer_bytes() of `behind`, which
  /// came behind the payload, belong to it. kDataLoss: corrupt.
  Status Conclude(bool* whole, std::span<const std::byte> behind = {});
  /// An abort frame is over.
  void End() { in_frame_ = false; }

  /// kDataLoss: "<name> sent <what>".
  Status Corrupt(const std::string& what) const;
  /// kUnavailable: "<name> closed the connection (<why>)".
  Status Closed(std::string_view why = {}) const;

 private:
  Status TooLong() const;
  Status AbortText(FrameOpener& opener, const FrameHeader& header,
                   std::span<const std::byte> body) const;
  Status Reason(std::span<const std::byte> text) const;
  Status Unverified(const FrameHeader& header) const;
  void CheckReceived();
  uint32_t PayloadChecksum();

  const int peer_;
  const std::string name_;
  const bool checks_payload_;
  const std::unique_ptr<FrameOpener> opener_;  // none: frames have checksums
  OperationQueue queue_;
  bool in_frame_ = false;
  FrameHeader header_;
  Operation* target_ = nullptr;  // receives the payload
  size_t received_ = 0;          // payload bytes in its buffer
  size_t checked_ = 0;           // of them, already in checksum_ or opener_
  ChecksumStream checksum_;
};

/// Text of a peer, fit for logs and JSON: what is not printable ASCII becomes '?'.
std::string PrintableText(std::span<const std::byte> bytes);

}  // namespace weir::mesh
