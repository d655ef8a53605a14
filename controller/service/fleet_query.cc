// What operators ask of the fleet.

#include <algorithm>
#include <charconv>

#include "controller/service/explain.h"
#include "controller/service/fleet.h"
#include "controller/service/json.h"
#include "controller/service/mapping.h"
#include "controller/service/simulation.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr uint32_t kPageDefault = 50;
constexpr uint32_t kPageMax = 500;
constexpr size_t kSourceBytesMax = 1u << 20;

StatusOr<int64_t> ParseId(const std::string& what, const std::string& text) {
  int64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id <= 0) {
    return InvalidArgument(StrCat(what, " '", text.substr(0, 40), "', expected a positive number"));
  }
  return id;
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

StatusOr<v1::Decision> DecisionOf(const StoredDecision& stored) {
  v1::Decision decision;
  const Status parsed = FromJson(stored.payload, &decision);
  if (!parsed.ok()) return DataLoss(StrCat("decision ", stored.id, ": ", Message(parsed)));
  decision.set_id(std::to_string(stored.id));
  return decision;
}

}  // namespace

StatusOr<Job*> Fleet::RequireJob(const std::string& name) const {
  if (Job* job = FindJob(name); job != nullptr) return job;
  return NotFound(StrCat("no job '", name, "'; known: ", Names(jobs_)));
}

void Fleet::Audit(const std::string& actor, const std::string& action, const std::string& target,
                  const std::string& detail) {
  Log(LogLevel::kInfo, "audit",
      StrCat(actor.empty() ? "unknown" : actor, " ", action, " ", target,
             detail.empty() ? "" : ": ", detail));
  if (!store_.AddAudit({clock_.UnixSeconds(), actor, action, target, detail}).ok()) ++store_errors_;
}

Status Fleet::ListNodes(const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
  for (const auto& [name, node] : nodes_) *response->add_nodes() = NodeProto(name, node);
  return OkStatus();
}

Status Fleet::GetNode(const v1::GetNodeRequest& request, v1::Node* response) {
  const auto found = nodes_.find(request.name());
  if (found == nodes_.end()) {
    return NotFound(StrCat("no node '", request.name(), "'; known: ", Names(nodes_)));
  }
  *response = NodeProto(found->first, found->second);
  return OkStatus();
}

v1::Link Fleet::LinkProto(const std::string& source, const std::string& target,
                          const LinkRecord& link) const {
  const auto estimate = [this](double value, double deviation, TimePoint at,
                               const std::string& method, uint64_t samples) {
    v1::Estimate out;
    out.set_value(value);
    out.set_deviation(Finite(deviation));
    out.set_age_s(samples == 0 ? 0 : std::max(0.0, ToSeconds(clock_.Now() - at)));
    out.set_method(method);
    out.set_samples(samples);
    return out;
  };
  v1::Link out;
  out.set_source(source);
  out.set_target(target);
  *out.mutable_rtt_s() =
      estimate(link.rtt_s, link.rtt_deviation_s, link.rtt_at, link.rtt_method, link.rtt_samples);
  *out.mutable_bandwidth_bytes_per_s() =
      estimate(link.bandwidth, link.bandwidth_deviation, link.bandwidth_at, link.bandwidth_method,
               link.bandwidth_samples);
  out.set_hops(link.hops);
  return out;
}

Status Fleet::ListLinks(const v1::ListLinksRequest& request, v1::ListLinksResponse* response) {
  std::map<std::pair<std::string, std::string>, v1::Link> all;
  for (const auto& [key, link] : links_) all[key] = LinkProto(key.first, key.second, link);
  // A job's estimate of its own links rests on the training traffic too: it is the better one.
  for (const auto& [name, job] : jobs_) {
    if (job->model() == nullptr || !job->attached()) continue;
    for (const LinkEstimate& estimate : job->model()->Links()) {
      v1::Link& link = all[{estimate.source_node, estimate.target_node}];
      link.set_source(estimate.source_node);
      link.set_target(estimate.target_node);
      if (estimate.rtt_samples > 0) {
        *link.mutable_rtt_s() = weir::ToProto(estimate.rtt_s);
        link.mutable_rtt_s()->set_method(estimate.rtt_method);
        link.mutable_rtt_s()->set_samples(estimate.rtt_samples);
      }
      if (estimate.bandwidth_samples > 0) {
        *link.mutable_bandwidth_bytes_per_s() = weir::ToProto(estimate.bandwidth_bytes_per_s);
        link.mutable_bandwidth_bytes_per_s()->set_method(estimate.bandwidth_method);
        link.mutable_bandwidth_bytes_per_s()->set_samples(estimate.bandwidth_samples);
      }
    }
  }
  for (auto& [key, link] : all) {
    if (!request.node().empty() && key.first != request.node() && key.second != request.node())
      continue;
    *response->add_links() = std::move(link);
  }
  return OkStatus();
}

