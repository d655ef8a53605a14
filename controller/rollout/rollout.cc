// SPDX-License-Identifier: Apache-2.0
// See rollout.h. Why an armed plan is never withdrawn: rank 0 may already have stamped its frames,
// and a rank that dropped the plan then would fail the step. Why a lost rank does not stop an armed
// plan: the activation travels in the training data, so a rank that the controller cannot see still
// swaps.

#include "controller/rollout/rollout.h"

#include <algorithm>

#include "datapath/base/check.h"

namespace weir {

std::string_view RolloutStateName(RolloutState state) {
  switch (state) {
    case RolloutState::kStable:
      return "stable";
    case RolloutState::kOffered:
      return "offered";
    case RolloutState::kArmed:
      return "armed";
  }
  return "";
}

std::string_view PlanLogKindName(PlanLogEntry::Kind kind) {
  switch (kind) {
    case PlanLogEntry::Kind::kOffered:
      return "offered";
    case PlanLogEntry::Kind::kNacked:
      return "nacked";
    case PlanLogEntry::Kind::kWithdrawn:
      return "withdrawn";
    case PlanLogEntry::Kind::kArmed:
      return "armed";
    case PlanLogEntry::Kind::kActive:
      return "active";
  }
  return "";
}

Rollout::Rollout(int world, const Clock& clock, RolloutOptions options)
    : clock_(clock), options_(options), ranks_(static_cast<size_t>(std::max(world, 1))) {}

void Rollout::ObserveVersion(uint64_t version) {
  highest_version_ = std::max(highest_version_, version);
}

void Rollout::OnRankConnected(int rank, uint64_t active_version) {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size())) return;
  Rank& peer = ranks_[rank];
  peer.connected = true;
  peer.known = true;
  // A late hello must not reset the version after a newer report.
  peer.active_version = std::max(peer.active_version, active_version);
  ObserveVersion(active_version);
  if (state_ == RolloutState::kStable) {
    // The rank may still hold a plan whose withdrawal it missed.
    if (withdrawn_version_ > active_version_) {
      Send(RolloutMessage::Kind::kWithdraw, rank, withdrawn_version_);
    }
    AdoptCommonVersion(0);
    return;
  }
  if (peer.active_version == pending_.version) {
    peer.active = true;
    FinishWhenActive(0);
    return;
  }
  Send(RolloutMessage::Kind::kOffer, rank, pending_.version);
  if (state_ == RolloutState::kArmed && rank == 0)
    Send(RolloutMessage::Kind::kArm, 0, pending_.version);
}

void Rollout::OnRankLost(int rank, std::string_view why) {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size())) return;
  ranks_[rank].connected = false;
  if (state_ == RolloutState::kOffered) {
    Withdraw(rank, StrCat("rank ", rank, " lost: ", why));
  } else if (state_ == RolloutState::kArmed) {
    FinishWhenActive(0);
  }
}

bool Rollout::Matches(int rank, uint64_t version, std::string_view nonce) const {
  return rank >= 0 && rank < static_cast<int>(ranks_.size()) && state_ != RolloutState::kStable &&
         version == pending_.version && nonce == pending_.nonce;
}

void Rollout::OnAck(int rank, uint64_t version, std::string_view nonce) {
  if (!Matches(rank, version, nonce) || !ranks_[rank].connected) return;
  ranks_[rank].acked = true;
  if (state_ == RolloutState::kOffered) ArmWhenAllAcked();
}

void Rollout::OnNack(int rank, uint64_t version, std::string_view nonce, std::string_view reason) {
  if (!Matches(rank, version, nonce)) return;
  Record(PlanLogEntry::Kind::kNacked, version, 0, rank, std::string(reason));
  // After the arm a refusal comes too late: the plan can no longer be withdrawn.
  if (state_ == RolloutState::kOffered) Withdraw(rank, StrCat("rank ", rank, " refused: ", reason));
}

void Rollout::OnActive(int rank, uint64_t version, uint64_t step) {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size())) return;
  Rank& peer = ranks_[rank];
  ObserveVersion(version);
  peer.known = true;
  if (version <= peer.active_version && !(version == pending_.version && !peer.active)) return;
  peer.active_version = std::max(peer.active_version, version);
  if (state_ == RolloutState::kStable) {
    AdoptCommonVersion(step);
    return;
  }
  if (version != pending_.version) return;
  peer.active = true;
  FinishWhenActive(step);
}

void Rollout::OnTick() {
  const TimePoint now = clock_.Now();
  if (state_ == RolloutState::kOffered && now - pending_.since >= options_.ack_timeout) {
    Withdraw(-1, StrCat("no answer within ", ToSeconds(options_.ack_timeout), " s from ",
                        MissingAcks()));
  } else if (state_ == RolloutState::kArmed && now - pending_.since >= options_.rearm_interval) {
    pending_.since = now;
    if (ranks_[0].connected && !ranks_[0].active) {
      Send(RolloutMessage::Kind::kArm, 0, pending_.version);
    }
    FinishWhenActive(0);
  }
}

