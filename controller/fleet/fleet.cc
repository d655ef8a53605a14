// SPDX-License-Identifier: Apache-2.0
// Nodes, links and the messages of agents. Operators' queries are in fleet_query.cc, metrics in
// fleet_metrics.cc.

#include "controller/fleet/fleet.h"

#include <algorithm>
#include <cmath>

#include "controller/messages/json.h"
#include "controller/messages/mapping.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr double kSlowTickS = 0.5;
constexpr double kPeerListDebounceS = 0.2;
constexpr double kProbeAfterS = 3;  // passive estimates get this long before a link is probed
constexpr double kWantedProbeIntervalS = 5;  // between probes of one link that the model asks for
constexpr double kProbeSeconds = 0.1;        // the duration of a probe, from which its bytes follow
constexpr double kSmoothing = 0.2;
constexpr double kLinkEventIntervalS = 1;
constexpr double kRetrySoon_s = 2;  // for a rank that other ranks of its job may soon confirm
constexpr int kInterfacesMax = 64;
constexpr size_t kInterfaceNameMax = 63;  // Linux has 15
constexpr int kGpusMax = 32;
constexpr size_t kGpuNameMax = 96;  // as NVML
constexpr size_t kVersionMax = 63;

void Smooth(double sample, double stated_deviation, uint64_t samples, double* mean,
            double* deviation) {
  if (samples == 0) {
    *mean = sample;
    *deviation = stated_deviation > 0 ? stated_deviation : sample / 4;
    return;
  }
  const double error = sample - *mean;
  *mean += kSmoothing * error;
  *deviation = std::sqrt((1 - kSmoothing) * (*deviation * *deviation + kSmoothing * error * error));
}

}  // namespace

Fleet::Fleet(FleetOptions options, const Clock& clock, Store& store, EventHub& events)
    : options_(std::move(options)),
      clock_(clock),
      store_(store),
      journal_(store),
      events_(events) {}

Fleet::~Fleet() = default;

Status Fleet::Recover() {
  WEIR_ASSIGN_OR_RETURN(const auto policies, store_.ListPolicies());
  for (const StoredPolicy& policy : policies) {
    const Status restored = policies_.Restore(policy.source, policy.applied_unix_s);
    if (!restored.ok()) {
      Log(LogLevel::kError, "controller",
          StrCat("stored policy '", policy.name, "' ignored: ", Message(restored)));
    }
  }
  WEIR_ASSIGN_OR_RETURN(const auto nodes, store_.ListNodes());
  for (const StoredNode& stored : nodes) {
    Node node;
    if (!FromJson(stored.payload, &node.hello).ok()) continue;
    node.last_seen_unix_s = stored.last_seen_unix_s;
    nodes_[stored.name] = std::move(node);
  }
  std::map<std::string, StoredPin> pins;
  WEIR_ASSIGN_OR_RETURN(auto stored_pins, store_.ListPins());
  for (StoredPin& pin : stored_pins) pins[pin.job] = std::move(pin);
  WEIR_ASSIGN_OR_RETURN(const auto jobs, store_.ListJobs());
  for (const StoredJob& stored : jobs) {
    v1::Job job;
    if (!FromJson(stored.payload, &job).ok()) continue;
    WEIR_ASSIGN_OR_RETURN(Job * added, FindOrAddJob(stored.name));
    std::optional<JobPin> pin;
    if (const auto found = pins.find(stored.name); found != pins.end()) {
      v1::PinRequest request;
      if (FromJson(found->second.payload, &request).ok()) pin = ToModel(request);
    }
    std::optional<DecisionRecord> newest;
    const auto decisions = store_.ListDecisions(stored.name, 0, 1);
    if (decisions.ok() && !decisions->empty()) {
      const auto decision = DecisionOf(decisions->front());
      if (decision.ok()) newest = ToModel(*decision);
    }
    added->Recover(ToModel(job), std::move(pin), std::move(newest));
  }
  WEIR_ASSIGN_OR_RETURN(capabilities_json_, store_.GetFact("capabilities"));
  policies_.Learn(KnownCapabilities(), clock_.UnixSeconds());
  Log(LogLevel::kInfo, "controller",
      StrCat("recovered ", nodes_.size(), " nodes, ", jobs_.size(), " jobs, ", policies.size(),
             " policies"));
  return OkStatus();
}

