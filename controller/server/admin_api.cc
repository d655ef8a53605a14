// SPDX-License-Identifier: Apache-2.0
#include "controller/server/admin_api.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "controller/messages/explain.h"
#include "controller/messages/json.h"
#include "controller/messages/late_ranks.h"
#include "controller/messages/mapping.h"
#include "controller/messages/simulation.h"
#include "controller/objective/objective.h"
#include "controller/server/fleet_mapping.h"
#include "controller/server/metrics.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr uint32_t kDecisionsDefault = 50;
constexpr uint32_t kDecisionsMax = 500;
constexpr uint32_t kPageDefault = 1000;
constexpr uint32_t kPageMax = 5000;
// Half of the default bound on a message in gRPC's clients. A job of many ranks and buckets takes
// hundreds of KiB.
constexpr size_t kPageBytes = 2u << 20;
constexpr size_t kSourceBytesMax = 1u << 20;

StatusOr<int64_t> ParseId(const std::string& what, const std::string& text) {
  int64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id <= 0) {
    return InvalidArgument(StrCat(what, " '", text.substr(0, 40), "', expected a positive number"));
  }
  return id;
}

// Counts the items of one page of a list. The first item always fits, so that a list reaches its
// end.
class Page {
 public:
  explicit Page(uint32_t asked, uint32_t size_default = kPageDefault, uint32_t size_max = kPageMax)
      : size_(std::min(asked == 0 ? size_default : asked, size_max)) {}
  uint32_t size() const { return size_; }
  /// Whether `item` belongs to this page; if so it is counted.
  bool Takes(const google::protobuf::Message& item) {
    const size_t bytes = item.ByteSizeLong();
    if (items_ > 0 && (items_ >= size_ || bytes_ + bytes > kPageBytes)) return false;
    ++items_;
    bytes_ += bytes;
    return true;
  }

 private:
  const uint32_t size_;
  uint32_t items_ = 0;
  size_t bytes_ = 0;
};

// Finds the beginning of a page. A token is the last key of the page before, so that pages stay
// right when entries come and go.
template <typename Map, typename Key>
auto PageBegin(const Map& map, const std::string& token, const Key& after) {
  return token.empty() ? map.begin() : map.upper_bound(after);
}

// "<bytes of source>:<source><target>", since names may hold anything.
std::string LinkToken(const std::pair<std::string, std::string>& key) {
  return StrCat(key.first.size(), ":", key.first, key.second);
}

StatusOr<std::pair<std::string, std::string>> ParseLinkToken(const std::string& token) {
  std::pair<std::string, std::string> key;
  if (token.empty()) return key;
  size_t size = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), size);
  const auto at = static_cast<size_t>(end - token.data()) + 1;
  if (error != std::errc() || at > token.size() || *end != ':' || size > token.size() - at) {
    return InvalidArgument(StrCat("page_token '", token.substr(0, 40),
                                  "', expected the next_page_token of a list of links"));
  }
  return std::make_pair(token.substr(at, size), token.substr(at + size));
}

// Tokens grow in order of precedence: of falling priority, applied policies by name, then files by
// path, and the default last.
std::string PolicyToken(const PolicyEntry& entry) {
  if (entry.origin == "built in") return "default";
  char place[12];
  std::snprintf(place, sizeof(place), "%06d", 100000 - entry.policy.priority);
  return StrCat(place, entry.origin == "api" ? StrCat("a", entry.name) : StrCat("b", entry.origin));
}

template <typename Map>
std::string Names(const Map& map) {
  std::string names;
  for (const auto& [name, value] : map) {
    if (names.size() > 400) return names + ", ...";
    names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "none" : names;
}

}  // namespace

StatusOr<Job*> AdminApi::RequireJob(const std::string& name) const {
  if (Job* job = fleet_.jobs().Find(name); job != nullptr) return job;
  return NotFound(StrCat("no job '", name, "'; known: ", Names(fleet_.jobs().all())));
}

