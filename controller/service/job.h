#pragma once
// One training run as the controller sees it: its ranks, what is believed about it (JobModel), the
// plan on its way (Rollout), and the loop that turns a change into a decision and a decision into a
// rollout.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/model/job_model.h"
#include "controller/rollout/rollout.h"
#include "controller/service/job_lease.h"
#include "controller/service/plan_monitor.h"
#include "controller/service/policy_set.h"
#include "controller/service/step_series.h"
#include "controller/solver/solver.h"
#include "controller/store/store.h"
#include "datapath/base/clock.h"
#include "weir/v1/admin.pb.h"
#include "weir/v1/agent.pb.h"
#include "weir/v1/rank.pb.h"

namespace weir {

/// What a job needs from its surroundings. Calls come back on the caller's thread.
class JobHost : public LeaseHost {
 public:
  virtual void SendToRank(const std::string& node, const v1::ToRank& message) = 0;
  virtual void Publish(v1::Event event) = 0;
  /// Training of `job` sent this many bytes since the last call.
  virtual void OnTrainingBytes(uint64_t bytes, const Policy& policy) = 0;
  virtual const PolicySet& policies() const = 0;
  virtual Store& store() = 0;
  virtual const Clock& clock() const = 0;
};

struct JobOptions {
  double periodic_s = 5;           // a decision at least this often while training runs
  double check_interval_s = 0.25;  // and a look at the triggers
  uint64_t settle_steps = 3;       // steps after all ranks are present before the first offer
  RolloutOptions rollout;
};

/// Counters of one job for /metrics.
struct JobCounters {
  std::map<std::string, uint64_t> decisions;  // by trigger
  uint64_t switches = 0, nacks = 0, withdrawals = 0, rollbacks = 0, skipped_steps = 0,
           store_errors = 0;
  uint64_t decision_errors = 0;
  double decide_s_sum = 0;
};

/// Not thread-safe: owned by the fleet.
class Job {
 public:
  Job(std::string name, JobHost& host, JobOptions options);
  ~Job();

  /// Rebuilds what a former controller knew: highest version and the last decision. Ranks tell the
  /// rest.
  void Recover(const v1::Job& stored, std::optional<StoredPin> pin);

  /// A rank's greeting through its node. kInvalidArgument or kFailedPrecondition: refused, says
  /// why; also when the rank is attached on another node: two processes must not be mixed, and the
  /// one that trains under this controller stays. So is, while ranks are attached, one that does
  /// not prove the key that they proved, whatever epoch it says; an event names it. kUnavailable: a
  /// higher epoch of a job without a key from a node that does not carry the job; when ranks of its
  /// nodes have said it, it is believed.
  Status OnRankHello(const std::string& node, const v1::RankHello& hello);
  /// Everything else that a rank says. Ranks that have not greeted are ignored.
  void OnRankMessage(int rank, const v1::RankMessage& message);
  void OnRankGone(int rank, const std::string& reason);
  void OnNodeLost(const std::string& node);
  /// Ignored unless both nodes carry ranks of this job.
  void OnLink(const LinkObservation& observation);
  void OnTick();
  /// A policy changed somewhere: decide again if the one that rules this job did.
  void OnPolicyChange();

  /// What an aggregator answered to an ask of this job.
  void OnLeaseAnswer(const LeaseAsk& ask, const StatusOr<v1::AggregatorLease>& answer);

  /// Fixes the choice for all buckets. kNotFound: unknown codec or collective (lists the valid
  /// ones); kInvalidArgument: they do not fit each other, the world size or the ratio;
  /// kFailedPrecondition: no rank is attached.
  Status Pin(const v1::PinRequest& request);
  Status Unpin();

  v1::Job ToProto() const;
  const std::string& name() const { return name_; }
  int world() const { return world_; }
  /// "running", "waiting", "lost" or "ended".
  std::string state() const;
  bool attached() const;  // some rank is connected
  std::vector<std::string> nodes() const;
  bool UsesNode(const std::string& node) const;
  /// Whether that node speaks for that rank. What others say of it is not to be listened to.
  bool HasRankOn(int rank, const std::string& node) const;
  const JobModel* model() const { return model_.get(); }
  const StepSeries& series() const { return series_; }
  const JobCounters& counters() const { return counters_; }
  const Rollout* rollout() const { return rollout_.get(); }
  const std::optional<v1::Decision>& last_decision() const { return last_decision_; }
  const std::vector<v1::Candidate>& last_front() const { return last_front_; }
  /// What the last decision was made from; empty when a former controller made it.
  const std::optional<v1::Explanation>& last_inputs() const { return last_inputs_; }
  std::string last_obstacle() const { return obstacle_; }
  double complete_for_s() const;
  Policy policy() const;
  std::string PolicyName() const;
  const v1::Capabilities& capabilities() const { return capabilities_; }
  double finished_unix_s() const { return finished_unix_s_; }
  double residual_ratio() const { return monitor_.residual_ratio(); }

 private:
  struct RankState {
    std::string node;
    uint32_t pid = 0;
    bool connected = false;
    bool gone = false;
    uint64_t step = 0;
    uint64_t plan_version = 0;
    v1::FrameProtection frame_protection = v1::FRAME_PROTECTION_UNSPECIFIED;
    uint32_t unauthenticated_peers = 0;
  };