Status Fleet::ListJobs(const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
  for (const auto& [name, job] : jobs_) *response->add_jobs() = job->ToProto();
  return OkStatus();
}

Status Fleet::GetJob(const v1::GetJobRequest& request, v1::Job* response) {
  WEIR_ASSIGN_OR_RETURN(const Job* job, RequireJob(request.name()));
  *response = job->ToProto();
  return OkStatus();
}

Status Fleet::ListDecisions(const v1::ListDecisionsRequest& request,
                            v1::ListDecisionsResponse* response) {
  int64_t before = 0;
  if (!request.page_token().empty()) {
    WEIR_ASSIGN_OR_RETURN(before, ParseId("page_token", request.page_token()));
  }
  const uint32_t size =
      std::min(request.page_size() == 0 ? kPageDefault : request.page_size(), kPageMax);
  WEIR_ASSIGN_OR_RETURN(auto stored, store_.ListDecisions(request.job(), before, size + 1));
  const bool more = stored.size() > size;
  if (more) stored.resize(size);
  for (const StoredDecision& entry : stored) {
    WEIR_ASSIGN_OR_RETURN(*response->add_decisions(), DecisionOf(entry));
  }
  if (more) response->set_next_page_token(std::to_string(stored.back().id));
  return OkStatus();
}

Status Fleet::GetDecision(const v1::GetDecisionRequest& request, v1::Decision* response) {
  WEIR_ASSIGN_OR_RETURN(const int64_t id, ParseId("decision", request.id()));
  WEIR_ASSIGN_OR_RETURN(const StoredDecision stored, store_.GetDecision(id));
  WEIR_ASSIGN_OR_RETURN(*response, DecisionOf(stored));
  response->set_snapshot_json(stored.snapshot);
  return OkStatus();
}

Status Fleet::Explain(const v1::ExplainRequest& request, v1::Explanation* response) {
  WEIR_ASSIGN_OR_RETURN(const Job* job, RequireJob(request.job()));
  if (!job->last_decision().has_value()) {
    return FailedPrecondition(StrCat(
        "no decision for job '", request.job(),
        "' yet: ", job->last_obstacle().empty() ? "nothing measured" : job->last_obstacle()));
  }
  if (job->last_inputs().has_value()) *response = *job->last_inputs();
  *response->mutable_decision() = *job->last_decision();
  for (const auto& candidate : job->last_front()) *response->add_front() = candidate;
  const auto id = ParseId("decision", response->decision().id());
  if (id.ok()) {
    if (const auto stored = store_.GetDecision(*id); stored.ok()) {
      response->mutable_decision()->set_snapshot_json(stored->snapshot);
      const auto snapshot = ParseSnapshot(stored->snapshot);
      if (snapshot.ok() && !job->last_inputs().has_value()) {
        response->MergeFrom(DescribeInputs(*snapshot, {}));
      }
    }
  }
  std::string text = ExplainText(*response);
  if (job->series().predictions() > 0) {
    text += StrCat("Prediction error of collective times: median ",
                   static_cast<int>(job->series().PredictionErrorMedian() * 1000) / 10.0,
                   " % over ", job->series().predictions(), " runs\n");
  }
  if (!job->last_obstacle().empty())
    text += StrCat("Not deciding now: ", job->last_obstacle(), "\n");
  response->set_text(std::move(text));
  return OkStatus();
}

Status Fleet::Replay(const v1::ReplayRequest& request, v1::ReplayResponse* response) {
  WEIR_ASSIGN_OR_RETURN(const int64_t id, ParseId("decision", request.id()));
  WEIR_ASSIGN_OR_RETURN(const StoredDecision stored, store_.GetDecision(id));
  WEIR_ASSIGN_OR_RETURN(const v1::Decision decision, DecisionOf(stored));
  WEIR_ASSIGN_OR_RETURN(const Snapshot snapshot, ParseSnapshot(stored.snapshot));
  WEIR_ASSIGN_OR_RETURN(const Policy policy, DecodeEffectivePolicy(stored.policy));
  WEIR_ASSIGN_OR_RETURN(const Decision replayed, Decide(snapshot, policy));
  response->set_stored_digest(decision.digest());
  response->set_replayed_digest(replayed.digest);
  response->set_identical(decision.digest() == replayed.digest);
  return OkStatus();
}