Status AdminApi::ListNodes(const v1::ListNodesRequest& request, v1::ListNodesResponse* response) {
  Page page(request.page_size());
  const auto& nodes = fleet_.nodes().all();
  auto at = PageBegin(nodes, request.page_token(), request.page_token());
  for (; at != nodes.end(); ++at) {
    v1::Node node = ToProto(NodeView{at->second, fleet_.JobsOn(at->first)});
    if (!page.Takes(node)) {
      response->set_next_page_token(response->nodes().rbegin()->name());
      break;
    }
    *response->add_nodes() = std::move(node);
  }
  response->set_controller_version(fleet_.options().version);
  response->set_controller_unix_s(clock_.UnixSeconds());
  return OkStatus();
}

Status AdminApi::GetNode(const v1::GetNodeRequest& request, v1::Node* response) {
  const NodeState* node = fleet_.nodes().Find(request.name());
  if (node == nullptr) {
    return NotFound(StrCat("no node '", request.name(), "'; known: ", Names(fleet_.nodes().all())));
  }
  *response = ToProto(NodeView{*node, fleet_.JobsOn(request.name())});
  return OkStatus();
}

Status AdminApi::ListLinks(const v1::ListLinksRequest& request, v1::ListLinksResponse* response) {
  WEIR_ASSIGN_OR_RETURN(const auto after, ParseLinkToken(request.page_token()));
  std::map<std::pair<std::string, std::string>, v1::Link> all;
  for (const auto& [ends, link] : fleet_.nodes().links()) {
    all[ends] = ToProto(ends, link, clock_.Now());
  }
  // A job's own estimate of its links is the better one, because it also uses the training traffic.
  for (const auto& [name, job] : fleet_.jobs().all()) {
    if (job->model() == nullptr || !job->members().attached()) continue;
    for (const LinkEstimate& estimate : job->model()->Links()) {
      v1::Link& link = all[{estimate.source_node, estimate.target_node}];
      link.set_source(estimate.source_node);
      link.set_target(estimate.target_node);
      if (estimate.rtt_samples > 0) {
        *link.mutable_rtt_s() = ToProto(estimate.rtt_s);
        link.mutable_rtt_s()->set_method(estimate.rtt_method);
        link.mutable_rtt_s()->set_samples(estimate.rtt_samples);
      }
      if (estimate.bandwidth_samples > 0) {
        *link.mutable_bandwidth_bytes_per_s() = ToProto(estimate.bandwidth_bytes_per_s);
        link.mutable_bandwidth_bytes_per_s()->set_method(estimate.bandwidth_method);
        link.mutable_bandwidth_bytes_per_s()->set_samples(estimate.bandwidth_samples);
      }
    }
  }
  Page page(request.page_size());
  for (auto at = PageBegin(all, request.page_token(), after); at != all.end(); ++at) {
    const auto& [source, target] = at->first;
    if (!request.node().empty() && source != request.node() && target != request.node()) continue;
    if (!page.Takes(at->second)) {
      const v1::Link& last = *response->links().rbegin();
      response->set_next_page_token(LinkToken({last.source(), last.target()}));
      break;
    }
    *response->add_links() = at->second;
  }
  return OkStatus();
}

v1::Job AdminApi::JobProto(const Job& job) const {
  v1::Job out = ToProto(job.View());
  for (const PolicyEntry& entry : fleet_.policies().All()) {
    if (entry.valid && PolicyMatches(entry.policy, job.name(), job.members().labels())) {
      out.add_policies(entry.name);
    }
  }
  return out;
}

Status AdminApi::ListJobs(const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
  Page page(request.page_size());
  const auto& jobs = fleet_.jobs().all();
  auto at = PageBegin(jobs, request.page_token(), request.page_token());
  for (; at != jobs.end(); ++at) {
    v1::Job job = JobProto(*at->second);
    if (!page.Takes(job)) {
      response->set_next_page_token(std::prev(at)->first);
      break;
    }
    *response->add_jobs() = std::move(job);
  }
  return OkStatus();
}

