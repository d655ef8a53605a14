// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a rank moves from one plan to the next such that no operation ever runs on mixed plans. This
// is a pure state machine: it takes messages and step boundaries and returns replies, without I/O,
// clock or threads.
//
// The life of plan v: the controller offers it to every rank, and each rank validates and acks it.
// When all have acked, rank 0 alone is armed. At the beginning of its next step s, rank 0 announces
// "v runs from step s+1". Every frame that it sends in step s carries the announcement, and no
// all-reduce can finish on any rank without rank 0's contribution, so every rank knows it by the
// end of step s. At the beginning of step s+1 every rank swaps.
//
// A rank keeps plans that were withdrawn or replaced, because it cannot know whether rank 0 had
// announced them before. It may drop a plan only when a higher version is active (rank 0 never
// announces a lower one), or when the controller has withdrawn or replaced it and the bound below
// is reached.
//
// Leases: a plan may be offered together with its lease plan, which is dense and has a higher
// version of its own. An ack is for both. So while the plan is active, every rank holds its lease
// plan, whatever else is offered, replaced or withdrawn, and drops it only at the next swap. Rank 0
// may therefore announce it without the controller. It does so when it has not heard from the
// controller for the time of the lease. A plan that is armed has priority.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/plan/plan.h"
#include "datapath/wire/frame.h"

namespace weir {

/// The most acked plans that a rank holds in addition to the active one. At the bound the oldest
/// withdrawn or replaced plan is dropped.
inline constexpr size_t kHeldPlansMax = 64;

struct PlanAck {
  uint64_t version = 0;
  std::string nonce;
  friend bool operator==(const PlanAck&, const PlanAck&) = default;
};
struct PlanNack {
  uint64_t version = 0;
  std::string nonce;
  std::string reason;
  friend bool operator==(const PlanNack&, const PlanNack&) = default;
};
struct PlanActive {
  uint64_t version = 0;
  uint64_t step = 0;  // the first step that ran on it
  friend bool operator==(const PlanActive&, const PlanActive&) = default;
};
using ActivationReply = std::variant<PlanAck, PlanNack, PlanActive>;

/// Not thread-safe: the owner guards it.
class PlanActivation {
 public:
  /// `initial` runs from the first step on (version 0: dense). It is the same on all ranks.
  PlanActivation(int rank, int world, std::shared_ptr<const Plan> initial);

  /// To be called before the first step: replaces the initial plan and drops all others.
  void StartFrom(std::shared_ptr<const Plan> initial);

  /// Handles an offer of `plan` by the agent. `valid` is the result of ValidatePlan. `lease` is
  /// null or the plan for the end of the lease. Repeated offers are answered again. Nacks a plan
  /// that is invalid, a version that is not above the active one, a version that is held with other
  /// content or is promised to a lease, and a lease plan whose version is held or not above the
  /// plan's.
  ActivationReply OnOffer(std::shared_ptr<const Plan> plan, const std::string& nonce,
                          const Status& valid, std::shared_ptr<const Plan> lease = nullptr);
  /// On rank 0: `version` is to be announced from the beginning of the next step on. For the active
  /// version it returns the activation again. It has no effect on other ranks, or for a version
  /// that is not the offered and acked one, so an arm that is stale, early or repeated is harmless.
  std::optional<ActivationReply> OnArm(uint64_t version);
  /// The controller withdraws `version`. Rank 0 drops it unless it has been announced, in which
  /// case it is activated nevertheless. Other ranks keep it; see above.
  void OnWithdraw(uint64_t version);

  /// Begins a step: swaps to the announced plan, if any. Then rank 0 announces the armed plan or,
  /// when none is armed and `lease_expired`, the lease plan of the active plan, if it has one.
  /// Returns the activation to report, if there was one. The owner numbers steps from 0, without
  /// gaps.
  std::optional<PlanActive> BeginStep(uint64_t step, bool lease_expired = false);

  /// The control word of this rank's frames in the current step.
  ControlWord announced() const { return announced_; }

  /// To be called for every operation of the current step that moved at least one byte and finished
  /// on this rank. `word` is the control word that it carried (version 0: none). kInternal: the
  /// word names a plan that this rank does not hold, or another step. Training must stop then,
  /// because the other ranks will swap.
  Status OnOperationDone(const ControlWord& word);

  const std::shared_ptr<const Plan>& active() const { return active_; }
  /// The lease plan of the active plan, or null.
  const std::shared_ptr<const Plan>& lease_plan() const { return lease_plan_; }
  uint64_t step() const { return step_; }
  size_t held_count() const { return held_.size(); }

 private:
  struct Held {
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<const Plan> lease;  // may be null
    uint64_t content = 0;               // of the plan and its lease plan
    bool given_up = false;              // withdrawn, or replaced by a newer offer
  };

  Status CheckLease(const Plan& plan, const Plan* lease) const;
  bool IsLeasePlan(uint64_t version) const {
    return lease_plan_ != nullptr && lease_plan_->version == version;
  }
  void MakeRoom();
  std::optional<PlanActive> Swap(uint64_t step);

  const int rank_;
  const int world_;
  std::shared_ptr<const Plan> active_;
  std::shared_ptr<const Plan> lease_plan_;
  uint64_t active_content_;
  uint64_t step_ = 0;
  uint64_t active_since_step_ = 0;
  std::map<uint64_t, Held> held_;  // version -> plan, all above the active version
  uint64_t armed_version_ = 0;     // rank 0: to be announced at the next step; 0: none
  ControlWord announced_;          // of the current step; version 0: none
  bool carried_ = false;           // an operation of this step has finished, so every rank knows
};

}  // namespace weir
