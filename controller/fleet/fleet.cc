// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/fleet.h"
#include "controller/fleet/link_sharing.h"

#include <algorithm>
#include <functional>

#include "controller/job/bounds.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr double kSlowTickS = 0.5;
constexpr double kPeerListDebounceS = 0.2;
constexpr size_t kPeerListsAtOnce = 512;
// Samples a second of latencies that no job needs, from all nodes together.
constexpr double kIdleSamplesPerS = 1000;
constexpr size_t kProbeOffersAtOnce = 8192;
constexpr double kProbeAfterS = 3;  // passive estimates get this long before a link is probed
constexpr double kWantedProbeIntervalS = 5;  // between probes of one link that the model asks for
constexpr double kProbeSeconds = 0.1;        // the duration of a probe, from which its bytes follow
constexpr double kDutyOfBudget = 2;          // share of a link's time over that of its bytes
constexpr double kLinkEventIntervalS = 1;
constexpr double kHeartbeatsMissed = 1.5;  // silence, in intervals, after which one is missing

// The hash of a policy's rules for NCCL, for comparisons within this process; 0: no policy.
uint64_t HashOf(const Policy* steers) {
  if (steers == nullptr) return 0;
  return std::max<uint64_t>(1, std::hash<std::string>()(PolicyValues(*steers).at("nccl.rules")));
}

}  // namespace

Fleet::Fleet(FleetOptions options, const Clock& clock, FleetJournal& journal, FleetWatcher& watcher)
    : options_(std::move(options)),
      clock_(clock),
      journal_(journal),
      watcher_(watcher),
      nodes_(clock),
      jobs_(*this, options_.job),
      aggregators_(clock),
      policies_(options_.names),
      idle_interval_s_(Policy{}.latency_interval_s) {}

Fleet::~Fleet() = default;

Status Fleet::Recover() {
  WEIR_ASSIGN_OR_RETURN(const auto policies, journal_.Policies());
  for (const FleetJournal::KeptPolicy& policy : policies) {
    const Status restored = policies_.Restore(policy.source, policy.applied_unix_s);
    if (!restored.ok()) {
      Log(LogLevel::kError, "controller",
          StrCat("stored policy '", policy.name, "' ignored: ", Message(restored)));
    }
  }
  WEIR_ASSIGN_OR_RETURN(auto nodes, journal_.Nodes());
  for (FleetJournal::KeptNode& node : nodes) {
    nodes_.Restore(std::move(node.said), node.last_seen_unix_s);
  }
  WEIR_ASSIGN_OR_RETURN(auto jobs, journal_.Jobs());
  for (FleetJournal::KeptJob& kept : jobs) {
    WEIR_ASSIGN_OR_RETURN(Job * job, jobs_.FindOrAdd(kept.name));
    job->Recover(kept.view, std::move(kept.pin), std::move(kept.newest), std::move(kept.progress));
  }
  return OkStatus();
}

Status Fleet::OnNodeGreeting(const std::shared_ptr<AgentLink>& link, const NodeGreeting& said) {
  WEIR_RETURN_IF_ERROR(nodes_.Check(said));
  if (const std::string named = nodes_.NameOf(link.get()); !named.empty() && named != said.node) {
    return FailedPrecondition(StrCat("this stream is of node ", named, ", not of ", said.node));
  }
  if (const NodeState* node = nodes_.Find(said.node);
      node != nullptr && node->connected() && node->link != link) {
    WEIR_RETURN_IF_ERROR(CheckReplaces(*node, said));
    const auto former = node->link;
    LoseNode(said.node, "replaced by a newer connection");
    former->Close(Aborted(StrCat("a newer agent of node ", said.node, " connected")));
  }
  nodes_.Connect(link, said);
  const Policy* const steers = policies_.NcclPolicyFor(said.node);
  nodes_.Find(said.node)->nccl_rules = HashOf(steers);
  link->Send(Welcome{options_.heartbeat_interval_s, options_.version,
                     steers == nullptr ? std::vector<NcclRule>{} : steers->nccl_rules});
  peers_.AddNode(said.node);
  SaveNode(said.node);
  Log(LogLevel::kInfo, "controller", StrCat("node ", said.node, " connected from ", said.address));
  PublishNode(said.node, StrCat("node ", said.node, " connected"));
  return OkStatus();
}