Status AdminApi::GetJob(const v1::GetJobRequest& request, v1::Job* response) {
  WEIR_ASSIGN_OR_RETURN(const Job* job, RequireJob(request.name()));
  *response = JobProto(*job);
  for (const JobSharing& one : fleet_.SharingWith(request.name())) {
    *response->add_sharing() = ToProto(one);
  }
  const ProbeUse probes = fleet_.probes().UseBetween(job->members().nodes());
  response->mutable_probes()->set_bytes(probes.bytes);
  response->mutable_probes()->set_seconds(probes.seconds);
  response->mutable_probes()->set_budget_ratio(job->decisions().policy().probe_budget_ratio);
  return OkStatus();
}

Status AdminApi::ListDecisions(const v1::ListDecisionsRequest& request,
                               v1::ListDecisionsResponse* response) {
  int64_t before = 0;
  if (!request.page_token().empty()) {
    WEIR_ASSIGN_OR_RETURN(before, ParseId("page_token", request.page_token()));
  }
  Page page(request.page_size(), kDecisionsDefault, kDecisionsMax);
  WEIR_ASSIGN_OR_RETURN(auto stored, store_.ListDecisions(request.job(), before, page.size() + 1,
                                                          request.plans_only()));
  for (const StoredDecision& entry : stored) {
    // Candidates are nearly all of a decision, so clients that want them ask for one decision.
    WEIR_ASSIGN_OR_RETURN(v1::Decision decision, LightDecisionOf(entry));
    if (!page.Takes(decision)) {
      response->set_next_page_token(response->decisions().rbegin()->id());
      break;
    }
    *response->add_decisions() = std::move(decision);
  }
  return OkStatus();
}

// A stored decision with the plan that it offered and, if they were not deleted, its inputs.
StatusOr<v1::Decision> AdminApi::WholeDecision(const std::string& id_text) {
  WEIR_ASSIGN_OR_RETURN(const int64_t id, ParseId("decision", id_text));
  WEIR_ASSIGN_OR_RETURN(const StoredDecision stored, store_.GetDecision(id));
  WEIR_ASSIGN_OR_RETURN(v1::Decision decision, DecisionOf(stored));
  if (auto snapshot = SnapshotOf(stored); snapshot.ok()) {
    decision.set_snapshot_json(*std::move(snapshot));
  }
  if (stored.switched) {
    const auto plan = journal_.LoadPlan(decision.job(), decision.plan_version());
    if (plan.has_value()) *decision.mutable_plan() = ToProto(*plan);
  }
  return decision;
}

Status AdminApi::GetDecision(const v1::GetDecisionRequest& request, v1::Decision* response) {
  WEIR_ASSIGN_OR_RETURN(*response, WholeDecision(request.id()));
  return OkStatus();
}

