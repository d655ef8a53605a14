// SPDX-License-Identifier: Apache-2.0
#pragma once
// The protocol between this rank and one other: which frames may be sent when, and which are in
// progress. It has no clock, and no input or output except through channels.

#include <deque>
#include <vector>

#include "datapath/nccl/device.h"
#include "datapath/transport/transport.h"

namespace weir::nccl {

/// The most frames posted at a time. Beyond that, PostSend and PostReceive return
/// kResourceExhausted.
inline constexpr size_t kFramesMax = 1024;

/// One posted send or receive.
struct Frame {
  Ticket ticket = 0;
  int peer = -1;
  bool send = false;
  bool done = false;
  FrameHeader header;           // for a receive: that of the peer, once it is known
  std::span<std::byte> buffer;  // device memory
};

/// A message on the control connection between two lanes: the header of a frame that it announces,
/// the number of announced frames that may now be sent as one batch, or a shutdown notice.
using ControlMessage = std::vector<std::byte>;

/// Frames of one direction are announced, matched with receives, cleared and moved in the order of
/// posting. A receiver clears a batch when it begins to receive it, so both ends form the same
/// batches, and no stream contains an operation that the other end does not begin. Whatever the
/// ranks post in whatever order, streams therefore never wait for each other in a cycle. Not
/// thread-safe. Every error means that the whole transport fails.
class Lane {
 public:
  static constexpr size_t kBatchMax = 32;

  /// `name` is used in messages, such as "rank 2 (10.0.0.3:40000)".
  Lane(int self, int peer, std::string name) : self_(self), peer_(peer), name_(std::move(name)) {}

  void SetChannels(std::unique_ptr<Channel> out, std::unique_ptr<Channel> in) {
    out_ = std::move(out);
    in_ = std::move(in);
  }
  /// Aborts running batches. Afterwards no buffer is read or written any more.
  void DropChannels() {
    out_.reset();
    in_.reset();
  }

  /// Returns the message to the peer about a new send. A send without a payload is done then.
  ControlMessage Announce(Frame* frame);
  void Expect(Frame* frame) { receives_.push_back(frame); }
  /// kDataLoss: the peer violates the protocol.
  Status OnMessage(std::span<const std::byte> message);
  /// Ends batches that have finished, begins those that can begin, and appends messages to the
  /// peer. Sets *progress when anything happened. kUnavailable names the peer. kDataLoss: a frame
  /// is longer than its receive.
  Status Drive(std::vector<ControlMessage>* tell, bool* progress);

  /// Returns whether the device is working.
  bool busy() const { return !leaving_.empty() || !arriving_.empty(); }
  /// Returns whether the peer has sent a shutdown notice, so that nothing more will begin.
  bool departed() const { return departed_; }
  /// Returns whether the peer did so before it announced or cleared `frame`.
  bool CannotFinish(const Frame& frame) const;
  const std::string& name() const { return name_; }

  static ControlMessage ShutdownNotice() { return {}; }

 private:
  Status Match();
  Status BeginArriving(std::vector<ControlMessage>* tell, bool* progress);
  Status BeginLeaving(bool* progress);
  Status Finish(Channel& channel, std::vector<Frame*>* frames, bool* progress);
  Status Begin(Channel& channel, const std::vector<Frame*>& frames);
  Status Broken(const std::string& what) const;

  const int self_, peer_;
  const std::string name_;
  std::unique_ptr<Channel> out_, in_;
  std::deque<Frame*> announced_by_us_;  // not yet cleared
  std::deque<uint32_t> clearances_;     // sizes of the batches that may be sent
  std::vector<Frame*> leaving_;
  std::deque<FrameHeader> announced_by_peer_;  // without a receive
  std::deque<Frame*> receives_;                // without an announced frame
  std::deque<Frame*> ready_;                   // matched, not yet cleared
  std::vector<Frame*> arriving_;
  bool departed_ = false;
};

}  // namespace weir::nccl