Status Fleet::OnAgentMessage(const std::shared_ptr<AgentLink>& link,
                             const v1::AgentMessage& message) {
  ++agent_messages_;
  if (message.body_case() == v1::AgentMessage::kHello) return OnNodeHello(link, message.hello());
  const auto known = names_by_link_.find(link.get());
  if (known == names_by_link_.end()) {
    ++agent_errors_;
    return FailedPrecondition("the first message of an agent must be NodeHello");
  }
  const std::string name = known->second;
  Node& node = nodes_[name];
  node.last_seen = clock_.Now();
  node.last_seen_unix_s = clock_.UnixSeconds();
  ++node.messages;
  switch (message.body_case()) {
    case v1::AgentMessage::kRank:
      return OnFromRank(name, message.rank());
    case v1::AgentMessage::kRankGone:
      if (Job* job = FindJob(message.rank_gone().job());
          job != nullptr &&
          job->members().HasRankOn(static_cast<int>(message.rank_gone().rank()), name)) {
        job->OnRankGone(static_cast<int>(message.rank_gone().rank()), message.rank_gone().reason());
      }
      break;
    case v1::AgentMessage::kLink:
      OnLinkSample(name, message.link());
      break;
    case v1::AgentMessage::kProbe:
      probes_.OnResult(message.probe().probe_id(), message.probe().bytes_used(), Now());
      OnLinkSample(name, message.probe().sample());
      break;
    case v1::AgentMessage::kHeartbeat:
      if (message.heartbeat().unix_s() > 0) {
        node.clock_ahead_s = Finite(message.heartbeat().unix_s() - node.last_seen_unix_s);
      }
      break;
    case v1::AgentMessage::kNccl: {
      const v1::NcclSummary& nccl = message.nccl();
      if (std::isfinite(nccl.own_gpu_s() + nccl.peer_s() + nccl.wire_s() + nccl.arrival_s())) {
        node.nccl = nccl;
      } else {
        ++agent_errors_;
      }
      break;
    }
    case v1::AgentMessage::kHello:
    case v1::AgentMessage::BODY_NOT_SET:
      break;
  }
  return OkStatus();
}

Status Fleet::OnNodeHello(const std::shared_ptr<AgentLink>& link, const v1::NodeHello& hello) {
  if (const Status valid = CheckName("the node's name", hello.node()); !valid.ok()) {
    ++agent_errors_;
    return valid;
  }
  // Interface names are bounded, because lists of nodes contain all of them.
  const bool long_name = std::any_of(
      hello.interfaces().begin(), hello.interfaces().end(),
      [](const v1::NetworkInterface& each) { return each.name().size() > kInterfaceNameMax; });
  if (hello.interfaces_size() > kInterfacesMax || long_name ||
      hello.address().size() > kNameBytesMax || hello.agent_version().size() > kVersionMax) {
    ++agent_errors_;
    return InvalidArgument(StrCat("node ", hello.node(), ": expected an address of at most ",
                                  kNameBytesMax, " bytes, a version of ", kVersionMax, " and ",
                                  kInterfacesMax, " interfaces with names of ", kInterfaceNameMax));
  }
  const bool long_gpu_name =
      std::any_of(hello.gpus().begin(), hello.gpus().end(), [](const v1::Gpu& gpu) {
        return gpu.name().size() > kGpuNameMax || gpu.uuid().size() > kGpuNameMax;
      });
  if (hello.gpus_size() > kGpusMax || long_gpu_name) {
    ++agent_errors_;
    return InvalidArgument(StrCat("node ", hello.node(), ": expected at most ", kGpusMax,
                                  " GPUs with names of at most ", kGpuNameMax, " bytes"));
  }
  if (!nodes_.contains(hello.node()) && nodes_.size() >= kNodesMax) {
    return ResourceExhausted(StrCat("at most ", kNodesMax, " nodes"));
  }
  Node& node = nodes_[hello.node()];
  if (node.link != nullptr && node.link != link) {
    // The newest stream wins: an agent may have restarted before the loss of its old connection was
    // noticed.
    const auto former = node.link;
    LoseNode(hello.node(), "replaced by a newer connection");
    former->Close(Aborted(StrCat("a newer agent of node ", hello.node(), " connected")));
  }
  node.hello = hello;
  node.link = link;
  node.last_seen = clock_.Now();
  node.last_seen_unix_s = clock_.UnixSeconds();
  names_by_link_[link.get()] = hello.node();
  v1::ControllerMessage welcome;
  welcome.mutable_welcome()->set_heartbeat_interval_s(options_.heartbeat_interval_s);
  welcome.mutable_welcome()->set_controller_version(options_.version);
  link->Send(welcome);
  peers_changed_ = true;
  SaveNode(hello.node());
  Log(LogLevel::kInfo, "controller",
      StrCat("node ", hello.node(), " connected from ", hello.address()));
  v1::Event event;
  event.set_kind("node");
  event.set_text(StrCat("node ", hello.node(), " connected"));
  *event.mutable_node() = NodeProto(hello.node(), node);
  PublishRaw(std::move(event));
  return OkStatus();
}

