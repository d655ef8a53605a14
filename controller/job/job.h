// SPDX-License-Identifier: Apache-2.0
#pragma once
// One training run as the controller sees it. The parts know one thing each (who its ranks are,
// what they report, what they run, what to run next); this passes on what happens to those
// concerned.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/job/decision_loop.h"
#include "controller/job/job_host.h"
#include "controller/job/job_slots.h"
#include "controller/job/job_view.h"
#include "controller/job/membership.h"
#include "controller/job/observer.h"
#include "controller/job/plan_ledger.h"

namespace weir {

/// Not thread-safe: owned by the fleet.
class Job {
 public:
  /// `host` outlives it.
  Job(std::string name, JobHost& host, JobOptions options);

  /// Rebuilds what a former controller knew: highest version and the last decision. Ranks tell the
  /// rest.
  void Recover(const JobView& stored, std::optional<JobPin> pin,
               std::optional<DecisionRecord> newest, std::string progress = {});

  /// A rank's greeting through its node. kInvalidArgument or kFailedPrecondition: refused, says
  /// why; also when the rank is attached on another node: two processes must not be mixed, and the
  /// one that trains under this controller stays. So is, while ranks are attached, one that does
  /// not prove the key that they proved, whatever epoch it says; an event names it. kUnavailable: a
  /// higher epoch of a job without a key from a node that does not carry the job; when ranks of its
  /// nodes have said it, it is believed.
  Status OnRankHello(const std::string& node, const RankGreeting& hello);
  /// Everything else that a rank says. Ranks that have not greeted are ignored.
  void OnRankSaid(int rank, const RankSaid& said);
  void OnRankGone(int rank, const std::string& reason);
  void OnNodeLost(const std::string& node);
  /// Ignored unless both nodes carry ranks of this job.
  void OnLink(const LinkObservation& observation);
  /// `node` carries ranks of this job.
  void OnNccl(const std::string& node, const NcclObservation& sums);
  void OnTick();
  /// A policy changed somewhere: decide again if the one that rules this job did.
  void OnPolicyChange() { loop_.OnPolicyChange(); }
  /// Takes an aggregator's answer to a request of this job.
  void OnLeaseAnswer(const LeaseAsk& ask, const StatusOr<SlotGrant>& answer);

  /// See DecisionLoop::Pin.
  Status Pin(const JobPin& pin);
  Status Unpin();

  JobView View() const;
  const std::string& name() const { return name_; }
  const Membership& members() const { return members_; }
  /// Null before the first greeting.
  const JobModel* model() const { return observer_.model(); }
  const StepSeries& series() const { return observer_.series(); }
  const JobCounters& counters() const { return counters_; }
  const DecisionLoop& decisions() const { return loop_; }
  /// For how long all ranks have been connected.
  double complete_for_s() const;
  double finished_unix_s() const { return finished_unix_s_; }

 private:
  void On(int rank, const BucketList& buckets);
  void On(int rank, const StepObservation& step);
  void On(int rank, const PathList& paths);
  void On(int rank, const PlanAcked& ack);
  void On(int rank, const PlanRefused& nack);
  void On(int rank, const PlanActivated& active);
  void On(int rank, const RankIncident& incident);
  void Begin(const RankGreeting& hello);
  void OnComplete();
  void MaybeDecide();
  void PumpRollout();
  void PublishIncident(const std::string& text, RankIncident incident);
  void PublishState();
  void PublishSoon(const std::string& state_before);
  void SaveProgress();
  void Warn(const std::string& message) const;

  const std::string name_;
  JobHost& host_;
  const JobOptions options_;
  JobCounters counters_;
  Membership members_;
  Observer observer_;
  PlanLedger ledger_;
  JobSlots slots_;
  DecisionLoop loop_;
  double finished_unix_s_ = 0;
  std::optional<TimePoint> complete_since_;
  bool state_unpublished_ = false;  // until the next tick
  TimePoint next_check_{}, next_progress_save_{};
  uint64_t losses_saved_ = 0;
};

}  // namespace weir