  // job.cc: membership and observations.
  void BeginIncarnation(const v1::RankHello& hello);
  Status CheckIdentity(const std::string& node, const v1::RankHello& hello) const;
  std::string DescribeMembers() const;
  void FillProtection(v1::Job* out) const;
  void PublishRefusal(int rank, const std::string& reason);
  bool Complete() const;
  void OnBuckets(const v1::BucketTable& table);
  void OnStep(int rank, const v1::StepReport& report);
  void OnPaths(int rank, const v1::PathReport& report);
  void OnRankEvent(int rank, const v1::RankEvent& event);
  bool LearnsNonFinite(const v1::RankEvent& event);
  void PublishState();
  void Save();

  // job_offload.cc: slots of aggregators.
  void FillLeases(Snapshot* snapshot);
  bool AwaitLease(const Snapshot& snapshot, const PlanModel& choices);
  bool LacksSlots(const PlanModel& choices) const;
  void AddSlots(const PlanModel& choices, v1::Plan* plan) const;
  bool HoldsSlots(uint64_t version, const JobLease& lease) const;
  std::string LeaseAwaited() const;
  void AdoptLeases(const v1::Plan& plan);
  void EndUnusedLeases(uint64_t version);
  void WatchLeases();
  void OnOffloadFailed(int rank, const std::string& detail);

  // job_decide.cc: decisions and rollouts.
  void MaybeDecide();
  std::optional<Trigger> NextTrigger();
  StatusOr<EffectivePolicy> CurrentPolicy() const;
  void DecideFor(const Trigger& trigger);
  void Record(const Trigger& trigger, const Snapshot& snapshot, const EffectivePolicy& policy,
              const Decision& decision);
  void StartRollout(const Decision& decision, v1::Decision* record);
  void PumpRollout();
  void AddLease(const PlanModel& choices, uint64_t version, const ChoiceModel& fallback);
  bool LacksLease(const PlanModel& choices) const;
  void RenewLease();
  void OnPlanLog(const PlanLogEntry& entry);
  void PublishNack(const PlanLogEntry& entry);
  void OnPlanActive(uint64_t version, uint64_t step);
  void ApplyActivePlan(uint64_t step);
  void SaveDecision(int64_t id, const v1::Decision& decision);
  void RequestDecision(std::string kind, std::string detail);
  std::optional<PlanMisbehaviour> ObserveActual(const StepObservation& step);
  bool IsLossless(const std::string& codec) const;
  void Warn(const std::string& message) const;
  size_t LargestBucket() const;

  const std::string name_;
  JobHost& host_;
  const JobOptions options_;
  int world_ = 0;
  uint64_t epoch_ = 0;      // of the mesh that its ranks formed, see RankHello
  std::string public_key_;  // that its ranks prove, see RankProof; empty: they have none
  static constexpr size_t kRefusalsMax = 256;
  std::set<std::string> refusals_;  // of ranks, that were published
  std::map<int, RankState> ranks_;
  std::vector<BucketDefinition> buckets_;
  v1::BucketTable bucket_table_;
  v1::Capabilities capabilities_;
  std::unique_ptr<JobModel> model_;
  std::unique_ptr<Rollout> rollout_;
  StepSeries series_;
  PlanMonitor monitor_;
  LeaseBackoff lease_backoff_;
  std::map<std::string, JobLease> leases_;  // by collective, of all that need one
  JobCounters counters_;

  double started_unix_s_ = 0;
  double finished_unix_s_ = 0;
  std::optional<TimePoint> complete_since_;
  bool was_complete_ = false;
  uint64_t settled_at_step_ = 0;
  bool settle_known_ = false;
  uint64_t bytes_sent_ = 0;
  double dense_step_s_ = 0;                  // of the newest decision; 0: none yet
  double saved_s_ = 0, compared_s_ = 0;      // see Job in admin.proto
  std::optional<v1::RankEvent> non_finite_;  // of the newest step that was skipped

  std::map<uint64_t, v1::Plan> plans_;        // offered and active ones
  std::map<uint64_t, v1::Plan> lease_plans_;  // by the version of the plan that has the lease
  double lease_told_s_ = 0;                   // to rank 0; negative: it must be told
  TimePoint next_lease_{};
  uint64_t highest_known_version_ = 0;
  std::optional<v1::PinRequest> pin_;
  std::string policy_digest_;  // of the text that ruled the last decision
  std::optional<Trigger> requested_;
  std::optional<v1::Decision> last_decision_;
  std::vector<v1::Candidate> last_front_;
  std::optional<v1::Explanation> last_inputs_;
  std::optional<v1::Decision> rolling_decision_;  // its plan is offered or armed
  std::optional<v1::Decision> active_decision_;   // its plan is active
  std::vector<double> actual_step_s_;
  uint64_t next_actual_step_ = 0;
  std::string obstacle_;
  TimePoint next_check_{};
  TimePoint retry_at_{};
  std::optional<TimePoint> dense_only_until_;
  Duration dense_only_hold_{std::chrono::seconds(10)};
};

}  // namespace weir