void Fleet::OnAgentClosed(const std::shared_ptr<AgentLink>& link) {
  const auto known = names_by_link_.find(link.get());
  if (known == names_by_link_.end()) return;
  LoseNode(std::string(known->second), "its stream closed");
}

void Fleet::LoseNode(const std::string& name, const std::string& why) {
  Node& node = nodes_[name];
  if (node.link == nullptr) return;
  names_by_link_.erase(node.link.get());
  node.link = nullptr;
  peers_changed_ = true;
  probes_.OnNodeLost(name);
  SaveNode(name);
  for (auto& [job_name, job] : jobs_) job->OnNodeLost(name);
  Log(LogLevel::kWarning, "controller", StrCat("node ", name, " lost: ", why));
  v1::Event event;
  event.set_kind("node");
  event.set_text(StrCat("node ", name, " lost: ", why));
  *event.mutable_node() = NodeProto(name, node);
  PublishRaw(std::move(event));
}

Status Fleet::OnFromRank(const std::string& node, const v1::FromRank& message) {
  const int rank = static_cast<int>(message.rank() & 0x7fffffff);
  if (message.message().body_case() != v1::RankMessage::kHello) {
    // Messages of a rank that was refused may still arrive.
    Job* job = FindJob(message.job());
    if (job == nullptr || !job->members().HasRankOn(rank, node)) return OkStatus();
    const auto said = ToModel(rank, message.message());
    if (said.has_value()) job->OnRankSaid(rank, *said);
    return OkStatus();
  }
  const v1::RankHello& hello = message.message().hello();
  Status accepted = CheckHello(hello);
  if (accepted.ok() && (hello.job() != message.job() || hello.rank() != message.rank())) {
    accepted =
        InvalidArgument(StrCat("the envelope names job '", message.job(), "' rank ", message.rank(),
                               ", the greeting job '", hello.job(), "' rank ", hello.rank()));
  }
  if (accepted.ok()) {
    const auto job = FindOrAddJob(hello.job());
    accepted = job.ok() ? (*job)->OnRankHello(node, ToModel(hello)) : job.status();
  }
  if (accepted.ok()) {
    LearnCapabilities(hello.capabilities());
  } else {
    RefuseRank(node, message, accepted);
  }
  return OkStatus();
}

void Fleet::LearnCapabilities(const v1::Capabilities& capabilities) {
  const std::string text = ToJson(capabilities);
  if (capabilities.codecs_size() > 0 && text != capabilities_json_) {
    capabilities_json_ = text;
    if (!store_.PutFact("capabilities", text).ok()) ++store_errors_;
  }
  if (policies_.Learn(capabilities, clock_.UnixSeconds())) PolicyFilesChanged();
}