// A second stream of a node is refused while the first one lives: otherwise anybody who can claim
// the name would take the node away from its agent. The agent itself may come again, because it
// knows that its old stream has ended, and so may any agent once a heartbeat of the old one is
// missing.
Status Fleet::CheckReplaces(const NodeState& node, const NodeGreeting& said) const {
  const double silent_s = ToSeconds(clock_.Now() - node.heard());
  if (silent_s > kHeartbeatsMissed * options_.heartbeat_interval_s) return OkStatus();
  if (!said.instance.empty() && said.instance == node.said.instance) return OkStatus();
  return MakeStatus(
      StatusCode::kAlreadyExists,
      StrCat("node ", said.node, " has a living agent at ", node.said.address, ", which was heard ",
             silent_s, " s ago: end it, or give this agent another --node"));
}

void Fleet::CloseStreams(const Status& why) {
  for (const auto& [name, node] : nodes_.all()) {
    if (node.connected()) node.link->Close(why);
  }
}

void Fleet::OnAgentClosed(const std::shared_ptr<AgentLink>& link) {
  LoseNode(nodes_.NameOf(link.get()), "its stream closed");
}

void Fleet::LoseNode(const std::string& name, const std::string& why) {
  if (!nodes_.Lose(name)) return;
  const std::set<std::string> jobs = peers_.JobsOf(name);
  peers_.RemoveNode(name);
  probes_.OnNodeLost(name);
  SaveNode(name);
  for (const std::string& each : jobs) {
    if (Job* job = jobs_.Find(each); job != nullptr) job->OnNodeLost(name);
  }
  const std::string text = StrCat("node ", name, " lost: ", why);
  Log(LogLevel::kWarning, "controller", text);
  PublishNode(name, text);
}

Status Fleet::OnRankGreeting(const std::string& node, const RankGreeting& said) {
  WEIR_ASSIGN_OR_RETURN(Job * job, jobs_.FindOrAdd(said.job));
  const Status accepted = job->OnRankHello(node, said);
  // The first rank of another incarnation: it may be on other nodes.
  if (accepted.ok() && job->members().all().size() == 1) peers_.RemoveJob(said.job);
  NoteUse(*job, node);
  return accepted;
}

// Keeps what is known of who uses which node in step with the job's ranks.
void Fleet::NoteUse(const Job& job, const std::string& node) {
  const auto& members = job.members().all();
  const bool used = std::any_of(members.begin(), members.end(), [&](const auto& entry) {
    return entry.second.connected && entry.second.node == node;
  });
  if (used && nodes_.Connected(node)) {
    peers_.AddToJob(job.name(), node);
  } else {
    peers_.RemoveFromJob(job.name(), node);
  }
}

void Fleet::OnRankSaid(const std::string& node, const std::string& job, int rank,
                       const RankSaid& said) {
  Job* known = jobs_.Find(job);
  if (known != nullptr && known->members().HasRankOn(rank, node)) known->OnRankSaid(rank, said);
}

void Fleet::OnRankGone(const std::string& node, const std::string& job, int rank,
                       const std::string& reason) {
  Job* known = jobs_.Find(job);
  if (known == nullptr || !known->members().HasRankOn(rank, node)) return;
  known->OnRankGone(rank, reason);
  NoteUse(*known, node);
}

void Fleet::OnNames(const PolicyNames& declared) {
  if (policies_.Learn(declared, clock_.UnixSeconds())) OnPolicyFilesChanged();
}