Status AdminApi::Explain(const v1::ExplainRequest& request, v1::Explanation* response) {
  WEIR_ASSIGN_OR_RETURN(const Job* job, RequireJob(request.job()));
  const DecisionLoop& decisions = job->decisions();
  const std::string& obstacle = decisions.obstacle();
  const auto& newest = decisions.last_decision();
  std::string id = request.decision_id();
  if (id.empty()) {
    if (!newest.has_value()) {
      return FailedPrecondition(StrCat("no decision for job '", request.job(), "' yet: ",
                                       obstacle.empty() ? "nothing measured" : obstacle));
    }
    if (decisions.last_inputs().has_value()) *response = ToProto(*decisions.last_inputs());
    *response->mutable_decision() = ToProto(*newest);
    AddWords(response->mutable_decision());
    for (const auto& candidate : decisions.last_front()) {
      *response->add_front() = ToProto(candidate);
    }
    if (newest->id > 0) id = std::to_string(newest->id);
  }
  if (!id.empty()) {
    WEIR_ASSIGN_OR_RETURN(v1::Decision whole, WholeDecision(id));
    if (whole.job() != request.job()) {
      return NotFound(StrCat("decision ", id, " is of job '", whole.job(), "'"));
    }
    if (newest.has_value() && id == std::to_string(newest->id)) {
      whole.set_unchanged(newest->unchanged);
    }
    const auto snapshot = ParseSnapshot(whole.snapshot_json());
    whole.clear_snapshot_json();  // large, and no explanation; the decision itself has it
    *response->mutable_decision() = std::move(whole);
    if (snapshot.ok() && !response->has_latency_s()) {
      response->MergeFrom(ToProto(DescribeInputs(*snapshot, {})));
    }
  }
  std::string text = ExplainText(*response);
  if (job->series().predictions() > 0) {
    text += StrCat("Prediction error of collective times: median ",
                   static_cast<int>(job->series().PredictionErrorMedian() * 1000) / 10.0,
                   " % over ", job->series().predictions(), " runs\n");
  }
  if (request.decision_id().empty()) {
    const v1::Job job_now = JobProto(*job);
    for (const LateRanks& late : LateRanksOf(job_now)) {
      text += StrCat("Late: ", late.text, "; no plan helps\n");
    }
    for (const BindingWire& wire : BindingWiresOf(job_now)) {
      text += StrCat("Network: ", wire.text, "\n");
    }
  }
  if (request.decision_id().empty()) {
    const auto sharing = fleet_.SharingWith(request.job());
    if (!sharing.empty()) text += StrCat("The job ", SharingText(sharing), "\n");
    for (const JobSharing& one : sharing) *response->add_sharing() = ToProto(one);
  }
  if (!obstacle.empty() && request.decision_id().empty()) {
    text += StrCat("Not deciding now: ", obstacle, "\n");
    response->set_not_deciding(obstacle);
  }
  response->set_text(std::move(text));
  return OkStatus();
}

Status AdminApi::Replay(const v1::ReplayRequest& request, v1::ReplayResponse* response) {
  WEIR_ASSIGN_OR_RETURN(const int64_t id, ParseId("decision", request.id()));
  WEIR_ASSIGN_OR_RETURN(const StoredDecision stored, store_.GetDecision(id));
  WEIR_ASSIGN_OR_RETURN(const v1::Decision decision, DecisionOf(stored));
  if (!decision.has_facts()) {
    return FailedPrecondition(
        StrCat("decision ", id,
               " is of an earlier release with other digests, so it cannot be "
               "compared"));
  }
  WEIR_ASSIGN_OR_RETURN(const std::string inputs, SnapshotOf(stored));
  WEIR_ASSIGN_OR_RETURN(const Snapshot snapshot, ParseSnapshot(inputs));
  WEIR_ASSIGN_OR_RETURN(const Policy policy, DecodeEffectivePolicy(stored.policy));
  WEIR_ASSIGN_OR_RETURN(const Decision replayed, Decide(snapshot, policy));
  response->set_stored_digest(decision.digest());
  response->set_replayed_digest(replayed.digest);
  response->set_identical(decision.digest() == replayed.digest);
  return OkStatus();
}

// By name of the policy, the jobs that it rules.
std::map<std::string, std::vector<std::string>> AdminApi::RuledJobs() const {
  std::map<std::string, std::vector<std::string>> ruled;
  for (const auto& [name, job] : fleet_.jobs().all()) {
    if (job->members().state() != "ended") {
      ruled[job->decisions().policy_name()].push_back(name);
    }
  }
  return ruled;
}

v1::Policy AdminApi::PolicyProto(const PolicyEntry& entry, size_t precedence) const {
  v1::Policy policy = ToProto(entry);
  policy.set_precedence(static_cast<uint32_t>(precedence));
  for (std::string& warning : fleet_.policies().Warnings(entry.policy)) {
    policy.add_warnings(std::move(warning));
  }
  return policy;
}