// Only the rank is refused; its agent and the other ranks are not affected.
void Fleet::RefuseRank(const std::string& node, const v1::FromRank& message, const Status& why) {
  ++agent_errors_;
  Log(LogLevel::kWarning, "controller", StrCat("rank refused on node ", node, ": ", Message(why)));
  v1::ToRank refusal;
  refusal.set_job(message.job());
  refusal.set_rank(message.rank());
  refusal.mutable_command()->mutable_refusal()->set_reason(Message(why));
  if (why.code() == StatusCode::kUnavailable) {
    refusal.mutable_command()->mutable_refusal()->set_retry_after_s(kRetrySoon_s);
  }
  SendRaw(node, refusal);
}

void Fleet::OnLinkSample(const std::string& node, const v1::LinkSample& sample) {
  if (!sample.error().empty() || !nodes_.contains(sample.target_node())) return;
  const auto key = std::make_pair(node, sample.target_node());
  if (!links_.contains(key) && links_.size() >= kLinksMax) return;
  LinkRecord& link = links_[key];
  const TimePoint measured_at =
      clock_.Now() - FromSeconds(std::clamp(Finite(sample.age_s()), 0.0, 3600.0));
  // tcp_info samples summarise connections of ranks. Jobs get these from the ranks themselves, and
  // such a sample does not replace a probe that a job's model asks for.
  const bool is_passive = sample.method() == "tcp_info";
  const double rtt_s = Finite(sample.rtt_s());
  const double bandwidth = Finite(sample.bandwidth_bytes_per_s());
  if (rtt_s > 0) {
    Smooth(rtt_s, Finite(sample.rtt_deviation_s()), link.rtt_samples++, &link.rtt_s,
           &link.rtt_deviation_s);
    link.rtt_method = sample.method();
    link.rtt_at = measured_at;
  }
  if (bandwidth > 0 && !sample.application_limited()) {
    Smooth(bandwidth, Finite(sample.bandwidth_deviation_bytes_per_s()), link.bandwidth_samples++,
           &link.bandwidth, &link.bandwidth_deviation);
    link.bandwidth_method = sample.method();
    link.bandwidth_at = measured_at;
    if (!is_passive) probes_.OnBandwidthSample(node, sample.target_node(), Now());
  }
  if (sample.hops() > 0) link.hops = sample.hops();
  if (!is_passive) TellJobs(node, sample);
  if (ToSeconds(clock_.Now() - link.published_at) < kLinkEventIntervalS) return;
  link.published_at = clock_.Now();
  v1::Event event;
  event.set_kind("link");
  event.set_text(StrCat(node, " -> ", sample.target_node(), ": rtt ", link.rtt_s * 1e3,
                        " ms, bandwidth ", link.bandwidth / 1e6, " MB/s"));
  PublishRaw(std::move(event));
}

void Fleet::TellJobs(const std::string& node, const v1::LinkSample& sample) {
  LinkObservation observation;
  observation.source_node = node;
  observation.target_node = sample.target_node();
  observation.method = sample.method();
  observation.rtt_s = std::max(Finite(sample.rtt_s()), 0.0);
  observation.rtt_deviation_s = std::max(Finite(sample.rtt_deviation_s()), 0.0);
  observation.bandwidth_bytes_per_s = std::max(Finite(sample.bandwidth_bytes_per_s()), 0.0);
  observation.application_limited = sample.application_limited();
  observation.age_s = std::max(Finite(sample.age_s()), 0.0);
  for (auto& [name, job] : jobs_) job->OnLink(observation);
}

Job* Fleet::FindJob(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second.get();
}