void Fleet::OnLinkReport(const LinkReport& report) {
  LinkState* link = nodes_.Record(report);
  if (link == nullptr) return;
  // tcp_info samples summarise connections of ranks. Jobs get these from the ranks themselves, and
  // such a sample does not replace a probe that a job's model asks for.
  if (report.method != "tcp_info") {
    if (report.bandwidth_bytes_per_s > 0 && !report.application_limited) {
      probes_.OnBandwidthSample(report.source_node, report.target_node, Now());
    }
    for (const std::string& name : peers_.JobsOf(report.source_node)) {
      if (Job* job = jobs_.Find(name); job != nullptr) job->OnLink(report);
    }
  }
  if (ToSeconds(clock_.Now() - link->published_at) < kLinkEventIntervalS) return;
  link->published_at = clock_.Now();
  PublishEvent(
      {FleetEvent::Kind::kLink,
       StrCat(report.source_node, " -> ", report.target_node, ": rtt ", link->rtt_s.value * 1e3,
              " ms, bandwidth ", link->bandwidth_bytes_per_s.value / 1e6, " MB/s")});
}

void Fleet::OnNccl(const std::string& node, const NcclSums& sums) {
  nodes_.Find(node)->nccl = sums;
  for (const std::string& name : peers_.JobsOf(node)) {
    Job* job = jobs_.Find(name);
    if (job == nullptr) continue;
    job->OnNccl(node, {.operations = sums.sampled_operations,
                       .own_gpu_s = sums.own_gpu_s,
                       .peer_s = sums.peer_s,
                       .wire_s = sums.wire_s,
                       .arrival_s = sums.arrival_s});
  }
}

void Fleet::OnProbeResult(const std::string& id, uint64_t bytes_used) {
  probes_.OnResult(id, bytes_used, Now());
}

void Fleet::OnTick() {
  for (const auto& [name, job] : jobs_.all()) job->OnTick();
  const TimePoint now = clock_.Now();
  if (peers_.changed() && ToSeconds(now - peers_sent_at_) >= kPeerListDebounceS) {
    peers_sent_at_ = now;
    SendPeers();
  }
  if (now < next_slow_tick_) return;
  next_slow_tick_ = now + FromSeconds(kSlowTickS);
  for (const std::string& name : nodes_.Silent(options_.node_silence_max_s)) {
    const auto link = nodes_.Find(name)->link;
    LoseNode(name, StrCat("silent for more than ", options_.node_silence_max_s, " s"));
    link->Close(DeadlineExceeded("no heartbeat"));
  }
  ScheduleProbes();
  jobs_.ForgetEnded(options_.ended_job_keep_s);
}

void Fleet::SendPeers() {
  // In powers of two, and down again only at a half, so that this rarely concerns everyone.
  const double needed_s =
      static_cast<double>(peers_.size() * PeerSpread::kFleetPeers) / kIdleSamplesPerS;
  const double before_s = idle_interval_s_;
  while (idle_interval_s_ < needed_s) idle_interval_s_ *= 2;
  while (idle_interval_s_ > Policy{}.latency_interval_s && idle_interval_s_ / 4 > needed_s) {
    idle_interval_s_ /= 2;
  }
  if (idle_interval_s_ != before_s) peers_.MarkAll();
  for (const std::string& node : peers_.TakeChanged(kPeerListsAtOnce)) {
    nodes_.SendPeers(node, peers_.PeersOf(node), LatencyInterval(node));
  }
}

double Fleet::LatencyInterval(const std::string& node) const {
  double interval = idle_interval_s_;
  for (const std::string& name : peers_.JobsOf(node)) {
    const Job* job = jobs_.Find(name);
    if (job == nullptr || !job->members().attached()) continue;
    interval = std::min(interval, job->decisions().policy().latency_interval_s);
  }
  return interval;
}

// A part of a large fleet at a time; the scheduler forgets what no longer is offered at the end of
// each round.
void Fleet::ScheduleProbes() {
  size_t offers = 0;
  auto next = jobs_.all().lower_bound(probes_offered_until_);
  for (; next != jobs_.all().end() && offers < kProbeOffersAtOnce; ++next) {
    offers += OfferProbes(*next->second);
  }
  probes_offered_until_ = next == jobs_.all().end() ? "" : next->first;
  if (next == jobs_.all().end()) probes_.ForgetOtherLinks();
  for (const ScheduledProbe& probe : probes_.Next(Now())) nodes_.Send(probe.source, probe);
}

