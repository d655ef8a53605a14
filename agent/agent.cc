// SPDX-License-Identifier: Apache-2.0
#include "agent/agent.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "agent/node_hello.h"
#include "datapath/base/log.h"
#include "datapath/base/random.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::agent {
namespace {

constexpr size_t kPeersMax = 1024;
constexpr size_t kEventBytes = 256;  // the size of an event whose size is not measured
constexpr size_t kReservedItems = 1024;
constexpr uint64_t kProbeBytesDefault = 4u << 20;
constexpr double kProbeDeadlineDefault_s = 10;
constexpr double kProbeDeadlineMax_s = 60;
constexpr Duration kMetricsInterval = std::chrono::seconds(1);
constexpr Duration kGpuInterval = std::chrono::seconds(5);
constexpr Duration kGpuWait = std::chrono::seconds(2);  // for the first measurement, at the start
constexpr Duration kHeartbeatDefault = std::chrono::seconds(5);

// A duration that a peer sent, within [low, high]; `fallback` if it is not positive and finite.
double Bounded(double seconds, double fallback, double low, double high) {
  if (!std::isfinite(seconds) || seconds <= 0) return fallback;
  return std::clamp(seconds, low, high);
}

const char* KindName(const v1::RankMessage& message) {
  switch (message.body_case()) {
    case v1::RankMessage::kHello:
      return "hello";
    case v1::RankMessage::kBuckets:
      return "buckets";
    case v1::RankMessage::kStep:
      return "step";
    case v1::RankMessage::kPaths:
      return "paths";
    case v1::RankMessage::kAck:
      return "ack";
    case v1::RankMessage::kNack:
      return "nack";
    case v1::RankMessage::kActive:
      return "active";
    case v1::RankMessage::kEvent:
      return "event";
    case v1::RankMessage::kNccl:
      return "nccl";
    case v1::RankMessage::BODY_NOT_SET:
      return "unknown";
  }
  return "unknown";
}

PathObservation ToObservation(const v1::PathSample& sample) {
  PathObservation observation;
  observation.rtt_s = sample.rtt_s();
  observation.rtt_min_s = sample.rtt_min_s();
  observation.delivery_rate_bytes_per_s = sample.delivery_rate_bytes_per_s();
  observation.application_limited = sample.application_limited();
  observation.bytes_acked = sample.bytes_acked();
  observation.busy_s = sample.busy_s();
  observation.receive_window_limited_s = sample.receive_window_limited_s();
  observation.send_buffer_limited_s = sample.send_buffer_limited_s();
  return observation;
}

}  // namespace

StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options, const Clock& clock) {
  if (options.node.empty()) return InvalidArgument("expected a node name, found an empty one");
  WEIR_ASSIGN_OR_RETURN(const SocketAddress probe_address,
                        SocketAddress::FromIp(options.address, options.probe_port));
  StatusOr<std::unique_ptr<EchoServer>> echo = EchoServer::Start(probe_address, clock);
  if (!echo.ok()) return Annotate(echo.status(), "give another port for probes with --probe-port");
  options.probe_port = (*echo)->port();
  options.local.node = options.node;
  auto gpus = std::make_unique<GpuMonitor>(options.nvml_library, kGpuInterval);
  v1::NodeHello hello = MakeHello(options, gpus->Newest(kGpuWait));
  std::unique_ptr<Agent> agent(new Agent(std::move(options), std::move(hello), clock));
  agent->gpus_ = std::move(gpus);
  agent->echo_ = *std::move(echo);
  WEIR_RETURN_IF_ERROR(agent->Open());
  return agent;
}