Status AdminApi::ListPolicies(const v1::ListPoliciesRequest& request,
                              v1::ListPoliciesResponse* response) {
  Page page(request.page_size());
  std::string last;
  size_t precedence = 0;
  auto ruled = RuledJobs();
  for (const PolicyEntry& entry : fleet_.policies().All()) {
    ++precedence;
    const std::string token = PolicyToken(entry);
    if (token <= request.page_token()) continue;
    v1::Policy policy = PolicyProto(entry, precedence);
    // A second policy of that name, such as a file's, is in the shade of the first.
    for (const std::string& job : std::exchange(ruled[entry.name], {})) policy.add_ruled_jobs(job);
    if (!page.Takes(policy)) {
      response->set_next_page_token(last);
      break;
    }
    *response->add_policies() = std::move(policy);
    last = token;
  }
  return OkStatus();
}

Status AdminApi::GetPolicy(const v1::GetPolicyRequest& request, v1::Policy* response) {
  size_t precedence = 0;
  std::map<std::string, bool> names;
  const PolicyEntry* named = fleet_.policies().Find(request.name());
  for (const PolicyEntry& entry : fleet_.policies().All()) {
    ++precedence;
    names[entry.name] = true;
    if (entry.name != request.name() || (named != nullptr && named->origin != entry.origin))
      continue;
    *response = PolicyProto(entry, precedence);
    const auto ruled = RuledJobs();
    if (const auto jobs = ruled.find(entry.name); jobs != ruled.end()) {
      for (const std::string& job : jobs->second) response->add_ruled_jobs(job);
    }
    return OkStatus();
  }
  return NotFound(StrCat("no policy '", request.name(), "'; known: ", Names(names)));
}

Status AdminApi::ListAggregators(const v1::ListAggregatorsRequest& request,
                                 v1::ListAggregatorsResponse* response) {
  Page page(request.page_size());
  const auto& aggregators = fleet_.aggregators();
  auto at = PageBegin(aggregators, request.page_token(), request.page_token());
  for (; at != aggregators.end(); ++at) {
    v1::Aggregator said = ToProto(at->second.said);
    if (!page.Takes(said)) {
      response->set_next_page_token(std::prev(at)->first);
      break;
    }
    *response->add_aggregators() = std::move(said);
  }
  return OkStatus();
}

Status AdminApi::ValidatePolicy(const v1::ValidatePolicyRequest& request,
                                v1::ValidatePolicyResponse* response) {
  const StatusOr<Policy> policy =
      request.source().size() > kSourceBytesMax
          ? InvalidArgument(StrCat("the policy has more than ", kSourceBytesMax, " bytes"))
          : ReadPolicy(request.source(), "policy", &fleet_.policies().known());
  response->set_valid(policy.ok());
  if (policy.ok()) {
    response->set_name(policy->name);
  } else {
    response->set_error(Message(policy.status()));
  }
  return OkStatus();
}

Status AdminApi::CheckTag(const std::string& name, const std::string& if_match) const {
  const PolicyEntry* present = fleet_.policies().Find(name);
  const std::string tag = SourceTag(present == nullptr ? "" : present->source);
  if (if_match.empty() || if_match == tag) return OkStatus();
  return MakeStatus(StatusCode::kAborted,
                    StrCat("policy ", name, " was changed meanwhile: its etag is ", tag,
                           ", expected ", if_match.substr(0, 40)));
}