size_t Fleet::OfferProbes(const Job& job) {
  if (job.complete_for_s() < kProbeAfterS) return 0;
  // Training itself measures the links that it fills. Probes are for the other links, such as
  // those that another order of the ring would use.
  const bool wanted = job.model()->WantsBandwidthProbe();
  ProbeScheduler::LinkOffer offer;
  const Policy policy = job.decisions().policy();
  offer.interval_s = policy.probe_interval_s;
  offer.duty_max = kDutyOfBudget * policy.probe_budget_ratio;
  if (wanted) offer.interval_s = std::min(offer.interval_s, kWantedProbeIntervalS);
  offer.bytes_wanted = static_cast<uint64_t>(
      std::clamp(Finite(job.model()->bandwidth_bytes_per_s().value) * kProbeSeconds, 0.0, 1e12));
  size_t offers = 0;
  for (const std::string& source : job.members().nodes()) {
    for (const std::string& target : peers_.JobPeersOf(job.name(), source)) {
      const bool link_wanted = wanted || job.model()->WantsLinkProbe(source, target);
      offer.iperf = link_wanted && nodes_.Find(target)->said.iperf_port != 0;
      probes_.OfferLink(source, target, offer);
      ++offers;
    }
  }
  return offers;
}

void Fleet::SaveNode(const std::string& name) {
  const NodeState& node = *nodes_.Find(name);
  const Status saved = journal_.SaveNode(node.said, node.last_seen_unix_s);
  if (!saved.ok()) {
    ++counters_.store_errors;
    if (saved.code() == StatusCode::kFailedPrecondition) return;  // it leads no more: no news
    Log(LogLevel::kWarning, "controller", StrCat("node ", name, " not stored: ", Message(saved)));
  }
}

void Fleet::OnPolicyFiles(const StatusOr<std::map<std::string, std::string>>& files) {
  if (!files.ok()) {
    policies_.DirectoryFailed(files.status());
    Log(LogLevel::kError, "controller", Message(files.status()));
    return;
  }
  if (policies_.LoadFiles(*files, clock_.UnixSeconds())) OnPolicyFilesChanged();
}

void Fleet::OnPolicyFilesChanged() {
  for (const PolicyEntry& entry : policies_.All()) {
    if (entry.error.empty()) continue;
    Log(LogLevel::kError, "controller",
        StrCat("policy rejected, the old one stays: ", entry.error));
  }
  OnPoliciesChanged(policies_.last_reload_successful() ? "policies reloaded"
                                                       : "a policy was rejected");
}

void Fleet::OnPoliciesChanged(const std::string& text) {
  PublishEvent({FleetEvent::Kind::kPolicy, text});
  peers_.MarkAll();
  for (const auto& [name, job] : jobs_.all()) job->OnPolicyChange();
  SendNcclRules();
}

void Fleet::SendNcclRules() {
  std::map<const Policy*, uint64_t> hashes;  // few policies, and perhaps many nodes
  for (const auto& [name, node] : nodes_.all()) {
    if (!node.connected()) continue;
    const Policy* const steers = policies_.NcclPolicyFor(name);
    const auto [place, is_new] = hashes.try_emplace(steers);
    if (is_new) place->second = HashOf(steers);
    if (place->second == node.nccl_rules) continue;
    nodes_.Find(name)->nccl_rules = place->second;
    nodes_.Send(name, NcclTable{steers == nullptr ? std::vector<NcclRule>{} : steers->nccl_rules});
  }
}

