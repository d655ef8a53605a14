#pragma once
// Messages with tags between pairs of ranks, over a transport of their own. A message is offered,
// accepted once the receiver has a buffer for it, and then sent straight into that buffer. Nothing
// is buffered in between, and two ranks that send to each other before they receive do not block.
// Bytes: proto/WIRE.md section 1, "Messages between two ranks". Protocol logic only: one thread.

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
/// The bounds on messages of one rank under way, and on offers of one peer without a receive.
inline constexpr size_t kMessagesMax = 4096;

/// A message to send or to receive. `bytes` stays alive and, for sends, unchanged until `done`.
struct PointToPointMessage {
  int peer = kAnyRank;  // kAnyRank: receives only
  uint64_t tag = 0;
  std::span<std::byte> bytes;
  Duration timeout{};
  /// Called once, with the peer. kInvalidArgument: sizes differ; kUnavailable names the peer that
  /// left; kDeadlineExceeded names whom it waited for. The last one, and the death of any peer,
  /// end every message of this rank, and what the others have under way.
  std::function<void(const Status& status, int peer)> done;
};

/// Messages of equal tag between two ranks are matched in the order sent and received. Not
/// thread-safe. Its transport, which nobody else uses, is destroyed before it.
class PointToPoint {
 public:
  /// `transport` is connected; at most kPointToPointWorldMax ranks.
  explicit PointToPoint(Transport& transport);

  void Send(PointToPointMessage message);
  void Receive(PointToPointMessage message);

  /// Handles the next event. Returns also at the transport's Wake and at `until`. After an error
  /// every message has ended, and later ones fail.
  Status Serve(TimePoint until);

  /// The error that ended all messages; OK while there is none.
  const Status& failure() const { return failure_; }
  /// Ends everything with `status` after an exception, which may have destroyed posted buffers.
  /// Once more where it throws itself.
  void Abandon(const Status& status);

  /// Ends all messages with kAborted and tells the peers, within 200 ms, that nothing will follow.
  void Leave();

 private:
  static constexpr size_t kControlBytes = 32;
  static constexpr size_t kSegmentBytes = 1 << 20;

  enum class Kind : uint8_t { kOffer = 1, kAccept, kRefuse, kData, kShutdownNotice };
  struct Control {
    Kind kind = Kind::kOffer;
    uint64_t id = 0;  // the sender's number of the message
    uint64_t tag = 0;
    uint64_t bytes = 0;
  };
  struct Open : PointToPointMessage {
    uint64_t id = 0;
    size_t moved = 0;       // bytes
    bool accepted = false;  // sends: the receiver has a place
    TimePoint deadline;
  };
  struct Posted {
    Ticket ticket = 0;
    std::array<std::byte, kControlBytes> control;
    uint64_t finishes = 0;  // the message whose last bytes this is; 0: none
  };
  struct Peer {
    bool departed = false;     // its shutdown notice was read
    bool unreachable = false;  // nothing can be sent to it any more
    Ticket receive = 0;        // 0: none posted
    bool payload = false;      // `receive` is for message `arriving`
    uint64_t arriving = 0;
    size_t arriving_bytes = 0;
    std::array<std::byte, kControlBytes> control;
    std::deque<Control> offers;         // without a receive yet, in order
    std::map<uint64_t, Open> incoming;  // accepted, by the peer's id
    std::map<uint64_t, Open> outgoing;  // offered, by own id
    std::deque<uint64_t> accepted;      // those of `outgoing` to send now
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
  size_t window_ = 0;  // frames to one peer that may be posted to the transport
  uint64_t issued_ = 0;
  TimePoint earliest_ = TimePoint::max();  // a lower bound on all messages' deadlines
  size_t open_ = 0;
  std::vector<Peer> peers_;    // by rank; the own one unused
  std::deque<Open> receives_;  // unmatched, in order
  std::vector<Ticket> tickets_;
  std::vector<int> owners_;
};

}  // namespace weir
