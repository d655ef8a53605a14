// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moves one job from one plan to the next: it offers the plan to every rank, collects acks, arms
// rank 0, and waits until every rank has activated it. A pure state machine: events in, messages
// out, time from an injected clock, so that every interleaving can be tested without a network. It
// knows plans only by version, nonce and digest; its owner keeps their contents.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

enum class RolloutState {
  kStable,   // no plan is on its way
  kOffered,  // ranks prepare it; it can still be withdrawn
  kArmed,    // rank 0 may stamp it at any step: it can no longer be withdrawn
};

/// "stable", "offered" or "armed". Static text.
std::string_view RolloutStateName(RolloutState state);

/// A message that the owner delivers to one rank.
struct RolloutMessage {
  enum class Kind { kOffer, kArm, kWithdraw };
  Kind kind = Kind::kOffer;
  int rank = 0;
  uint64_t version = 0;
  std::string nonce;   // of the offer; empty otherwise
  std::string digest;  // of the offer; empty otherwise
  friend bool operator==(const RolloutMessage&, const RolloutMessage&) = default;
};

/// One line of a job's plan history.
struct PlanLogEntry {
  enum class Kind { kOffered, kNacked, kWithdrawn, kArmed, kActive };
  Kind kind = Kind::kOffered;
  uint64_t version = 0;
  uint64_t step = 0;   // kActive: first step that ran on it
  int rank = -1;       // whose message caused it; -1: none
  std::string detail;  // nack or withdrawal reason
};

/// "offered", "nacked", "withdrawn", "armed" or "active". Static text.
std::string_view PlanLogKindName(PlanLogEntry::Kind kind);

struct RolloutOptions {
  Duration ack_timeout = std::chrono::seconds(10);
  Duration rearm_interval = std::chrono::seconds(5);  // an unanswered arm is sent again this often
  Duration backoff_initial = std::chrono::seconds(2);
  Duration backoff_max = std::chrono::seconds(300);
};

/// The activation protocol of one job. Not thread-safe. Every call may queue messages and log
/// entries, which TakeMessages and TakeLog hand out once, in order.
///
/// Safety: kArm is sent only while every rank of the job has acked the offer's nonce; after it no
/// withdrawal is sent. Duplicate, late and reordered messages change nothing.
class Rollout {
 public:
  /// `world` ranks, numbered from 0.
  Rollout(int world, const Clock& clock, RolloutOptions options = {});

  /// A rank has connected (again) and reports its version. State of the world: it gets the pending
  /// offer with the same nonce, or the withdrawal of a plan that it may still hold.
  void OnRankConnected(int rank, uint64_t active_version);
  /// A rank can no longer be reached. Withdraws a plan that is offered; an armed one stays.
  void OnRankLost(int rank, std::string_view why);
  void OnAck(int rank, uint64_t version, std::string_view nonce);
  void OnNack(int rank, uint64_t version, std::string_view nonce, std::string_view reason);
  /// `step`: first step on `version`. A step report on that version says the same.
  void OnActive(int rank, uint64_t version, uint64_t step);
  /// To be called at least every second.
  void OnTick();

  /// Starts the rollout of `version`. kFailedPrecondition: another one is on its way, a rank is
  /// missing, the ranks run different versions, or the back-off after a withdrawal lasts (says how
  /// long); kInvalidArgument: the version is not above every version seen.
  Status Offer(uint64_t version, std::string nonce, std::string digest);
  /// OK when Offer would be accepted now, otherwise its error.
  Status CanOffer() const;
  /// Ends the back-off now, for an operator's request or a recovery.
  void ClearBackoff();

  std::vector<RolloutMessage> TakeMessages();
  std::vector<PlanLogEntry> TakeLog();

  RolloutState state() const { return state_; }
  uint64_t active_version() const { return active_version_; }
  /// The version on its way; 0 when stable.
  uint64_t pending_version() const {
    return state_ == RolloutState::kStable ? 0 : pending_.version;
  }
  /// Highest version seen anywhere; a plan must be numbered above it.
  uint64_t highest_version() const { return highest_version_; }
  /// A version known from elsewhere, e.g. the store.
  void ObserveVersion(uint64_t version);

 private:
  struct Rank {
    bool connected = false;
    bool known = false;  // has reported its version at least once
    bool acked = false;
    bool active = false;  // runs the pending version
    uint64_t active_version = 0;
  };
  struct Pending {
    uint64_t version = 0;
    std::string nonce, digest;
    TimePoint since;
  };

  bool Matches(int rank, uint64_t version, std::string_view nonce) const;
  void Send(RolloutMessage::Kind kind, int rank, uint64_t version);
  void Record(PlanLogEntry::Kind kind, uint64_t version, uint64_t step, int rank,
              std::string detail);
  void Withdraw(int rank, std::string detail);
  void ArmWhenAllAcked();
  void Arm();
  void FinishWhenActive(uint64_t step);
  void AdoptCommonVersion(uint64_t step);
  std::string MissingAcks() const;

  const Clock& clock_;
  const RolloutOptions options_;
  std::vector<Rank> ranks_;
  RolloutState state_ = RolloutState::kStable;
  Pending pending_;
  uint64_t active_version_ = 0;
  uint64_t highest_version_ = 0;
  uint64_t withdrawn_version_ = 0;
  Duration backoff_{0};
  TimePoint offers_allowed_at_{};
  uint64_t first_active_step_ = 0;
  std::vector<RolloutMessage> messages_;
  std::vector<PlanLogEntry> log_;
};

}  // namespace weir