StatusOr<PolicyChange> Fleet::ApplyPolicy(const std::string& name, const std::string& source,
                                          bool dry_run) {
  const double now = clock_.UnixSeconds();
  PolicySet after = policies_;
  PolicyChange change;
  WEIR_ASSIGN_OR_RETURN(change.entry, after.Apply(name, source, now, /*dry_run=*/false));
  const PolicyEntry* present = policies_.Find(change.entry.name);
  change.differences =
      DifferencesOf(present == nullptr ? Policy{} : present->policy, change.entry.policy);
  change.effects = EffectsOf(policies_, after, jobs_);
  if (dry_run) return change;
  for (const PolicyEffect& effect : change.effects) {
    if (effect.plan.nothing_to_choose.empty()) continue;
    return FailedPrecondition(StrCat("policy ", change.entry.name, " would leave job ", effect.job,
                                     " nothing to choose: ", effect.plan.nothing_to_choose));
  }
  WEIR_RETURN_IF_ERROR(journal_.SavePolicy({change.entry.name, source, now}));
  policies_ = std::move(after);
  OnPoliciesChanged(StrCat("policy ", change.entry.name, " applied"));
  return change;
}

StatusOr<std::vector<PolicyEffect>> Fleet::DeletePolicy(const std::string& name, bool dry_run) {
  PolicySet after = policies_;
  WEIR_RETURN_IF_ERROR(after.Delete(name));
  std::vector<PolicyEffect> effects = EffectsOf(policies_, after, jobs_);
  if (dry_run) return effects;
  WEIR_RETURN_IF_ERROR(journal_.DeletePolicy(name));
  policies_ = std::move(after);
  OnPoliciesChanged(StrCat("policy ", name, " deleted"));
  return effects;
}

Status Fleet::ForgetNode(const std::string& name) {
  if (nodes_.Connected(name)) {
    return FailedPrecondition(StrCat("node ", name, " is connected: stop its agent first"));
  }
  if (nodes_.Find(name) == nullptr) return NotFound(StrCat("no node '", name, "'"));
  WEIR_RETURN_IF_ERROR(journal_.DeleteNode(name));
  nodes_.Forget(name);
  return OkStatus();
}

Status Fleet::ForgetJob(const std::string& name) {
  if (const Job* job = jobs_.Find(name); job != nullptr && job->members().attached()) {
    return FailedPrecondition(StrCat("job ", name, " has ranks: end it first"));
  }
  // The store may know more jobs than this.
  WEIR_RETURN_IF_ERROR(journal_.DeleteJob(name));
  jobs_.Forget(name);
  peers_.RemoveJob(name);
  return OkStatus();
}

void Fleet::OnLeaseAnswer(const LeaseAsk& ask, const StatusOr<SlotGrant>& answer) {
  if (Job* job = jobs_.Find(ask.job); job != nullptr) {
    job->OnLeaseAnswer(ask, answer);
  } else if (answer.ok()) {
    // The job is gone, so its lease ends.
    EndLease(ask.aggregator, LeaseOwner(ask.job, ask.mode), answer->epoch);
  }
}

void Fleet::SendToRank(const std::string& node, const std::string& job, int rank,
                       const RankOrder& order) {
  nodes_.Send(node, OrderToRank{job, rank, order});
}

void Fleet::Publish(JobEvent event) { watcher_.OnEvent(event, clock_.UnixSeconds()); }

const PolicyEntry* Fleet::PolicyFor(const std::string& job) const {
  const Job* known = jobs_.Find(job);
  return policies_.Match(job, known == nullptr ? JobLabels() : known->members().labels());
}

std::map<std::string, std::vector<std::string>> Fleet::NodesOfJobs() const {
  std::map<std::string, std::vector<std::string>> nodes_of;
  for (const auto& [name, one] : jobs_.all()) {
    if (one->members().attached()) nodes_of[name] = one->members().nodes();
  }
  return nodes_of;
}

std::vector<JobSharing> Fleet::SharingWith(const std::string& job) const {
  return SharingOf(job, NodesOfJobs());
}

void Fleet::OnTrainingBytes(uint64_t bytes, const Policy& policy) {
  probes_.OnTrainingBytes(bytes, policy.probe_budget_ratio);
}

std::vector<std::string> Fleet::JobsOn(const std::string& node) const {
  const std::set<std::string>& jobs = peers_.JobsOf(node);
  return {jobs.begin(), jobs.end()};
}

void Fleet::PublishNode(const std::string& name, const std::string& text) {
  PublishEvent({FleetEvent::Kind::kNode, text, NodeView{*nodes_.Find(name), JobsOn(name)}});
}

}  // namespace weir
