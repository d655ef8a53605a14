#pragma once
// How a rank moves from one plan to the next, so that no operation ever runs on mixed plans. A pure
// state machine: messages and step boundaries in, replies out, no I/O, no clock, no threads.
//
// The life of plan v: the controller offers it to every rank; each validates and acks. When all
// have acked, rank 0 alone is armed. At its next step begin, s, rank 0 latches the announcement "v
// runs from step s+1": every frame that it sends in step s carries it, and no all-reduce can finish
// on any rank without rank 0's contribution, so at the end of step s every rank has learnt it. At
// the begin of step s+1 every rank swaps.
//
// Why a rank keeps plans that were withdrawn or replaced: it cannot know whether rank 0 had latched
// them before. It may forget a plan only when a higher version is active (rank 0 never announces a
// lower one), or when the controller withdrew or replaced it and the bound below is reached.
//
// Leases. A plan may be offered together with its lease plan: dense, with a higher version of its
// own. Acking is for both, so while the plan is active every rank holds its lease plan, whatever
// else is offered, replaced or withdrawn, and forgets it only when something is swapped in. So rank
// 0 may announce it without a round through the controller, which is what it does when it has not
// heard of the controller for the time of the lease. A plan that is armed goes first.

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

/// Acked plans that a rank holds besides the active one. At the bound the oldest withdrawn or
/// replaced plan is forgotten.
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
  uint64_t step = 0;  // first step that ran on it
  friend bool operator==(const PlanActive&, const PlanActive&) = default;
};
using ActivationReply = std::variant<PlanAck, PlanNack, PlanActive>;

/// Not thread-safe: its owner guards it.
class PlanActivation {
 public:
  /// `initial` is what runs from the first step (version 0: dense); equal on all ranks.
  PlanActivation(int rank, int world, std::shared_ptr<const Plan> initial);

  /// Before the first step: `initial` instead, and nothing else is held.
  void StartFrom(std::shared_ptr<const Plan> initial);

  /// The agent offers `plan`; `valid` is the outcome of ValidatePlan. Repeats are answered again.
  /// `lease`: null, or what to turn to when the lease runs out. Nacks: invalid; version not above
  /// the active one; the same version held with other content or promised to a lease; a lease plan
  /// whose version is not above the plan's or is held.
  ActivationReply OnOffer(std::shared_ptr<const Plan> plan, const std::string& nonce,
                          const Status& valid, std::shared_ptr<const Plan> lease = nullptr);
  /// Rank 0: announce `version` from the next step begin on. Ignored (nothing to say, or the active
  /// version once more) on other ranks and for a version that is not the offered and acked one: an
  /// arm that is stale, early or repeated is harmless.
  std::optional<ActivationReply> OnArm(uint64_t version);
  /// The controller gives `version` up. Rank 0 forgets it unless it is announced already, when it
  /// activates all the same; other ranks keep it, see above.
  void OnWithdraw(uint64_t version);

  /// A step begins: swaps to the announced plan if one was, then latches what is armed (rank 0) or,
  /// when nothing is and `lease_expired`, the active plan's lease plan, if it has one. Returns the
  /// activation to report, if there was one. Steps are numbered from 0 by the owner and rise by
  /// one.
  std::optional<PlanActive> BeginStep(uint64_t step, bool lease_expired = false);

  /// What this rank's frames carry in the current step.
  ControlWord announced() const { return announced_; }

  /// An operation of the current step finished on this rank, having carried `word` (version 0:
  /// none). kInternal: the word names a plan that this rank does not hold, or another step;
  /// training must stop, for the other ranks will switch. Every operation that moved at least one
  /// byte calls this.
  Status OnOperationDone(const ControlWord& word);

  const std::shared_ptr<const Plan>& active() const { return active_; }
  /// Of the active plan; null when it has none.
  const std::shared_ptr<const Plan>& lease_plan() const { return lease_plan_; }
  uint64_t step() const { return step_; }
  size_t held_count() const { return held_.size(); }

 private:
  struct Held {
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<const Plan> lease;  // may be null
    uint64_t content = 0;               // of both
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
  uint64_t armed_version_ = 0;     // rank 0: waits for a step begin; 0: none
  ControlWord announced_;          // of the current step; version 0: none
  bool carried_ = false;           // an operation of this step finished, so every rank knows
};

}  // namespace weir