Status AdminApi::ApplyPolicy(const v1::ApplyPolicyRequest& request,
                             v1::ApplyPolicyResponse* response) {
  if (request.source().size() > kSourceBytesMax) {
    return InvalidArgument(StrCat("the policy has more than ", kSourceBytesMax, " bytes"));
  }
  WEIR_RETURN_IF_ERROR(CheckTag(request.name(), request.if_match()));
  // Without measurements only the lists of a policy can leave a job without any plan. What is wrong
  // with its text is said below.
  if (const auto policy = ReadPolicy(request.source(), "policy"); policy.ok()) {
    WEIR_RETURN_IF_ERROR(CheckLists(*policy, journal_.capabilities()));
  }
  WEIR_ASSIGN_OR_RETURN(const PolicyChange change,
                        fleet_.ApplyPolicy(request.name(), request.source(), request.dry_run()));
  const auto all = fleet_.policies().All();
  const auto place = std::find_if(all.begin(), all.end(), [&](const PolicyEntry& entry) {
    return entry.origin == "api" && entry.name == change.entry.name;
  });
  *response->mutable_policy() =
      PolicyProto(change.entry, place == all.end() ? 0 : 1 + (place - all.begin()));
  for (const auto& each : change.differences) *response->add_differences() = ToProto(each);
  for (const auto& each : change.effects) *response->add_effects() = ToProto(each);
  return OkStatus();
}

Status AdminApi::DeletePolicy(const v1::DeletePolicyRequest& request,
                              v1::DeletePolicyResponse* response) {
  WEIR_RETURN_IF_ERROR(CheckTag(request.name(), request.if_match()));
  WEIR_ASSIGN_OR_RETURN(const auto effects, fleet_.DeletePolicy(request.name(), request.dry_run()));
  for (const PolicyEffect& effect : effects) *response->add_effects() = ToProto(effect);
  return OkStatus();
}

Status AdminApi::ForgetNode(const v1::ForgetNodeRequest& request, v1::ForgetNodeResponse*) {
  WEIR_RETURN_IF_ERROR(fleet_.ForgetNode(request.name()));
  return OkStatus();
}

Status AdminApi::ForgetJob(const v1::ForgetJobRequest& request, v1::ForgetJobResponse*) {
  WEIR_RETURN_IF_ERROR(fleet_.ForgetJob(request.name()));
  return OkStatus();
}

Status AdminApi::SetLogLevel(const v1::SetLogLevelRequest& request, v1::SetLogLevelResponse*) {
  WEIR_ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(request.level()));
  SetMinimumLogLevel(level);
  return OkStatus();
}

Status AdminApi::Pin(const v1::PinRequest& request, v1::PinResponse* response) {
  WEIR_ASSIGN_OR_RETURN(Job * job, RequireJob(request.job()));
  WEIR_RETURN_IF_ERROR(job->Pin(ToModel(request)));
  *response->mutable_job() = ToProto(job->View());
  return OkStatus();
}

Status AdminApi::Unpin(const v1::UnpinRequest& request, v1::UnpinResponse* response) {
  WEIR_ASSIGN_OR_RETURN(Job * job, RequireJob(request.job()));
  WEIR_RETURN_IF_ERROR(job->Unpin());
  *response->mutable_job() = ToProto(job->View());
  return OkStatus();
}

Status AdminApi::Simulate(const v1::SimulateRequest& request, v1::SimulateResponse* response) {
  const v1::Capabilities& capabilities = journal_.capabilities();
  if (capabilities.codecs_size() == 0) {
    return FailedPrecondition("no rank has reported its codecs and collectives yet");
  }
  WEIR_ASSIGN_OR_RETURN(*response, weir::Simulate(request, capabilities));
  return OkStatus();
}

Status AdminApi::GetSeries(const v1::GetSeriesRequest& request, v1::Series* response) {
  WEIR_ASSIGN_OR_RETURN(const Job* job, RequireJob(request.job()));
  const std::vector<StepPoint> points = job->series().Points(request.since_step());
  const size_t wanted = request.points_max() == 0 ? points.size() : request.points_max();
  for (size_t i = points.size() - std::min(points.size(), wanted); i < points.size(); ++i) {
    *response->add_points() = ToProto(points[i]);
  }
  return OkStatus();
}

std::string AdminApi::MetricsText(const std::optional<TlsHealth>& tls) const {
  return weir::MetricsText(fleet_, events_.watchers(), tls);
}

Status AdminApi::Ready() { return store_.PutFact("ready", "1"); }

}  // namespace weir
