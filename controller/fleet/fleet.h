// SPDX-License-Identifier: Apache-2.0
#pragma once
// The controller's core: joins nodes, jobs, aggregators, policies and probes. Runs on one thread
// and does no I/O of its own, so tests drive it with simulated agents and a fake clock. It knows no
// messages: controller/server converts them.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "controller/fleet/aggregators.h"
#include "controller/fleet/fleet_host.h"
#include "controller/fleet/jobs.h"
#include "controller/fleet/nodes.h"
#include "controller/fleet/peer_spread.h"
#include "controller/fleet/policy_change.h"
#include "controller/fleet/policy_set.h"
#include "controller/fleet/probe_scheduler.h"

namespace weir {

struct FleetOptions {
  JobOptions job;
  double heartbeat_interval_s = 5;
  double node_silence_max_s = 20;  // a stream without a sign of life is closed
  double ended_job_keep_s = 3600;
  std::string version = "0";
  PolicyNames names = {};  // that policies may use before any rank has declared them
};

struct FleetCounters {
  uint64_t agent_messages = 0, agent_errors = 0, store_errors = 0;
};

/// Not thread-safe: all calls on the executor's thread.
class Fleet : public JobHost {
 public:
  /// The references outlive it.
  Fleet(FleetOptions options, const Clock& clock, FleetJournal& journal, FleetWatcher& watcher);
  ~Fleet() override;

  /// Loads nodes, jobs, pins and policies that a former controller stored.
  Status Recover();

  /// The first message of a stream. An error ends the stream; see NodeTable::Check.
  Status OnNodeGreeting(const std::shared_ptr<AgentLink>& link, const NodeGreeting& said);
  void OnAgentClosed(const std::shared_ptr<AgentLink>& link);
  /// Ends the streams of all agents, which then connect again, here or elsewhere.
  void CloseStreams(const Status& why);
  /// See Job::OnRankHello; also kResourceExhausted: too many jobs.
  Status OnRankGreeting(const std::string& node, const RankGreeting& said);
  /// Ignored unless the rank has greeted through `node`: messages of a rank that was refused may
  /// still arrive. So is OnRankGone.
  void OnRankSaid(const std::string& node, const std::string& job, int rank, const RankSaid& said);
  void OnRankGone(const std::string& node, const std::string& job, int rank,
                  const std::string& reason);
  void OnLinkReport(const LinkReport& report);
  /// Keeps the newest sums of a known node, and tells the jobs that it is in.
  void OnNccl(const std::string& node, const NcclSums& sums);
  void OnProbeResult(const std::string& id, uint64_t bytes_used);
  /// Ranks declare these names of codecs and collectives.
  void OnNames(const PolicyNames& declared);
  /// To be called several times a second.
  void OnTick();
  /// Takes the contents of the policy directory, or the reason why it cannot be read.
  void OnPolicyFiles(const StatusOr<std::map<std::string, std::string>>& files);
  void OnLeaseAnswer(const LeaseAsk& ask, const StatusOr<SlotGrant>& answer);

  /// Checks a policy, then stores, and only then uses it, so that a restart finds the policy that
  /// was used. `dry_run`: says what would change. Errors: PolicySet::Apply's and the journal's;
  /// kFailedPrecondition: a job would have nothing to choose, which a dry run says in its effects.
  StatusOr<PolicyChange> ApplyPolicy(const std::string& name, const std::string& source,
                                     bool dry_run);
  /// Errors: PolicySet::Delete's and the journal's.
  StatusOr<std::vector<PolicyEffect>> DeletePolicy(const std::string& name, bool dry_run);

  /// Forgets a node, or a job with all of its history but its highest plan version. kNotFound;
  /// kFailedPrecondition: the node is connected, the job has ranks.
  Status ForgetNode(const std::string& name);
  Status ForgetJob(const std::string& name);

  NodeTable& nodes() { return nodes_; }
  const NodeTable& nodes() const { return nodes_; }
  const JobTable& jobs() const { return jobs_; }
  Aggregators& sums() { return aggregators_; }
  const PolicySet& policies() const { return policies_; }
  const ProbeScheduler& probes() const { return probes_; }
  FleetCounters& counters() { return counters_; }
  const FleetCounters& counters() const { return counters_; }
  const FleetOptions& options() const { return options_; }
  /// The distinct nodes of each job whose ranks are attached.
  std::map<std::string, std::vector<std::string>> NodesOfJobs() const;
  /// The jobs with ranks on `node`. O(jobs of the node).
  std::vector<std::string> JobsOn(const std::string& node) const;

  // JobHost.
  void SendToRank(const std::string& node, const std::string& job, int rank,
                  const RankOrder& order) override;
  void Publish(JobEvent event) override;
  void OnTrainingBytes(uint64_t bytes, const Policy& policy) override;
  const PolicyEntry* PolicyFor(const std::string& job) const override;
  std::vector<JobSharing> SharingWith(const std::string& job) const override;
  JobJournal& journal() override { return journal_; }
  const Clock& clock() const override { return clock_; }
  const AggregatorMap& aggregators() const override { return aggregators_.all(); }
  bool AskLease(const LeaseAsk& ask) override { return aggregators_.Ask(ask); }
  void EndLease(const std::string& aggregator, const std::string& job, uint32_t epoch) override {
    aggregators_.End(aggregator, job, epoch);
  }

 private:
  Status CheckReplaces(const NodeState& node, const NodeGreeting& said) const;
  void LoseNode(const std::string& name, const std::string& why);
  void ScheduleProbes();
  size_t OfferProbes(const Job& job);
  void OnPoliciesChanged(const std::string& text);
  void OnPolicyFilesChanged();
  void SaveNode(const std::string& name);
  void SendPeers();
  void SendNcclRules();
  double LatencyInterval(const std::string& node) const;
  void NoteUse(const Job& job, const std::string& node);
  void PublishNode(const std::string& name, const std::string& text);
  void PublishEvent(const FleetEvent& event) { watcher_.OnEvent(event, clock_.UnixSeconds()); }
  double Now() const { return ToSeconds(clock_.Now().time_since_epoch()); }

  const FleetOptions options_;
  const Clock& clock_;
  FleetJournal& journal_;
  FleetWatcher& watcher_;
  NodeTable nodes_;
  JobTable jobs_;
  Aggregators aggregators_;
  PolicySet policies_;
  PeerSpread peers_;
  ProbeScheduler probes_;
  std::string probes_offered_until_;  // the job at which the next offers begin
  FleetCounters counters_;
  double idle_interval_s_;  // between latency probes of nodes without a job
  TimePoint peers_sent_at_{};
  TimePoint next_slow_tick_{};
};

}  // namespace weir
