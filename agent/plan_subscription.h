// SPDX-License-Identifier: Apache-2.0
#pragma once
// The knowledge that a node's ranks and the controller have of each other, as a pure state machine:
// no sockets, no clock, no threads. After a lost connection the whole state is sent again (state of
// the world, as in xDS), so nothing depends on the delivery of a particular message. Ranks never
// wait for any of this.

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/rank_claims.h"
#include "agent/tiered_queue.h"
#include "weir/v1/agent.pb.h"

namespace weir::agent {

struct RankKey {
  std::string job;
  uint32_t rank = 0;
  friend auto operator<=>(const RankKey&, const RankKey&) = default;
};
/// The rank in messages: "rank 2 of job 'x'".
std::string Describe(const RankKey& key);

/// Steps and paths are telemetry; everything else is control.
Tier TierOf(const v1::RankMessage& message);

struct SendToController {
  v1::AgentMessage message;
  Tier tier = Tier::kControl;
};
struct SendToRank {
  ConnectionId connection = 0;
  v1::RankCommand command;
};
/// Send the reason and close.
struct RefuseRank {
  ConnectionId connection = 0;
  std::string reason;
  double retry_after_s = 0;  // as in RankRefusal
};
using Effect = std::variant<SendToController, SendToRank, RefuseRank>;
/// In the order of execution.
using Effects = std::vector<Effect>;

/// Not thread-safe. Bounds: one session per connection (the server limits those), 8 offered plans
/// per session, 256 undelivered control messages while there is no controller.
class PlanSubscription {
 public:
  struct Counters {
    uint64_t offers = 0;
    uint64_t acks = 0;
    uint64_t nacks = 0;
    uint64_t activations = 0;
    uint64_t stale_answers = 0;     // wrong nonce or version, or repeated
    uint64_t unknown_messages = 0;  // of kinds that this version does not know
    uint64_t undelivered_dropped = 0;
    uint64_t replaced = 0;  // ranks that attached again while the old connection was open
  };

  explicit PlanSubscription(v1::NodeHello node) : node_(std::move(node)), claims_(node_.node()) {}

  /// The first message must be a valid RankHello from a process that may represent the rank (see
  /// RankClaims); otherwise the connection is refused and nothing else changes. It then replaces an
  /// earlier connection of the rank. `peer` is used with a hello only.
  Effects OnRankMessage(ConnectionId connection, v1::RankMessage message,
                        const RankPeer& peer = RankPeer());
  /// Tells the controller that the rank is gone. Unknown connections are ignored.
  Effects OnRankClosed(ConnectionId connection, const std::string& reason);
  /// Sends the whole state: the node, every rank with its current plan and step, its buckets, its
  /// answer to an offer that is still open, and messages that could not be delivered before.
  Effects OnControllerConnected();
  /// `unsent`: control messages that were never sent.
  void OnControllerLost(std::vector<v1::AgentMessage> unsent);
  /// Passes a command on and remembers offers. For a rank that is not attached, answers with
  /// RankGone.
  Effects OnCommand(const v1::ToRank& command);

  const Counters& counters() const { return counters_; }
  size_t rank_count() const { return by_rank_.size(); }
  /// Ranks that reach peers over a network without any proof, by their own word. O(ranks).
  size_t unauthenticated_rank_count() const;
  bool controller_connected() const { return controller_connected_; }
  /// The key of an attached rank, or null when the connection has not sent a hello or was replaced.
  const RankKey* FindKey(ConnectionId connection) const;

 private:
  struct Session {
    ConnectionId connection = 0;
    v1::RankHello hello;  // updated: active plan, version, step
    std::optional<v1::BucketTable> buckets;
    std::map<uint64_t, v1::Plan> offered;   // by version, newest kOfferedPlansMax
    uint64_t open_version = 0;              // of the offer that awaits activation
    std::string open_nonce;                 // empty: none is open
    std::optional<v1::RankMessage> answer;  // to the open offer
  };

  Effects OnHello(ConnectionId connection, v1::RankMessage message, const RankPeer& peer);
  bool AcceptAnswer(Session& session, const v1::RankMessage& message);
  void SetActivePlan(Session& session, uint64_t version);
  void Forward(const RankKey& key, v1::RankMessage message, Effects* effects);
  void KeepUndelivered(v1::AgentMessage message);

  const v1::NodeHello node_;
  RankClaims claims_;
  bool controller_connected_ = false;
  std::map<RankKey, Session> by_rank_;
  std::map<ConnectionId, RankKey> by_connection_;
  std::deque<v1::AgentMessage> undelivered_;
  Counters counters_;
};

}  // namespace weir::agent