StatusOr<Job*> Fleet::FindOrAddJob(const std::string& name) {
  if (Job* job = FindJob(name); job != nullptr) return job;
  if (jobs_.size() >= kJobsMax) {
    // The job that ended first is forgotten to make room; its history stays in the store.
    auto oldest = jobs_.end();
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      const std::string state = it->second->members().state();
      if (state != "ended" && state != "lost") continue;
      if (oldest == jobs_.end() ||
          it->second->finished_unix_s() < oldest->second->finished_unix_s()) {
        oldest = it;
      }
    }
    if (oldest == jobs_.end()) return ResourceExhausted(StrCat("at most ", kJobsMax, " jobs"));
    jobs_.erase(oldest);
  }
  auto job = std::make_unique<Job>(name, *this, options_.job);
  Job* added = job.get();
  jobs_[name] = std::move(job);
  return added;
}

void Fleet::OnTick() {
  for (auto& [name, job] : jobs_) job->OnTick();
  const TimePoint now = clock_.Now();
  if (peers_changed_ && ToSeconds(now - peers_sent_at_) >= kPeerListDebounceS) SendPeerLists();
  if (now < next_slow_tick_) return;
  next_slow_tick_ = now + FromSeconds(kSlowTickS);
  std::vector<std::string> silent;
  for (const auto& [name, node] : nodes_) {
    if (node.link != nullptr && ToSeconds(now - node.last_seen) > options_.node_silence_max_s) {
      silent.push_back(name);
    }
  }
  for (const std::string& name : silent) {
    const auto link = nodes_[name].link;
    LoseNode(name, StrCat("silent for more than ", options_.node_silence_max_s, " s"));
    link->Close(DeadlineExceeded("no heartbeat"));
  }
  ScheduleProbes();
  ForgetEndedJobs();
}

double Fleet::LatencyInterval() const {
  double interval = Policy{}.latency_interval_s;
  for (const auto& [name, job] : jobs_) {
    if (job->members().attached())
      interval = std::min(interval, job->decisions().policy().latency_interval_s);
  }
  return interval;
}

void Fleet::SendPeerLists() {
  peers_changed_ = false;
  peers_sent_at_ = clock_.Now();
  const double interval = LatencyInterval();
  for (const auto& [name, node] : nodes_) {
    if (node.link == nullptr) continue;
    v1::ControllerMessage message;
    message.mutable_peers()->set_latency_interval_s(interval);
    for (const auto& [other_name, other] : nodes_) {
      if (other_name == name || other.link == nullptr) continue;
      if (message.peers().peers_size() >= static_cast<int>(kPeersMax)) break;
      auto* peer = message.mutable_peers()->add_peers();
      peer->set_node(other_name);
      peer->set_address(other.hello.address());
      peer->set_probe_port(other.hello.probe_port());
      peer->set_iperf_port(other.hello.iperf_port());
    }
    node.link->Send(message);
  }
}

void Fleet::ScheduleProbes() {
  for (const auto& [name, job] : jobs_) {
    if (job->complete_for_s() < kProbeAfterS) continue;
    const std::vector<std::string> job_nodes = job->members().nodes();
    // Training itself measures the links that it fills. Probes are for the other links, such as
    // those that another order of the ring would use.
    const bool wanted = job->model()->WantsBandwidthProbe();
    ProbeScheduler::LinkOffer offer;
    offer.interval_s = job->decisions().policy().probe_interval_s;
    if (wanted) offer.interval_s = std::min(offer.interval_s, kWantedProbeIntervalS);
    offer.bytes_wanted = static_cast<uint64_t>(
        std::clamp(Finite(job->model()->bandwidth_bytes_per_s().value) * kProbeSeconds, 0.0, 1e12));
    for (const std::string& source : job_nodes) {
      for (const std::string& target : job_nodes) {
        if (source == target || nodes_[target].link == nullptr) continue;
        const bool link_wanted = wanted || job->model()->WantsLinkProbe(source, target);
        offer.iperf = link_wanted && nodes_[target].hello.iperf_port() != 0;
        probes_.OfferLink(source, target, offer);
      }
    }
  }
  probes_.ForgetOtherLinks();
  for (const ScheduledProbe& probe : probes_.Next(Now())) {
    v1::ControllerMessage message;
    message.mutable_probe()->set_probe_id(probe.id);
    message.mutable_probe()->set_target_node(probe.target);
    message.mutable_probe()->set_method(probe.method);
    message.mutable_probe()->set_bytes_max(probe.bytes_max);
    message.mutable_probe()->set_deadline_s(probe.deadline_s);
    const auto node = nodes_.find(probe.source);
    if (node != nodes_.end() && node->second.link != nullptr) node->second.link->Send(message);
  }
}

