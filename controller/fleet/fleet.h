// SPDX-License-Identifier: Apache-2.0
#pragma once
// The controller's core: every node, link and job, and the agents' reports about them. Runs on one
// thread and does no I/O of its own except the store, so tests drive it with simulated agents and a
// fake clock.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/fleet/aggregator_gateway.h"
#include "controller/fleet/event_hub.h"
#include "controller/fleet/job_journal.h"
#include "controller/fleet/probe_scheduler.h"
#include "controller/job/job.h"
#include "controller/messages/policy_set.h"
#include "controller/store/store.h"
#include "deploy/program/tls/tls_files.h"
#include "weir/v1/admin.pb.h"
#include "weir/v1/agent.pb.h"

namespace weir {

/// The controller's end of one agent's stream.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  /// Queues a message. Returns false when the stream has ended or its queue is full; a full queue
  /// ends the stream, and the agent reconnects and sends its whole state again.
  virtual bool Send(const v1::ControllerMessage& message) = 0;
  /// Ends the stream.
  virtual void Close(const Status& why) = 0;
};

struct FleetOptions {
  JobOptions job;
  double heartbeat_interval_s = 5;
  double node_silence_max_s = 20;  // a stream without a sign of life is closed
  double ended_job_keep_s = 3600;
  std::string version = "0";
};

/// Not thread-safe: all calls on the executor's thread.
class Fleet : public JobHost {
 public:
  static constexpr size_t kNodesMax = 4096;
  static constexpr size_t kJobsMax = 256;
  static constexpr size_t kLinksMax = 65536;
  static constexpr size_t kPeersMax = 256;

  Fleet(FleetOptions options, const Clock& clock, Store& store, EventHub& events);
  ~Fleet() override;

  /// Loads nodes, jobs, pins and policies that a former controller stored.
  Status Recover();

  // Messages of agents. The first message of a stream is NodeHello. An error ends the stream.
  Status OnAgentMessage(const std::shared_ptr<AgentLink>& link, const v1::AgentMessage& message);
  void OnAgentClosed(const std::shared_ptr<AgentLink>& link);
  /// To be called several times a second.
  void OnTick();
  /// Takes the contents of the policy directory, or the reason why it cannot be read.
  void OnPolicyFiles(const StatusOr<std::map<std::string, std::string>>& files);

  /// To be called before the first decision. `gateway` outlives the last call, but not the fleet.
  void UseAggregators(const std::vector<AggregatorAddress>& aggregators, LeaseGateway* gateway);
  /// Take the gateway's reports and answers, in the order in which it gave them.
  void OnAggregator(AggregatorReport said);
  void OnLeaseAnswer(const LeaseAsk& ask, const StatusOr<SlotGrant>& answer);

  // The operators' queries; see admin.proto. All fill `response` on OK.
  Status ListNodes(const v1::ListNodesRequest& request, v1::ListNodesResponse* response);
  Status GetNode(const v1::GetNodeRequest& request, v1::Node* response);
  Status ListLinks(const v1::ListLinksRequest& request, v1::ListLinksResponse* response);
  Status ListJobs(const v1::ListJobsRequest& request, v1::ListJobsResponse* response);
  Status GetJob(const v1::GetJobRequest& request, v1::Job* response);
  Status ListDecisions(const v1::ListDecisionsRequest& request,
                       v1::ListDecisionsResponse* response);
  Status GetDecision(const v1::GetDecisionRequest& request, v1::Decision* response);
  Status Explain(const v1::ExplainRequest& request, v1::Explanation* response);
  Status Replay(const v1::ReplayRequest& request, v1::ReplayResponse* response);
  Status ListAggregators(const v1::ListAggregatorsRequest& request,
                         v1::ListAggregatorsResponse* response);
  Status ListPolicies(const v1::ListPoliciesRequest& request, v1::ListPoliciesResponse* response);
  Status ValidatePolicy(const v1::ValidatePolicyRequest& request,
                        v1::ValidatePolicyResponse* response);
  Status ApplyPolicy(const v1::ApplyPolicyRequest& request, v1::ApplyPolicyResponse* response);
  Status Pin(const v1::PinRequest& request, v1::PinResponse* response);
  Status Unpin(const v1::UnpinRequest& request, v1::UnpinResponse* response);
  Status Simulate(const v1::SimulateRequest& request, v1::SimulateResponse* response);
  Status GetSeries(const v1::GetSeriesRequest& request, v1::Series* response);

