// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frame stream to one peer over messages of limited size: cuts frames into slots of registered
// memory and joins them again, and prevents either side from sending messages for which the other
// has no slot. It knows nothing of verbs, so tests drive it without a device.

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "datapath/transport/builtin/verbs/hello.h"
#include "datapath/transport/mesh/peer.h"

namespace weir::verbs {

/// The kind of a message, in the upper half of its immediate value. The lower half holds how many
/// slots the sender of the message has emptied since its last message.
enum class MessageKind : uint16_t { kData = 0, kCredits = 1, kShutdownNotice = 2 };

inline uint32_t Immediate(MessageKind kind, uint32_t credits) {
  return static_cast<uint32_t>(kind) << 16 | credits;
}

/// Slots that a receiver posts beyond its window, for messages that need no credit: those that
/// carry credits alone, of which no more than this are ever under way, and the shutdown notice.
inline constexpr uint32_t kCreditMessagesMax = 4;
inline constexpr uint32_t kSpareSlots = kCreditMessagesMax + 1;
/// The send slots that a stream reserves for credits and the shutdown notice.
inline constexpr uint32_t kReservedSendSlots = 2;
inline constexpr uint32_t kSendSlotsMin = kReservedSendSlots + 4;
/// How many bytes without a posted receive are moved out of their slots into other memory, as a
/// socket's buffer would hold them. Slots are few, and a small frame occupies one as a large one
/// does.
inline constexpr size_t kSpillBytesMax = 256 << 10;

/// Carries messages to and from one peer, in order and reliably: a queue pair, or a test.
class MessagePort {
 public:
  virtual ~MessagePort() = default;
  virtual std::span<std::byte> SendSlot(uint32_t slot) = 0;
  virtual std::span<const std::byte> ReceiveSlot(uint32_t slot) = 0;
  /// Sends the first `bytes` of send slot `slot`. A signaled message's completion is reported, and
  /// with it those of all before it; failures always are.
  virtual Status Send(uint32_t slot, size_t bytes, uint32_t immediate, bool signaled) = 0;
  /// Asks the peer's device for a sign of life. Takes the place of a send slot and is signaled.
  virtual Status Probe(uint32_t slot) = 0;
  /// Lets the next message arrive in this slot.
  virtual Status Receive(uint32_t slot) = 0;
};

/// The counters are thread-safe.
class Stream : public mesh::Peer {
 public:
  struct Options {
    int self = 0;
    int peer = 0;
    TransportAddress address;  // where the peer listens
    Window ours;               // this rank's receive slots, without the spare ones
    Window theirs;
    uint32_t send_slots = kSendSlotsMin;
  };
  /// `port` outlives it; all its receive slots (ours.slots + kSpareSlots) are already given out.
  /// `channel` seals and opens all frames; none: they have checksums.
  Stream(Options options, MessagePort* port, FrameChannel channel = {});

  /// A message of `bytes` arrived in `slot`. kUnavailable: the peer aborted, with its text;
  /// kDataLoss: no stream sends such a message.
  Status OnMessage(uint32_t slot, size_t bytes, uint32_t immediate, TimePoint now);
  /// The send from `slot`, and all before it, reached the peer's device.
  void OnSent(uint32_t slot, TimePoint now);
  /// The connection is gone; messages that arrived before were given to OnMessage. kUnavailable
  /// unless the peer sent a shutdown notice.
  Status OnEnd(std::string_view why);

  /// Moves what can be moved now. *progress is set when bytes moved; `sent` counts frame bytes.
  Status Drive(TimePoint now, bool* progress, std::atomic<uint64_t>* sent);
  Status DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) override;
  /// Asks the peer for a sign of life if there was none for that long.
  Status ProbeIfSilent(TimePoint now, Duration silence);

  /// Also drops a frame that was sent in part. The notice needs no credit and is sent at once.
  Status QueueShutdownNotice(std::string_view text) override;
  bool flushed() const override { return ended_ || departed() || done_ == posted_; }
  bool CannotFinish(const mesh::Operation& op) const override {
    return (ended_ || departed()) && (op.send || held_.empty());
  }

  /// Frame bytes that reached the peer's device, and frame bytes that arrived here. Thread-safe.
  uint64_t bytes_acked() const { return acked_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return received_total_.load(std::memory_order_relaxed); }

 private:
  // A message without a receive yet, in its slot or, once spilled, in memory of its own.
  struct Held {
    uint32_t slot;
    uint32_t bytes;
    std::unique_ptr<std::byte[]> copy;
  };

  size_t PieceMax() const;
  uint32_t outstanding() const { return static_cast<uint32_t>(posted_ - done_); }
  Status SendPiece(mesh::Operation* op, std::atomic<uint64_t>* sent);
  Status Post(size_t bytes, MessageKind kind, bool last);
  Status ReturnCredits();
  Status Deliver(bool* progress);
  Status Spill();
  std::span<const std::byte> BytesOf(const Held& piece);
  Status Release(const Held& piece);
  Status BeginFrame(const Held& piece);
  Status TakePiece();
  Status OnShutdownNotice(std::span<const std::byte> frame);
  StatusOr<uint64_t> FramesHeld();
  size_t FrontRest() const;
  StatusOr<FrameHeader> ReadHeader(std::span<const std::byte> bytes) const;

  const Options options_;
  MessagePort* const port_;
  const uint32_t credit_batch_;  // slots to free before a message is sent for credits alone
  bool ended_ = false;
  TimePoint last_heard_, last_probe_;

  uint32_t credits_;     // the peer's free slots
  uint64_t posted_ = 0;  // messages; the n-th uses send slot n modulo their number
  uint64_t done_ = 0;
  uint32_t unsignaled_ = 0;
  std::vector<uint32_t> sent_bytes_;  // by send slot

  std::deque<Held> held_;     // arrived and not yet taken
  uint32_t held_slots_ = 0;   // of them in slots, at most ours.slots
  size_t spilled_bytes_ = 0;  // of them out of slots, at most kSpillBytesMax
  uint32_t freed_ = 0;        // our slots that the peer does not know to be free
  size_t front_offset_ = 0;   // header bytes of the first held piece
  FrameTag tag_;              // of the frame that comes in, which two pieces may share
  size_t tag_bytes_ = 0;      // of them here
  std::atomic<uint64_t> acked_ = 0, received_total_ = 0;
};

}  // namespace weir::verbs
