#pragma once
// All that goes on between this rank and one other: who may send when, and what is under way. No
// clock, no input or output but through the channels.

#include <deque>
#include <vector>

#include "datapath/nccl/device.h"
#include "datapath/transport/transport.h"

namespace weir::nccl {

/// Posted at a time; beyond, PostSend and PostReceive are kResourceExhausted.
inline constexpr size_t kFramesMax = 1024;

/// One posted send or receive.
struct Frame {
  Ticket ticket = 0;
  int peer = -1;
  bool send = false;
  bool done = false;
  FrameHeader header;           // receive: the peer's once it is known
  std::span<std::byte> buffer;  // device memory
};

/// A message between two lanes, over the control connection: a frame's header that announces it, a
/// count of announced frames that may now be sent as one batch, or a shutdown notice.
using Letter = std::vector<std::byte>;

/// Frames of one direction are announced, matched with receives, cleared and moved in the order
/// they were posted. A receiver clears what it begins to receive at the same time, so both ends
/// form the same batches, and nothing is ever in a stream that its other end does not come to:
/// whatever the ranks post in whatever order, streams never wait for each other in a circle. Not
/// thread-safe. Every error means that the whole transport fails.
class Lane {
 public:
  static constexpr size_t kBatchMax = 32;

  /// `name` is "rank 2 (10.0.0.3:40000)".
  Lane(int self, int peer, std::string name) : self_(self), peer_(peer), name_(std::move(name)) {}

  void SetChannels(std::unique_ptr<Channel> out, std::unique_ptr<Channel> in) {
    out_ = std::move(out);
    in_ = std::move(in);
  }
  /// Aborts what is under way: no buffer is read or written any more.
  void DropChannels() {
    out_.reset();
    in_.reset();
  }

  /// What to tell the peer of a new send. Without a payload the send is done.
  Letter Announce(Frame* frame);
  void Expect(Frame* frame) { receives_.push_back(frame); }
  /// kDataLoss: the peer breaks the rules.
  Status OnMessage(std::span<const std::byte> message);
  /// Finishes what has moved and begins what can move; adds what to tell the peer. *progress is set
  /// when anything happened. kUnavailable names the peer; kDataLoss: a frame is longer than its
  /// receive.
  Status Drive(std::vector<Letter>* tell, bool* progress);

  /// The device is at work.
  bool busy() const { return !leaving_.empty() || !arriving_.empty(); }
  /// The peer sent a shutdown notice: nothing more will begin.
  bool departed() const { return departed_; }
  /// It did before it announced, or cleared, `frame`.
  bool CannotFinish(const Frame& frame) const;
  const std::string& name() const { return name_; }

  static Letter ShutdownNotice() { return {}; }

 private:
  Status Match();
  Status BeginArriving(std::vector<Letter>* tell, bool* progress);
  Status BeginLeaving(bool* progress);
  Status Finish(Channel& channel, std::vector<Frame*>* frames, bool* progress);
  Status Begin(Channel& channel, const std::vector<Frame*>& frames);
  Status Broken(const std::string& what) const;

  const int self_, peer_;
  const std::string name_;
  std::unique_ptr<Channel> out_, in_;
  std::deque<Frame*> announced_by_us_;  // not yet cleared
  std::deque<uint32_t> clearances_;     // sizes of the batches that may leave
  std::vector<Frame*> leaving_;
  std::deque<FrameHeader> announced_by_peer_;  // no receive yet
  std::deque<Frame*> receives_;                // not announced yet
  std::deque<Frame*> ready_;                   // matched, not yet cleared
  std::vector<Frame*> arriving_;
  bool departed_ = false;
};

}  // namespace weir::nccl