Status Fleet::ListPolicies(const v1::ListPoliciesRequest&, v1::ListPoliciesResponse* response) {
  for (const PolicyEntry& entry : policies_.All()) *response->add_policies() = weir::ToProto(entry);
  return OkStatus();
}

Status Fleet::ValidatePolicy(const v1::ValidatePolicyRequest& request,
                             v1::ValidatePolicyResponse* response) {
  const Status valid =
      request.source().size() > kSourceBytesMax
          ? InvalidArgument(StrCat("the policy has more than ", kSourceBytesMax, " bytes"))
          : ReadPolicy(request.source(), "policy").status();
  response->set_valid(valid.ok());
  if (!valid.ok()) response->set_error(Message(valid));
  return OkStatus();
}

Status Fleet::ApplyPolicy(const v1::ApplyPolicyRequest& request,
                          v1::ApplyPolicyResponse* response) {
  if (request.source().size() > kSourceBytesMax) {
    return InvalidArgument(StrCat("the policy has more than ", kSourceBytesMax, " bytes"));
  }
  const double now = clock_.UnixSeconds();
  // Tried without effect first, then stored, then in force: what rules is what a restart will know.
  WEIR_ASSIGN_OR_RETURN(PolicyEntry entry,
                        policies_.Apply(request.name(), request.source(), now, true));
  if (!request.dry_run()) {
    WEIR_RETURN_IF_ERROR(store_.PutPolicy({entry.name, entry.source, now}));
    WEIR_ASSIGN_OR_RETURN(entry, policies_.Apply(request.name(), request.source(), now, false));
    Audit(request.actor(), "apply policy", entry.name, "");
    v1::Event event;
    event.set_kind("policy");
    event.set_text(StrCat("policy ", entry.name, " applied"));
    Publish(std::move(event));
    peers_changed_ = true;
    for (auto& [name, job] : jobs_) job->OnPolicyChange();
  }
  *response->mutable_policy() = weir::ToProto(entry);
  return OkStatus();
}

Status Fleet::Pin(const v1::PinRequest& request, v1::PinResponse* response) {
  WEIR_ASSIGN_OR_RETURN(Job * job, RequireJob(request.job()));
  WEIR_RETURN_IF_ERROR(job->Pin(request));
  Audit(request.actor(), "pin", request.job(),
        StrCat(ChoiceLabel(ToModel(request.choice())), " ", request.reason()));
  *response->mutable_job() = job->ToProto();
  return OkStatus();
}

Status Fleet::Unpin(const v1::UnpinRequest& request, v1::UnpinResponse* response) {
  WEIR_ASSIGN_OR_RETURN(Job * job, RequireJob(request.job()));
  WEIR_RETURN_IF_ERROR(job->Unpin());
  Audit(request.actor(), "unpin", request.job(), request.reason());
  *response->mutable_job() = job->ToProto();
  return OkStatus();
}

v1::Capabilities Fleet::KnownCapabilities() {
  v1::Capabilities capabilities;
  if (!capabilities_json_.empty()) (void)FromJson(capabilities_json_, &capabilities);
  return capabilities;
}

Status Fleet::Simulate(const v1::SimulateRequest& request, v1::SimulateResponse* response) {
  const v1::Capabilities capabilities = KnownCapabilities();
  if (capabilities.codecs_size() == 0) {
    return FailedPrecondition("no rank has ever said which codecs and collectives exist");
  }
  WEIR_ASSIGN_OR_RETURN(*response, weir::Simulate(request, capabilities));
  return OkStatus();
}

Status Fleet::GetSeries(const v1::GetSeriesRequest& request, v1::Series* response) {
  WEIR_ASSIGN_OR_RETURN(const Job* job, RequireJob(request.job()));
  *response = job->series().Points(request.since_step());
  return OkStatus();
}

Status Fleet::Ready() { return store_.PutFact("ready", "1"); }

}  // namespace weir
