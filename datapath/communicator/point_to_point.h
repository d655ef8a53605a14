// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages with tags between pairs of ranks, over a separate transport. The sender offers a
// message, the receiver accepts it once it has a buffer, and the payload is then sent directly into
// that buffer. Nothing is buffered in between, and two ranks that both send before they receive do
// not block each other. Bytes: proto/WIRE.md section 1, "Messages between two ranks". Protocol
// logic only, for one thread.

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"
#include "datapath/transport/transport.h"

namespace weir {

inline constexpr int kAnyRank = -1;
inline constexpr int kPointToPointWorldMax = 1024;
/// The most messages of one rank in progress, and the most offers of one peer without a receive.
inline constexpr size_t kMessagesMax = 4096;

/// A message to send or to receive. `bytes` must stay valid and, for sends, unchanged until `done`.
struct PointToPointMessage {
  int peer = kAnyRank;  // kAnyRank: receives only
  uint64_t tag = 0;
  std::span<std::byte> bytes;
  Duration timeout{};
  /// Called once, with the peer. kInvalidArgument: the sizes differ. kUnavailable names the peer
  /// that left. kDeadlineExceeded names the rank that was awaited. kDeadlineExceeded and the death
  /// of any peer end every message of this rank, and those that other ranks have in progress.
  std::function<void(const Status& status, int peer)> done;
};

/// Messages of equal tag between two ranks are matched in the order of sends and receives. Not
/// thread-safe. Its transport has no other user and must be destroyed before it.
class PointToPoint {
 public:
  /// `transport` is connected and has at most kPointToPointWorldMax ranks.
  explicit PointToPoint(Transport& transport);

  void Send(PointToPointMessage message);
  void Receive(PointToPointMessage message);

  /// Handles the next event. It also returns after the transport's Wake and at `until`. After an
  /// error every message has ended, and later ones fail.
  Status Serve(TimePoint until);

  /// The error that has ended all messages, or OK.
  const Status& failure() const { return failure_; }
  /// Ends everything with `status` after an exception, which may have destroyed posted buffers. To
  /// be called again if it throws itself.
  void Abandon(const Status& status);

  /// Ends all messages with kAborted, and sends shutdown notices to the peers, within 200 ms.
  void Leave();

 private:
  static constexpr size_t kControlBytes = 32;
  static constexpr size_t kSegmentBytes = 1 << 20;

  enum class Kind : uint8_t { kOffer = 1, kAccept, kRefuse, kData, kShutdownNotice };
  struct Control {
    Kind kind = Kind::kOffer;
    uint64_t id = 0;  // the sender's number for the message
    uint64_t tag = 0;
    uint64_t bytes = 0;
  };
  struct Open : PointToPointMessage {
    uint64_t id = 0;
    size_t moved = 0;       // bytes
    bool accepted = false;  // for sends: whether the receiver has a buffer
    TimePoint deadline;
  };
  struct Posted {
    Ticket ticket = 0;
    std::array<std::byte, kControlBytes> control;
    uint64_t finishes = 0;  // the message whose last bytes these are; 0: none
  };
  struct Peer {
    bool departed = false;     // whether its shutdown notice was read
    bool unreachable = false;  // whether sending to it is impossible
    Ticket receive = 0;        // 0: no receive is posted
    bool payload = false;      // whether `receive` is for the payload of `arriving`
    uint64_t arriving = 0;
    size_t arriving_bytes = 0;
    std::array<std::byte, kControlBytes> control;
    std::deque<Control> offers;         // without a receive, in order
    std::map<uint64_t, Open> incoming;  // accepted; by the peer's id
    std::map<uint64_t, Open> outgoing;  // offered; by this rank's id
    std::deque<uint64_t> accepted;      // those of `outgoing` that are to be sent now
    std::deque<Control> controls;       // to be posted
    std::deque<Posted> posted;          // a deque, because addresses must not change
  };

  Status CheckOrder(const PointToPointMessage& message, bool sends) const;
  Open Admit(PointToPointMessage message);
  void Match(Open receive, int peer, const Control& offer);
  void Finish(Open message, const Status& status, int peer);

  Status Fill(int peer);
  Status Post(int peer, const Control& control);
  Status PostSegment(int peer);
  Status PostControlReceive(int peer);
  Status OnSent(int peer);
  Status OnReceive(int peer);
  Status OnControl(int peer, const Control& control);
  Status OnOffer(int peer, const Control& offer);
  Status OnAnswer(int peer, const Control& answer);
  Status OnData(int peer, const Control& data);
  Status OnPayload(int peer);
  Status OnShutdownNotice(int peer);

  Status CheckDeadlines(TimePoint now);
  Status Fail(const Status& status);
  void EndAll(const Status& status);

  Transport& transport_;
  Status failure_;
  size_t window_ = 0;  // the most frames to one peer that are posted to the transport
  uint64_t issued_ = 0;
  TimePoint earliest_ = TimePoint::max();  // a lower bound on all messages' deadlines
  size_t open_ = 0;
  std::vector<Peer> peers_;    // by rank; this rank's entry is not used
  std::deque<Open> receives_;  // unmatched, in order
  std::vector<Ticket> tickets_;
  std::vector<int> owners_;
};

}  // namespace weir
