// SPDX-License-Identifier: Apache-2.0
#pragma once
// One peer of a mesh, as the mesh sees it: it takes posted operations, sends them, and reports the
// peer's state. Classes derived from it move the bytes.

#include <atomic>
#include <string>

#include "datapath/transport/mesh/frames.h"

namespace weir::mesh {

/// Not thread-safe. Every error names the peer and means that the whole transport fails.
class Peer {
 public:
  virtual ~Peer() = default;

  void PostSend(Operation* op) { out_.Post(op); }
  void PostReceive(Operation* op) { in_.Post(op); }

  /// Sends what can leave now, bounded so that other peers get their turn. *progress is set when
  /// bytes moved; `sent` counts them. kUnavailable: the peer died or aborted.
  virtual Status DriveSend(TimePoint now, bool* progress, std::atomic<uint64_t>* sent) = 0;
  /// Forgets sends that have not begun and queues one kAbort frame, which is an orderly shutdown
  /// notice if `text` is empty.
  virtual Status QueueShutdownNotice(std::string_view text) = 0;
  /// Whether a frame was sent in part, or a payload is still read from the caller's memory.
  bool ReadsBuffers() const { return out_.front_sent() > 0 || out_.holds(); }
  /// To be called before the peer is destroyed: stops all reading of payloads.
  virtual void Cut() {}
  /// Whether everything queued was sent, or never can be.
  virtual bool flushed() const = 0;
  /// Whether the peer is gone and nothing that has arrived can finish `op` any more.
  virtual bool CannotFinish(const Operation& op) const = 0;

  /// Whether the peer has left in order. What it sent before is delivered, but no more will come.
  bool departed() const { return departed_; }
  /// "rank 2 (10.0.0.3:40000)".
  const std::string& name() const { return in_.name(); }
  /// kUnavailable: "<name> closed the connection".
  Status Closed() const { return in_.Closed(); }
  /// "no answer from ...: last received anything 3.2 s ago" for a deadline's message.
  std::string DescribeWait(const Operation& op, TimePoint now) const;

 protected:
  /// `address` is where the peer listens, for messages. checks_payload: data frames have checksums
  /// in both directions, unless `channel` has tags for them.
  Peer(int self, int peer, const TransportAddress& address, bool checks_payload,
       FrameChannel channel = {});

  FrameSender& out() { return out_; }
  const FrameSender& out() const { return out_; }
  FrameReceiver& in() { return in_; }
  const FrameReceiver& in() const { return in_; }
  void Depart() { departed_ = true; }
  void NoteSent(TimePoint now) { last_sent_ = now; }
  void NoteReceived(TimePoint now) { last_received_ = now; }

 private:
  FrameSender out_;
  FrameReceiver in_;
  bool departed_ = false;
  TimePoint last_received_, last_sent_;
};

}  // namespace weir::mesh
