// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes frames from posted sends and delivers frames to posted receives, whatever carries their
// bytes: what a frame to or from one peer must look like, and how its payload is checked.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/transport/mesh/operation.h"
#include "datapath/wire/checksum.h"

namespace weir::mesh {

/// Longest text of a kAbort frame; a longer one is cut by the sender and refused by the receiver.
inline constexpr size_t kAbortTextMax = 2048;

/// The posted sends to one peer, and how much of the first was sent. Not thread-safe.
class FrameSender {
 public:
  /// With a sealer a tag follows every frame. Without a sealer and `checks_payload`, data frames
  /// have checksum 0.
  FrameSender(int self, bool checks_payload, std::unique_ptr<FrameSealer> sealer)
      : self_(self),
        checks_payload_(checks_payload),
        sealer_(std::move(sealer)),
        first_number_(sealer_ ? sealer_->next() : 0) {}

  void Post(Operation* op) { queue_.Push(op); }
  bool empty() const { return queue_.empty(); }
  /// The first frame that was not completely sent.
  Operation* front() const { return queue_.front(); }
  /// How many of its bytes were sent, including the header.
  size_t front_sent() const { return front_sent_; }
  /// The size of the trailer that follows every payload.
  size_t trailer_bytes() const { return sealer_ ? kFrameTagBytes : 0; }
  /// Seals the next frame if it is sent without the queue; may be null.
  FrameSealer* sealer() const { return sealer_.get(); }
  /// Fills op->wire, body and tag with what is sent, unless that is done. To be called in the order
  /// of the frames and as late as possible, so that their bytes are still in the cache when they
  /// are sent.
  void Encode(Operation* op) {
    if (!op->encoded) EncodeNow(op);
  }
  /// Takes note that `bytes` more were sent. Finishes the sends that are complete, except for those
  /// within the last `retained` bytes sent, which the medium still reads from the caller's memory.
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
  /// Whether the medium still reads complete sends from the caller's memory.
  bool holds() const { return !held_.empty(); }
  /// Finishes the sends that are not within the last `retained` bytes sent.
  void Release(size_t retained) {
    while (!held_.empty() && held_.front()->ends <= left_ - retained) {
      Operation* const op = held_.front();
      held_.Pop();
      if (!op->sealed.empty()) Spare(op);
      op->done = true;
    }
  }
  /// Forgets all sends, or all but one that was sent in part.
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
  const uint64_t first_number_;                // the sealer's number at construction
  uint64_t frames_left_ = 0;                   // frames that were completely sent
  std::vector<std::vector<std::byte>> spare_;  // for encrypted payloads
  size_t spare_bytes_ = 0;
  OperationQueue queue_, held_;
  size_t front_sent_ = 0;
  uint64_t left_ = 0;
};

/// The posted receives from one peer, and the frame that is arriving. Not thread-safe. Every error
/// names the peer and means that the whole transport fails.
class FrameReceiver {
 public:
  /// `name` is "rank 2 (10.0.0.3:40000)". With an opener every frame must verify. Without an opener
  /// and `checks_payload`, data frames must have checksum 0. Each side knows the medium and does
  /// not rely on what the other claims about it.
  FrameReceiver(int peer, std::string name, bool checks_payload,
                std::unique_ptr<FrameOpener> opener)
      : peer_(peer),
        name_(std::move(name)),
        checks_payload_(checks_payload),
        opener_(std::move(opener)) {}

  void Post(Operation* op) { queue_.Push(op); }
  bool empty() const { return queue_.empty(); }
  const std::string& name() const { return name_; }

  /// The size of the trailer that follows every payload.
  size_t trailer_bytes() const { return opener_ ? kFrameTagBytes : 0; }

  /// kDataLoss: the bytes are not a header.
  StatusOr<FrameHeader> Decode(std::span<const std::byte, kFrameHeaderBytes> bytes) const;
  /// kDataLoss: a header that this peer may not send here.
  Status Check(const FrameHeader& header) const;
  /// Reads an abort frame that has begun; `body` is its text and trailer. OK: it is an orderly
  /// shutdown notice; kUnavailable: the peer's reason; kDataLoss: it is corrupt.
  Status ReadAbort(const FrameHeader& header, std::span<const std::byte> body);
  /// The same for a whole frame with the header `bytes`, which comes `frames` frames after the next
  /// one to begin.
  Status ReadAbortAhead(const FrameHeader& header, std::span<const std::byte> bytes,
                        std::span<const std::byte> body, uint64_t frames) const;

  /// Begins a frame, of which the payload comes next. `header` was checked and encoded as `bytes`.
  void Begin(const FrameHeader& header, std::span<const std::byte> bytes) {
    header_ = header;
    in_frame_ = true;
    received_ = checked_ = 0;
    if (opener_) opener_->Begin(bytes);
  }
  bool in_frame() const { return in_frame_; }
  /// The header of the frame that is arriving; valid if in_frame().
  const FrameHeader& header() const { return header_; }
  size_t received() const { return received_; }
  size_t rest() const { return header_.payload_bytes - received_; }

  /// Finds the posted receive for the payload, unless it is known or none is posted. kDataLoss: the
  /// payload is too long for it.
  Status Aim() {
    if (target_ != nullptr || queue_.empty()) return OkStatus();
    target_ = queue_.front();
    return header_.payload_bytes <= target_->buffer.size() ? OkStatus() : TooLong();
  }
  bool aimed() const { return target_ != nullptr; }
  /// Returns the address for the rest of the payload. Requires aimed().
  std::byte* room() const { return target_->buffer.data() + received_; }
  /// Takes note that `bytes` more of the payload are in the receive's buffer.
  void Advance(size_t bytes) { received_ += bytes; }
  /// Checks the new bytes in the receive's buffer, while they are in the cache. *whole: they were
  /// the last of the frame, and its receive is done; then the first trailer_bytes() of `behind`,
  /// which arrived after the payload, were its trailer. kDataLoss: the frame is corrupt.
  Status Conclude(bool* whole, std::span<const std::byte> behind = {});
  /// Ends an abort frame.
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
  size_t checked_ = 0;           // how many of them checksum_ or opener_ has
  ChecksumStream checksum_;
};

/// A peer's text made safe for logs and JSON: bytes that are not printable ASCII become '?'.
std::string PrintableText(std::span<const std::byte> bytes);

}  // namespace weir::mesh