Agent::Agent(AgentOptions options, v1::NodeHello hello, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      metrics_(options_.node, options_.version),
      inbox_(options_.inbox_items_max, options_.inbox_bytes_max),
      subscription_(std::move(hello)),
      nccl_(options_.nccl_table_file),
      budget_(options_.budget, clock.Now()),
      heartbeat_interval_(kHeartbeatDefault),
      last_tick_(clock.Now()) {}

Status Agent::Open() {
  if (!options_.http.address.empty()) {
    WEIR_ASSIGN_OR_RETURN(
        http_, HttpEndpoint::Start(
                   options_.http, [this] { return metrics_.Text(); }, [this] { return Alive(); }));
  }
  if (!options_.health_address.empty()) {
    WEIR_ASSIGN_OR_RETURN(health_, HealthServer::Start(options_.health_address, clock_));
  }
  WEIR_ASSIGN_OR_RETURN(local_, LocalServer::Start(options_.local, *this, clock_));
  latency_ = std::make_unique<LatencyProber>(
      [this](LatencyResult result) { Post(std::move(result), Tier::kTelemetry, kEventBytes); },
      MixSeed(options_.seed, 1), clock_);
  probes_ = std::make_unique<ProbeRunner>(
      ProbeRunner::Options{options_.helper_program, MixSeed(options_.seed, 2)},
      [this](const ProbeTask& task, v1::ProbeResult result) {
        Post(ProbeDone{task, std::move(result), clock_.Now()}, Tier::kControl, kEventBytes);
      },
      clock_);
  if (options_.iperf_port != 0) {
    IperfServer::Options server;
    server.helper_program = options_.helper_program;
    server.host = options_.address;
    server.port = options_.iperf_port;
    iperf_server_ = std::make_unique<IperfServer>(server, clock_);
  }
  if (!options_.controller.controller.empty()) {
    stream_ = std::make_unique<ControllerStream>(
        options_.controller, static_cast<ControllerStream::Handler&>(*this), clock_);
  }
  thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

Agent::~Agent() {
  {
    MutexLock lock(inbox_mutex_);
    stopping_ = true;
    inbox_ready_.NotifyAll();
  }
  http_.reset();
  // The executor ends before the others, because it uses them. They may still post events, which
  // nobody reads.
  if (thread_.joinable()) thread_.join();
  stream_.reset();
  local_.reset();
  probes_.reset();
  latency_.reset();
  iperf_server_.reset();
  echo_.reset();
}

bool Agent::Post(Event event, Tier tier, size_t bytes) {
  MutexLock lock(inbox_mutex_);
  if (stopping_) return true;
  const bool fits =
      inbox_.Push(std::move(event), tier, bytes) != TieredQueue<Event>::Outcome::kFull;
  inbox_ready_.NotifyOne();
  return fits;
}

bool Agent::OnRankMessage(ConnectionId connection, v1::RankMessage message, size_t bytes,
                          const std::shared_ptr<const RankPeer>& peer) {
  const Tier tier = TierOf(message);
  {
    // Messages of ranks leave room for events that must not be lost: closed connections, the
    // controller, finished probes.
    MutexLock lock(inbox_mutex_);
    if (inbox_.control_size() + kReservedItems >= options_.inbox_items_max) return false;
  }
  return Post(RankSaid{connection, std::move(message), peer}, tier, bytes + kEventBytes);
}

// These events have no size, so that they always fit: losing one would lose track of a rank or of
// the controller. Each connection, stream or probe causes only a bounded number of them.
void Agent::OnRankClosed(ConnectionId connection, const std::string& reason) {
  Post(RankLeft{connection, reason}, Tier::kControl, 0);
}

void Agent::OnControllerConnected(uint64_t generation) {
  Post(ControllerUp{generation}, Tier::kControl, 0);
}

void Agent::OnControllerMessage(uint64_t generation, v1::ControllerMessage message) {
  const size_t bytes = message.ByteSizeLong();
  if (!Post(ControllerSaid{generation, std::move(message)}, Tier::kControl, bytes)) {
    Log(LogLevel::kError, "agent", "inbox full: a message of the controller is lost");
  }
}

void Agent::OnControllerLost(uint64_t generation, const std::string& reason,
                             std::vector<v1::AgentMessage> unsent) {
  Post(ControllerDown{generation, reason, std::move(unsent)}, Tier::kControl, 0);
}

std::optional<Agent::Event> Agent::NextEvent(TimePoint deadline) {
  MutexLock lock(inbox_mutex_);
  while (!stopping_ && inbox_.empty()) {
    if (!inbox_ready_.WaitUntil(inbox_mutex_, deadline)) break;
  }
  if (stopping_) return std::nullopt;
  return inbox_.Pop();
}

void Agent::Run() {
  NameThread("weir-agent");
  while (true) {
    {
      MutexLock lock(inbox_mutex_);
      if (stopping_) return;
    }
    std::optional<Event> event = NextEvent(std::min(next_metrics_, next_heartbeat_));
    if (event) std::visit([this](auto& e) { Handle(e); }, *event);
    Tick();
  }
}

void Agent::Handle(RankSaid& event) {
  metrics_.CountRankMessage(KindName(event.message));
  if (event.message.has_nccl()) {
    OnNcclReport(event.connection, event.message.nccl());
    return;
  }
  if (event.message.has_step()) {
    cores_.AddTo(event.connection, *event.peer, clock_.Now(), event.message.mutable_step());
  }
  ObserveTelemetry(event.connection, event.message);
  Apply(subscription_.OnRankMessage(event.connection, std::move(event.message), *event.peer));
}

void Agent::OnNcclReport(ConnectionId connection, const v1::NcclReport& report) {
  if (nccl_.OnReport(connection, report)) SendNcclTable(connection);
}

void Agent::SendNcclTable(ConnectionId connection) {
  const v1::NcclTable* const table = nccl_.TableFor(connection);
  if (table == nullptr) return;
  v1::RankCommand command;
  *command.mutable_nccl_table() = *table;
  local_->Send(connection, command);
}

void Agent::TakeNcclTable(const v1::NcclTable& table) {
  if (nccl_.OnControllerTable(table)) SendNcclTables();
}

void Agent::SendNcclTables() {
  nccl_.ForEachConnection([this](ConnectionId connection) { SendNcclTable(connection); });
}

void Agent::Handle(RankLeft& event) {
  nccl_.Forget(event.connection);
  cores_.Forget(event.connection);
  if (const RankKey* key = subscription_.FindKey(event.connection)) {
    Log(LogLevel::kInfo, "agent", StrCat(Describe(*key), " is gone: ", event.reason));
    passive_.Forget(Describe(*key));
  }
  Apply(subscription_.OnRankClosed(event.connection, event.reason));
}

void Agent::Handle(ControllerUp& event) {
  generation_ = event.generation;
  welcomed_ = false;
  Apply(subscription_.OnControllerConnected());
  next_heartbeat_ = clock_.Now() + heartbeat_interval_;
}

void Agent::Handle(ControllerDown& event) {
  if (event.generation != generation_) return;
  generation_ = 0;
  if (welcomed_) {  // a standby refuses at once, and is not lost
    Log(LogLevel::kWarning, "agent",
        StrCat("controller ", options_.controller.controller, " lost: ", event.reason,
               "; ranks keep their plans"));
  }
  subscription_.OnControllerLost(std::move(event.unsent));
  // The controller that asked for these probes, and prevents collisions, is gone.
  budget_.Return(probes_->DiscardAll());
  probe_started_.clear();
  latency_->SetPaused(false);
}

void Agent::Handle(ControllerSaid& event) {
  if (event.generation != generation_) return;
  switch (event.message.body_case()) {
    case v1::ControllerMessage::kWelcome: {
      const v1::Welcome& welcome = event.message.welcome();
      heartbeat_interval_ = FromSeconds(
          Bounded(welcome.heartbeat_interval_s(), ToSeconds(kHeartbeatDefault), 0.1, 300));
      next_heartbeat_ = clock_.Now();
      TakeNcclTable(welcome.nccl_table());
      if (welcomed_) break;
      welcomed_ = true;
      ++controller_connections_;
      Log(LogLevel::kInfo, "agent",
          StrCat("controller ", options_.controller.controller, " reached"));
      break;
    }
    case v1::ControllerMessage::kPeers:
      SetPeers(event.message.peers());
      break;
    case v1::ControllerMessage::kProbe:
      StartProbe(event.message.probe());
      break;
    case v1::ControllerMessage::kRank:
      Apply(subscription_.OnCommand(event.message.rank()));
      break;
    case v1::ControllerMessage::kNcclTable:
      TakeNcclTable(event.message.nccl_table());
      break;
    case v1::ControllerMessage::BODY_NOT_SET:
      break;  // for a newer connection to the controller
  }
}

void Agent::Apply(Effects effects) {
  for (Effect& effect : effects) {
    if (auto* up = std::get_if<agent::SendToController>(&effect)) {
      SendToController(std::move(up->message), up->tier);
    } else if (auto* down = std::get_if<SendToRank>(&effect)) {
      local_->Send(down->connection, down->command);
    } else if (auto* refuse = std::get_if<RefuseRank>(&effect)) {
      local_->Refuse(refuse->connection, refuse->reason, refuse->retry_after_s);
    }
  }
}

void Agent::SendToController(v1::AgentMessage message, Tier tier) {
  if (stream_ && generation_ != 0) stream_->Send(generation_, std::move(message), tier);
}

void Agent::ObserveTelemetry(ConnectionId connection, const v1::RankMessage& message) {
  const RankKey* key = subscription_.FindKey(connection);
  if (key == nullptr) return;
  if (message.has_step()) {
    for (const v1::BucketSample& bucket : message.step().buckets()) {
      budget_.OnTrainingBytes(bucket.bytes_sent());
    }
    return;
  }
  if (!message.has_paths()) return;
  const TimePoint now = clock_.Now();
  for (const v1::PathSample& path : message.paths().paths()) {
    if (path.medium() == "shm") continue;  // it used no network
    const std::string node = NodeOf(path.peer_address());
    if (node.empty()) continue;  // this node, or a node without an agent
    const RankKey peer{key->job, path.peer_rank()};
    const auto sample =
        passive_.Observe({Describe(*key), Describe(peer)}, node, ToObservation(path), now);
    if (!sample) continue;
    v1::AgentMessage up;
    v1::LinkSample& link = *up.mutable_link();
    link.set_target_node(sample->node);
    link.set_method("tcp_info");
    link.set_rtt_s(sample->rtt_s);
    link.set_rtt_deviation_s(sample->rtt_deviation_s);
    link.set_bandwidth_bytes_per_s(sample->bandwidth_bytes_per_s);
    link.set_bandwidth_deviation_bytes_per_s(sample->bandwidth_deviation_bytes_per_s);
    link.set_application_limited(sample->application_limited);
    link.set_samples(sample->samples);
    if (!sample->application_limited && sample->bandwidth_bytes_per_s > 0) {
      peers_.at(node).bandwidth_bytes_per_s = sample->bandwidth_bytes_per_s;
    }
    SendToController(std::move(up), Tier::kTelemetry);
  }
}

// The other node whose address a rank's transport uses, or nothing.
std::string Agent::NodeOf(const std::string& datapath_address) const {
  const auto parts = SplitHostPort(datapath_address);
  if (!parts.ok() || parts->first == options_.address) return "";
  std::string found;
  for (const auto& [node, state] : peers_) {
    if (state.peer.address() != parts->first) continue;
    if (!found.empty()) return "";  // agents that share an address cannot be distinguished
    found = node;
  }
  return found;
}

void Agent::SetPeers(const v1::PeerList& list) {
  std::map<std::string, PeerState> peers;
  std::vector<LatencyTarget> targets;
  for (const v1::Peer& peer : list.peers()) {
    if (peer.node() == options_.node || peer.node().empty() || peers.contains(peer.node()))
      continue;
    if (peers.size() == kPeersMax) {
      Log(LogLevel::kWarning, "agent",
          StrCat("more than ", kPeersMax, " peers; the rest is left out"));
      break;
    }
    const auto old = peers_.find(peer.node());
    PeerState& state = peers[peer.node()];
    if (old != peers_.end()) state = old->second;
    state.peer = peer;
    const auto address =
        SocketAddress::FromIp(peer.address(), static_cast<uint16_t>(peer.probe_port()));
    if (!address.ok() || peer.probe_port() < 1 || peer.probe_port() > 65535) {
      Log(LogLevel::kWarning, "agent",
          StrCat("node '", peer.node(), "' cannot be probed at '", peer.address(), "' port ",
                 peer.probe_port()));
      continue;
    }
    targets.push_back({peer.node(), *address});
  }
  peers_ = std::move(peers);
  const double interval_s = list.latency_interval_s();
  latency_->SetTargets(std::move(targets), std::isfinite(interval_s) && interval_s > 0
                                               ? FromSeconds(std::min(interval_s, 3600.0))
                                               : Duration::zero());
}

void Agent::Handle(LatencyResult& event) {
  const auto found = peers_.find(event.node);
  if (found == peers_.end()) return;
  const bool is_echo = event.method == "udp_echo";
  metrics_.CountLatencyProbe(event.method, event.rtt.ok());
  v1::AgentMessage up;
  v1::LinkSample& link = *up.mutable_link();
  link.set_target_node(event.node);
  link.set_method(event.method);
  if (event.rtt.ok()) {
    // The minimum of the burst has no delay by our own queue.
    link.set_rtt_s(event.rtt->rtt_min_s);
    link.set_rtt_deviation_s(event.rtt->rtt_deviation_s);
    link.set_samples(event.rtt->received);
    link.set_loss_ratio(event.rtt->loss_ratio());
    found->second.rtt_s = event.rtt->rtt_min_s;
  } else {
    link.set_error(Message(event.rtt.status()));
    link.set_loss_ratio(1);
  }
  if (is_echo) found->second.loss_ratio = link.loss_ratio();
  SendToController(std::move(up), Tier::kTelemetry);
}

StatusOr<ProbeTask> Agent::PlanProbe(const v1::ProbeRequest& request) {
  const auto peer = peers_.find(request.target_node());
  if (peer == peers_.end()) {
    return NotFound(
        StrCat("node '", request.target_node(), "' is no peer of '", options_.node, "'"));
  }
  ProbeTask task;
  task.id = request.probe_id();
  task.node = request.target_node();
  WEIR_ASSIGN_OR_RETURN(task.method, ParseProbeMethod(request.method()));
  WEIR_ASSIGN_OR_RETURN(
      task.probe_address,
      SocketAddress::FromIp(peer->second.peer.address(),
                            static_cast<uint16_t>(peer->second.peer.probe_port())));
  task.deadline = clock_.Now() + FromSeconds(Bounded(request.deadline_s(), kProbeDeadlineDefault_s,
                                                     0.5, kProbeDeadlineMax_s));
  if (task.method == ProbeMethod::kRoute) return task;
  const uint32_t port = peer->second.peer.iperf_port();
  if (port == 0 || port > 65535 || options_.iperf_port == 0) {
    return FailedPrecondition(
        StrCat("iperf3 is disabled on ", options_.iperf_port == 0 ? options_.node : task.node));
  }
  task.iperf_port = static_cast<uint16_t>(port);
  const TimePoint now = clock_.Now();
  const uint64_t wanted = request.bytes_max() != 0 ? request.bytes_max() : kProbeBytesDefault;
  if (!budget_.TryTake(wanted, now)) {
    return ResourceExhausted(StrCat("probe of ", wanted, " bytes is over the node's budget, ",
                                    budget_.Available(now), " bytes at this moment"));
  }
  task.bytes_max = wanted;
  return task;
}

void Agent::StartProbe(const v1::ProbeRequest& request) {
  StatusOr<ProbeTask> task = PlanProbe(request);
  Status status = task.status();
  if (task.ok()) {
    const uint64_t granted = task->bytes_max;
    status = probes_->Enqueue(std::move(*task));
    if (!status.ok()) budget_.Return(granted);
  }
  if (status.ok()) {
    latency_->SetPaused(true);
    probe_started_[request.probe_id()] = clock_.Now();
    return;
  }
  v1::AgentMessage up;
  v1::ProbeResult& result = *up.mutable_probe();
  result.set_probe_id(request.probe_id());
  result.mutable_sample()->set_target_node(request.target_node());
  result.mutable_sample()->set_method(request.method());
  result.mutable_sample()->set_error(Message(status));
  SendToController(std::move(up), Tier::kControl);
}

void Agent::Handle(ProbeDone& event) {
  const v1::ProbeResult& result = event.result;
  const bool ok = result.sample().error().empty();
  if (event.task.bytes_max > result.bytes_used()) {
    budget_.Return(event.task.bytes_max - result.bytes_used());
  }
  const auto started = probe_started_.find(event.task.id);
  const double seconds =
      started == probe_started_.end() ? 0 : ToSeconds(event.at - started->second);
  if (started != probe_started_.end()) probe_started_.erase(started);
  metrics_.CountProbe(Name(event.task.method), ok, result.bytes_used(), seconds);
  if (probe_started_.empty()) latency_->SetPaused(false);
  const auto peer = peers_.find(event.task.node);
  if (peer != peers_.end() && result.sample().bandwidth_bytes_per_s() > 0) {
    peer->second.bandwidth_bytes_per_s = result.sample().bandwidth_bytes_per_s();
  }
  if (!ok) {
    Log(LogLevel::kInfo, "agent",
        StrCat("probe ", event.task.id, " of ", event.task.node, ": ", result.sample().error()));
  }
  v1::AgentMessage up;
  *up.mutable_probe() = std::move(event.result);
  SendToController(std::move(up), Tier::kControl);
}

void Agent::Tick() {
  const TimePoint now = clock_.Now();
  if (health_ != nullptr) health_->Beat();
  last_tick_ = now;
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + heartbeat_interval_;
    // A heartbeat overtakes other messages, and the greeting has to come first.
    if (generation_ != 0 && welcomed_) SendHeartbeat();
  }
  if (now >= next_metrics_) {
    next_metrics_ = now + kMetricsInterval;
    if (nccl_.Reload()) SendNcclTables();
    PublishMetrics();
  }
}

Status Agent::Alive() const {
  const Duration silent = clock_.Now() - last_tick_.load();
  if (silent <= kHealthBeatMax) return OkStatus();
  return Unavailable(StrCat("the agent's thread has done nothing for ", ToSeconds(silent), " s"));
}

void Agent::SendHeartbeat() {
  v1::AgentMessage up;
  last_heartbeat_unix_s_ = clock_.UnixSeconds();
  up.mutable_heartbeat()->set_unix_s(last_heartbeat_unix_s_);
  SendToController(std::move(up), Tier::kSignOfLife);
  if (std::optional<v1::NcclSummary> summary = nccl_.Summary()) {
    v1::AgentMessage nccl;
    *nccl.mutable_nccl() = *std::move(summary);
    SendToController(std::move(nccl), Tier::kTelemetry);
  }
}

void Agent::PublishMetrics() {
  MetricsSnapshot s;
  s.controller_connected = generation_ != 0 && welcomed_;
  s.controller_heartbeat_unix_s = last_heartbeat_unix_s_;
  s.ranks = subscription_.rank_count();
  s.unauthenticated_ranks = subscription_.unauthenticated_rank_count();
  s.connections = local_->connection_count();
  s.peers = peers_.size();
  s.probe_budget_bytes = budget_.Available(clock_.Now());
  for (const auto& [node, state] : peers_) {
    if (state.rtt_s > 0) s.rtt_s.push_back(state.rtt_s);
    s.loss_ratio.push_back(state.loss_ratio);
    if (state.bandwidth_bytes_per_s > 0) {
      s.bandwidth_bytes_per_s.push_back(state.bandwidth_bytes_per_s);
    }
  }
  // This also logs when renewed files are invalid.
  if (TlsFiles* files = options_.controller.credentials.files()) s.tls = files->Health();
  const PlanSubscription::Counters& counters = subscription_.counters();
  s.controller_connections = controller_connections_;
  s.offers = counters.offers;
  s.acks = counters.acks;
  s.nacks = counters.nacks;
  s.activations = counters.activations;
  s.stale_answers = counters.stale_answers;
  s.refused_connections = local_->refused_count();
  s.dropped_to_controller = stream_ ? stream_->dropped() : 0;
  s.iperf_tests_served = iperf_server_ ? iperf_server_->tests_served() : 0;
  {
    MutexLock lock(inbox_mutex_);
    s.dropped_from_ranks = inbox_.dropped();
  }
  s.nccl = nccl_.Snapshot();
  s.gpus = gpus_->Newest();
  metrics_.Set(s);
}

}  // namespace weir::agent