void Fleet::ForgetEndedJobs() {
  const double now = clock_.UnixSeconds();
  std::erase_if(jobs_, [&](const auto& entry) {
    return entry.second->members().state() == "ended" && entry.second->finished_unix_s() > 0 &&
           now - entry.second->finished_unix_s() > options_.ended_job_keep_s;
  });
}

void Fleet::SaveNode(const std::string& name) {
  const Node& node = nodes_[name];
  const Status saved = store_.PutNode({name, ToJson(node.hello), node.last_seen_unix_s});
  if (!saved.ok()) {
    ++store_errors_;
    Log(LogLevel::kWarning, "controller", StrCat("node ", name, " not stored: ", Message(saved)));
  }
}

void Fleet::OnPolicyFiles(const StatusOr<std::map<std::string, std::string>>& files) {
  if (!files.ok()) {
    policies_.DirectoryFailed(files.status());
    Log(LogLevel::kError, "controller", Message(files.status()));
    return;
  }
  if (policies_.LoadFiles(*files, clock_.UnixSeconds())) PolicyFilesChanged();
}

void Fleet::PolicyFilesChanged() {
  for (const PolicyEntry& entry : policies_.All()) {
    if (entry.error.empty()) continue;
    Log(LogLevel::kError, "controller",
        StrCat("policy rejected, the old one stays: ", entry.error));
  }
  v1::Event event;
  event.set_kind("policy");
  event.set_text(policies_.last_reload_successful() ? "policies reloaded"
                                                    : "a policy was rejected");
  PublishRaw(std::move(event));
  peers_changed_ = true;
  for (auto& [name, job] : jobs_) job->OnPolicyChange();
}

void Fleet::SendRaw(const std::string& node, const v1::ToRank& message) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.link == nullptr) return;
  v1::ControllerMessage out;
  *out.mutable_rank() = message;
  found->second.link->Send(out);
}

void Fleet::SendToRank(const std::string& node, const std::string& job, int rank,
                       const RankOrder& order) {
  SendRaw(node, ToProto(job, rank, order));
}

void Fleet::PublishRaw(v1::Event event) {
  event.set_unix_s(clock_.UnixSeconds());
  events_.Publish(std::move(event));
}

void Fleet::Publish(JobEvent event) {
  v1::Event out = ToProto(event);
  const v1::Decision& decision = out.decision();
  if (decision.switched() && decision.outcome() == "offered") {
    Log(LogLevel::kInfo, "controller",
        StrCat("job ", event.job, " step ", decision.step(), ": ", decision.from(), " -> ",
               decision.to(), " (plan ", decision.plan_version(), "): ", decision.reason()));
  }
  PublishRaw(std::move(out));
}

const PolicyEntry* Fleet::PolicyFor(const std::string& job) const { return policies_.Match(job); }

void Fleet::OnTrainingBytes(uint64_t bytes, const Policy& policy) {
  probes_.OnTrainingBytes(bytes, policy.probe_budget_ratio);
}

v1::Node Fleet::NodeProto(const std::string& name, const Node& node) const {
  v1::Node out;
  out.set_name(name);
  out.set_address(node.hello.address());
  out.set_connected(node.link != nullptr);
  out.set_last_seen_unix_s(node.last_seen_unix_s);
  out.set_agent_version(node.hello.agent_version());
  out.set_clock_ahead_s(node.clock_ahead_s);
  *out.mutable_interfaces() = node.hello.interfaces();
  *out.mutable_gpus() = node.hello.gpus();
  if (node.nccl.has_value()) *out.mutable_nccl() = *node.nccl;
  for (const auto& [job_name, job] : jobs_) {
    if (job->members().UsesNode(name)) out.add_jobs(job_name);
  }
  return out;
}

}  // namespace weir