  /// Prometheus text exposition of all metrics, which the README lists. `tls`: the state of the
  /// listeners' certificate, if there is one.
  std::string MetricsText(const std::optional<TlsHealth>& tls = std::nullopt) const;
  /// OK when decisions can be made and stored.
  Status Ready();

  // JobHost.
  void SendToRank(const std::string& node, const std::string& job, int rank,
                  const RankOrder& order) override;
  void Publish(JobEvent event) override;
  void OnTrainingBytes(uint64_t bytes, const Policy& policy) override;
  const PolicyEntry* PolicyFor(const std::string& job) const override;
  JobJournal& journal() override { return journal_; }
  const Clock& clock() const override { return clock_; }
  const AggregatorMap& aggregators() const override { return aggregators_; }
  bool AskLease(const LeaseAsk& ask) override;
  void EndLease(const std::string& aggregator, const std::string& job, uint32_t epoch) override;

 private:
  struct Node {
    v1::NodeHello hello;
    std::shared_ptr<AgentLink> link;  // null: disconnected
    double last_seen_unix_s = 0;
    TimePoint last_seen{};
    uint64_t messages = 0;
    double clock_ahead_s = 0;
    std::optional<v1::NcclSummary> nccl;  // the newest sums of this node's agent
  };
  struct LinkRecord {
    double rtt_s = 0, rtt_deviation_s = 0, bandwidth = 0, bandwidth_deviation = 0;
    std::string rtt_method, bandwidth_method;
    uint64_t rtt_samples = 0, bandwidth_samples = 0;
    TimePoint rtt_at{}, bandwidth_at{}, published_at{};
    uint32_t hops = 0;
  };

  // fleet.cc
  Status OnNodeHello(const std::shared_ptr<AgentLink>& link, const v1::NodeHello& hello);
  Status OnFromRank(const std::string& node, const v1::FromRank& message);
  void RefuseRank(const std::string& node, const v1::FromRank& message, const Status& why);
  void LearnCapabilities(const v1::Capabilities& capabilities);
  void SendRaw(const std::string& node, const v1::ToRank& message);
  void PublishRaw(v1::Event event);
  void OnLinkSample(const std::string& node, const v1::LinkSample& sample);
  void TellJobs(const std::string& node, const v1::LinkSample& sample);
  void LoseNode(const std::string& name, const std::string& why);
  Job* FindJob(const std::string& name) const;
  StatusOr<Job*> FindOrAddJob(const std::string& name);
  void SendPeerLists();
  void ScheduleProbes();
  void ForgetEndedJobs();
  void PolicyFilesChanged();
  void SaveNode(const std::string& name);
  double LatencyInterval() const;
  double Now() const { return ToSeconds(clock_.Now().time_since_epoch()); }
  v1::Node NodeProto(const std::string& name, const Node& node) const;

  double StalestLinkS() const;  // fleet_metrics.cc

  // fleet_query.cc
  v1::Link LinkProto(const std::string& source, const std::string& target,
                     const LinkRecord& link) const;
  StatusOr<Job*> RequireJob(const std::string& name) const;
  StatusOr<v1::Decision> WholeDecision(const std::string& id_text);
  void Audit(const std::string& actor, const std::string& action, const std::string& target,
             const std::string& detail);
  v1::Capabilities KnownCapabilities();

  const FleetOptions options_;
  const Clock& clock_;
  Store& store_;
  StoreJournal journal_;
  EventHub& events_;
  AggregatorMap aggregators_;
  LeaseGateway* gateway_ = nullptr;  // null: no aggregators
  PolicySet policies_;
  ProbeScheduler probes_;
  std::map<std::string, Node> nodes_;
  std::map<const AgentLink*, std::string> names_by_link_;
  std::map<std::pair<std::string, std::string>, LinkRecord> links_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::string capabilities_json_;  // of the newest hello, also in the store
  bool peers_changed_ = false;
  TimePoint peers_sent_at_{};
  TimePoint next_slow_tick_{};
  uint64_t agent_errors_ = 0;
  uint64_t agent_messages_ = 0;
  uint64_t store_errors_ = 0;
};

}  // namespace weir