Status Rollout::CanOffer() const {
  if (state_ != RolloutState::kStable) {
    return FailedPrecondition(
        StrCat("plan ", pending_.version, " is still ", RolloutStateName(state_)));
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].connected) return FailedPrecondition(StrCat("rank ", rank, " is missing"));
    if (ranks_[rank].active_version != active_version_) {
      return FailedPrecondition(StrCat("rank ", rank, " runs plan ", ranks_[rank].active_version,
                                       ", the job plan ", active_version_));
    }
  }
  const TimePoint now = clock_.Now();
  if (now < offers_allowed_at_) {
    return FailedPrecondition(StrCat("back-off after plan ", withdrawn_version_, " was withdrawn: ",
                                     ToSeconds(offers_allowed_at_ - now), " s left"));
  }
  return OkStatus();
}

Status Rollout::Offer(uint64_t version, std::string nonce, std::string digest) {
  WEIR_RETURN_IF_ERROR(CanOffer());
  if (version <= highest_version_) {
    return InvalidArgument(
        StrCat("plan version ", version, " is not above ", highest_version_, ", the highest seen"));
  }
  highest_version_ = version;
  pending_ = {version, std::move(nonce), std::move(digest), clock_.Now()};
  state_ = RolloutState::kOffered;
  first_active_step_ = 0;
  for (Rank& rank : ranks_) rank.acked = rank.active = false;
  Record(PlanLogEntry::Kind::kOffered, version, 0, -1, "");
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Send(RolloutMessage::Kind::kOffer, static_cast<int>(rank), version);
  }
  return OkStatus();
}

void Rollout::ClearBackoff() {
  backoff_ = Duration(0);
  offers_allowed_at_ = TimePoint{};
}

void Rollout::Send(RolloutMessage::Kind kind, int rank, uint64_t version) {
  RolloutMessage message{kind, rank, version, "", ""};
  if (kind == RolloutMessage::Kind::kOffer) {
    message.nonce = pending_.nonce;
    message.digest = pending_.digest;
  }
  messages_.push_back(std::move(message));
}

void Rollout::Record(PlanLogEntry::Kind kind, uint64_t version, uint64_t step, int rank,
                     std::string detail) {
  log_.push_back({kind, version, step, rank, std::move(detail)});
}

void Rollout::Withdraw(int rank, std::string detail) {
  WEIR_CHECK(state_ == RolloutState::kOffered);
  state_ = RolloutState::kStable;
  withdrawn_version_ = pending_.version;
  for (size_t other = 0; other < ranks_.size(); ++other) {
    if (ranks_[other].connected) {
      Send(RolloutMessage::Kind::kWithdraw, static_cast<int>(other), pending_.version);
    }
  }
  backoff_ = backoff_ == Duration(0) ? options_.backoff_initial
                                     : std::min(backoff_ * 2, options_.backoff_max);
  offers_allowed_at_ = clock_.Now() + backoff_;
  Record(PlanLogEntry::Kind::kWithdrawn, pending_.version, 0, rank, std::move(detail));
}

void Rollout::ArmWhenAllAcked() {
  for (const Rank& rank : ranks_) {
    if (!rank.acked || !rank.connected) return;
  }
  Arm();
}

void Rollout::Arm() {
  state_ = RolloutState::kArmed;
  pending_.since = clock_.Now();
  Send(RolloutMessage::Kind::kArm, 0, pending_.version);
  Record(PlanLogEntry::Kind::kArmed, pending_.version, 0, -1, "");
}

void Rollout::FinishWhenActive(uint64_t step) {
  if (step != 0) first_active_step_ = step;
  bool any_active = false;
  for (const Rank& rank : ranks_) {
    if (rank.connected && !rank.active) return;
    any_active = any_active || rank.active;
  }
  if (!any_active) return;
  active_version_ = pending_.version;
  // A rank that is not connected has swapped with the others, because the same frames told it to.
  for (Rank& rank : ranks_) rank.active_version = std::max(rank.active_version, active_version_);
  state_ = RolloutState::kStable;
  ClearBackoff();
  Record(PlanLogEntry::Kind::kActive, active_version_, first_active_step_, -1, "");
}

// No plan is pending, yet the ranks may run a version that this controller does not know: after a
// restart of the controller, or when a plan that the previous one had armed activates.
void Rollout::AdoptCommonVersion(uint64_t step) {
  const uint64_t common = ranks_[0].active_version;
  for (const Rank& rank : ranks_) {
    if (!rank.known || rank.active_version != common) return;
  }
  if (common == active_version_) return;
  active_version_ = common;
  Record(PlanLogEntry::Kind::kActive, common, step, -1, "reported by the ranks");
}

std::string Rollout::MissingAcks() const {
  std::string missing;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].acked) missing += StrCat(missing.empty() ? "rank " : ", rank ", rank);
  }
  return missing;
}

std::vector<RolloutMessage> Rollout::TakeMessages() { return std::exchange(messages_, {}); }
std::vector<PlanLogEntry> Rollout::TakeLog() { return std::exchange(log_, {}); }

}  // namespace weir
