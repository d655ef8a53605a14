// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/resources.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "controller/cli/describe.h"
#include "controller/messages/json.h"
#include "controller/messages/mapping.h"

namespace weir::cli {
namespace {

using ProtoMessage = google::protobuf::Message;

double UnixNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string Label(const v1::Choice& choice) {
  return choice.codec().empty() ? "dense" : ChoiceLabel(ToModel(choice));
}

std::string EstimateText(const v1::Estimate& e, std::string (*format)(double)) {
  if (e.samples() == 0 && e.value() == 0) return "-";
  return StrCat(format(e.value()), " (", e.method(), ", ", AgeText(e.age_s()), ")");
}

std::string Joined(const google::protobuf::RepeatedPtrField<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text.empty() ? "-" : text;
}

// The choice of the job's largest bucket, and how often ranks synchronise.
std::string Running(const v1::Job& job) {
  const v1::Bucket* largest = nullptr;
  for (const v1::Bucket& bucket : job.buckets()) {
    if (largest == nullptr || bucket.elements() > largest->elements()) largest = &bucket;
  }
  const std::string sync =
      job.active_plan().has_sync() ? SyncText(ToModel(job.active_plan().sync())) : "";
  const std::string suffix = sync.empty() ? "" : ", " + sync;
  for (const v1::BucketChoice& entry : job.active_plan().buckets()) {
    if (largest != nullptr && entry.bucket() == largest->key()) {
      return Label(entry.choice()) + suffix;
    }
  }
  return Label(job.active_plan().fallback()) + suffix;
}

// "8x NVIDIA H100 80GB HBM3", models in the order of the node.
std::string GpuText(const v1::Node& node) {
  std::vector<std::pair<std::string, int>> models;
  for (const v1::Gpu& gpu : node.gpus()) {
    const auto found = std::find_if(models.begin(), models.end(),
                                    [&](const auto& model) { return model.first == gpu.name(); });
    if (found == models.end()) {
      models.emplace_back(gpu.name(), 1);
    } else {
      ++found->second;
    }
  }
  std::string text;
  for (const auto& [name, count] : models) {
    text += StrCat(text.empty() ? "" : ", ", count, "x ", name);
  }
  return text.empty() ? "-" : text;
}

// "4 comms, own_gpu 60 %, peer 30 %, wire 10 %": what senders waited for. Receivers without data
// cannot tell a late sender from a slow wire.
std::string NcclText(const v1::Node& node) {
  if (!node.has_nccl()) return "-";
  const v1::NcclSummary& nccl = node.nccl();
  std::string text = StrCat(nccl.communicators(), " comms");
  if (!nccl.table_source().empty()) {
    text += nccl.table_source() == "file" ? ", table of a file" : ", table of the controller";
    if (nccl.refusing() > 0) text += StrCat(" refused by ", nccl.refusing());
  }
  const double sum = nccl.own_gpu_s() + nccl.peer_s() + nccl.wire_s();
  if (!(sum > 0)) return text;
  const auto percent = [sum](double seconds) { return std::lround(100 * seconds / sum); };
  return StrCat(text, ", own_gpu ", percent(nccl.own_gpu_s()), " %, peer ", percent(nccl.peer_s()),
                " %, wire ", percent(nccl.wire_s()), " %");
}

Table NodeTable(const v1::ListNodesResponse& response) {
  Table table{{"NAME", "ADDRESS", "STATE", "SEEN", "JOBS", "GPUS", "NCCL", "VERSION"}, {}};
  for (const v1::Node& node : response.nodes()) {
    table.rows.push_back({node.name(), node.address(), node.connected() ? "connected" : "lost",
                          Since(node.last_seen_unix_s(), UnixNow()), Joined(node.jobs()),
                          GpuText(node), NcclText(node), node.agent_version()});
  }
  return table;
}

Table LinkTable(const v1::ListLinksResponse& response) {
  Table table{{"SOURCE", "TARGET", "RTT", "BANDWIDTH", "HOPS"}, {}};
  for (const v1::Link& link : response.links()) {
    table.rows.push_back({link.source(), link.target(), EstimateText(link.rtt_s(), SecondsText),
                          EstimateText(link.bandwidth_bytes_per_s(), BandwidthText),
                          link.hops() == 0 ? "-" : std::to_string(link.hops())});
  }
  return table;
}

Table JobTable(const v1::ListJobsResponse& response) {
  Table table{{"NAME", "STATE", "WORLD", "STEP", "STEP-TIME", "RUNNING", "BENEFIT", "GAIN", "LOSS",
               "SENT", "POLICY", "FRAMES"},
              {}};
  for (const v1::Job& job : response.jobs()) {
    const std::string frames = ProtectionText(job);
    table.rows.push_back({job.name(), job.pinned().empty() ? job.state() : job.state() + ",pinned",
                          std::to_string(job.world()), std::to_string(job.step()),
                          OrDash(job.step_s(), SecondsText), Running(job), job.benefit().text(),
                          OrDash(job.gain(), NumberText), OrDash(job.loss(), NumberText),
                          OrDash(static_cast<double>(job.bytes_sent()), BytesText), job.policy(),
                          frames.empty() ? "-" : frames});
  }
  return table;
}

Table DecisionTable(const v1::ListDecisionsResponse& response) {
  Table table{{"ID", "JOB", "STEP", "AGE", "TRIGGER", "CHOICE", "OUTCOME", "PREDICTED", "ACTUAL"},
              {}};
  for (const v1::Decision& decision : response.decisions()) {
    table.rows.push_back({decision.id(), decision.job(), std::to_string(decision.step()),
                          Since(decision.unix_s(), UnixNow()), decision.trigger(),
                          decision.switched() ? decision.to() : "(kept) " + decision.from(),
                          decision.outcome(), OrDash(decision.predicted_step_s(), SecondsText),
                          OrDash(decision.actual_step_s(), SecondsText)});
  }
  return table;
}

// "train-7:64,train-8:128": who holds how many slots.
std::string Holders(const v1::Aggregator& aggregator) {
  std::string text;
  for (const v1::GrantedLease& lease : aggregator.leases()) {
    if (text.size() > 60) return text + ",...";
    text += StrCat(text.empty() ? "" : ",", lease.job(), ":", lease.slots());
  }
  return text.empty() ? "-" : text;
}

Table AggregatorTable(const v1::ListAggregatorsResponse& response) {
  Table table{{"NAME", "STATE", "SINCE", "SLOTS", "FREE", "LEASES", "WAITS", "URL"}, {}};
  for (const v1::Aggregator& aggregator : response.aggregators()) {
    double waiting_s = 0;
    for (const auto& lease : aggregator.leases())
      waiting_s = std::max(waiting_s, lease.waiting_s());
    const bool reachable = aggregator.reachable();
    table.rows.push_back({aggregator.name(), reachable ? "reachable" : aggregator.error(),
                          Since(aggregator.since_unix_s(), UnixNow()),
                          std::to_string(aggregator.slots()),
                          std::to_string(aggregator.slots_free()), Holders(aggregator),
                          waiting_s > 0 ? OrDash(waiting_s, SecondsText) : "-", aggregator.url()});
  }
  return table;
}

// "lm-*,namespace=team-a,stage=dev*": what the policy selects.
std::string Selected(const v1::Policy& policy) {
  std::string text = Joined(policy.jobs());
  const bool all = policy.namespaces_size() == 1 && policy.namespaces(0) == "*";
  if (!all && policy.namespaces_size() > 0) {
    text += StrCat(",namespace=", Joined(policy.namespaces()));
  }
  const std::map<std::string, std::string> labels(policy.labels().begin(), policy.labels().end());
  for (const auto& [label, value] : labels) text += StrCat(",", label, "=", value);
  return text;
}

Table PolicyTable(const v1::ListPoliciesResponse& response) {
  Table table{{"NAME", "PRECEDENCE", "PRIORITY", "OBJECTIVE", "SELECTS", "RULES", "ORIGIN",
               "LOADED", "ERROR"},
              {}};
  for (const v1::Policy& policy : response.policies()) {
    table.rows.push_back(
        {policy.name(), std::to_string(policy.precedence()), std::to_string(policy.priority()),
         policy.objective(), Selected(policy), Joined(policy.ruled_jobs()), policy.origin(),
         Since(policy.loaded_unix_s(), UnixNow()), policy.error().empty() ? "-" : policy.error()});
  }
  return table;
}

// The functions that Get and Describe need for a kind. `fetch` fills `answer` with a list (name
// empty) or one item.
struct Kind {
  const char* plural;
  const char* event;
  const char* none;  // what to do where a list is empty
  std::function<Status(Client&, const ResourceRequest&, std::unique_ptr<ProtoMessage>* answer,
                       Table* table)>
      fetch;
};

Status FetchNodes(Client& client, const ResourceRequest& request,
                  std::unique_ptr<ProtoMessage>* answer, Table* table) {
  auto list = std::make_unique<v1::ListNodesResponse>();
  if (request.name.empty()) {
    WEIR_RETURN_IF_ERROR(client.CallAllPages(&v1::AdminService::Stub::ListNodes, {}, list.get()));
    *table = NodeTable(*list);
    *answer = std::move(list);
    return OkStatus();
  }
  v1::GetNodeRequest one;
  one.set_name(request.name);
  auto node = std::make_unique<v1::Node>();
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::GetNode, one, node.get()));
  *list->add_nodes() = *node;
  *table = NodeTable(*list);
  *answer = std::move(node);
  return OkStatus();
}

Status FetchLinks(Client& client, const ResourceRequest& request,
                  std::unique_ptr<ProtoMessage>* answer, Table* table) {
  v1::ListLinksRequest links;
  links.set_node(request.name);
  auto list = std::make_unique<v1::ListLinksResponse>();
  WEIR_RETURN_IF_ERROR(client.CallAllPages(&v1::AdminService::Stub::ListLinks, links, list.get()));
  *table = LinkTable(*list);
  *answer = std::move(list);
  return OkStatus();
}

Status FetchJobs(Client& client, const ResourceRequest& request,
                 std::unique_ptr<ProtoMessage>* answer, Table* table) {
  auto list = std::make_unique<v1::ListJobsResponse>();
  if (request.name.empty()) {
    WEIR_RETURN_IF_ERROR(client.CallAllPages(&v1::AdminService::Stub::ListJobs, {}, list.get()));
    *table = JobTable(*list);
    *answer = std::move(list);
    return OkStatus();
  }
  v1::GetJobRequest one;
  one.set_name(request.name);
  auto job = std::make_unique<v1::Job>();
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::GetJob, one, job.get()));
  *list->add_jobs() = *job;
  *table = JobTable(*list);
  *answer = std::move(job);
  return OkStatus();
}

// The newest `limit` decisions, page by page.
Status FetchNewest(Client& client, const ResourceRequest& request,
                   v1::ListDecisionsResponse* newest) {
  v1::ListDecisionsRequest ask;
  ask.set_job(request.job);
  ask.set_plans_only(request.plans_only);
  for (uint64_t left = request.limit == 0 ? UINT64_MAX : request.limit; left > 0;) {
    ask.set_page_size(static_cast<uint32_t>(std::min<uint64_t>(left, 500)));
    v1::ListDecisionsResponse page;
    WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::ListDecisions, ask, &page));
    newest->mutable_decisions()->MergeFrom(page.decisions());
    if (page.next_page_token().empty()) break;
    left -= std::min<uint64_t>(left, static_cast<uint64_t>(page.decisions_size()));
    ask.set_page_token(page.next_page_token());
  }
  return OkStatus();
}

Status FetchDecisions(Client& client, const ResourceRequest& request,
                      std::unique_ptr<ProtoMessage>* answer, Table* table) {
  auto list = std::make_unique<v1::ListDecisionsResponse>();
  if (request.name.empty()) {
    WEIR_RETURN_IF_ERROR(FetchNewest(client, request, list.get()));
    *table = DecisionTable(*list);
    *answer = std::move(list);
    return OkStatus();
  }
  v1::GetDecisionRequest one;
  one.set_id(request.name);
  auto decision = std::make_unique<v1::Decision>();
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::GetDecision, one, decision.get()));
  *list->add_decisions() = *decision;
  *table = DecisionTable(*list);
  *answer = std::move(decision);
  return OkStatus();
}

Status FetchAggregators(Client& client, const ResourceRequest& request,
                        std::unique_ptr<ProtoMessage>* answer, Table* table) {
  auto list = std::make_unique<v1::ListAggregatorsResponse>();
  WEIR_RETURN_IF_ERROR(
      client.CallAllPages(&v1::AdminService::Stub::ListAggregators, {}, list.get()));
  if (request.name.empty()) {
    *table = AggregatorTable(*list);
    *answer = std::move(list);
    return OkStatus();
  }
  std::string valid;
  for (const v1::Aggregator& aggregator : list->aggregators()) {
    if (aggregator.name() == request.name) {
      v1::ListAggregatorsResponse one;
      *one.add_aggregators() = aggregator;
      *table = AggregatorTable(one);
      *answer = std::make_unique<v1::Aggregator>(aggregator);
      return OkStatus();
    }
    valid += (valid.empty() ? "" : ", ") + aggregator.name();
  }
  return NotFound(
      StrCat("unknown aggregator '", request.name, "'; valid: ", valid.empty() ? "none" : valid));
}

Status FetchPolicies(Client& client, const ResourceRequest& request,
                     std::unique_ptr<ProtoMessage>* answer, Table* table) {
  auto list = std::make_unique<v1::ListPoliciesResponse>();
  WEIR_RETURN_IF_ERROR(client.CallAllPages(&v1::AdminService::Stub::ListPolicies, {}, list.get()));
  if (!request.name.empty()) {
    std::string valid;
    for (const v1::Policy& policy : list->policies()) {
      if (policy.name() == request.name) {
        v1::ListPoliciesResponse one;
        *one.add_policies() = policy;
        *table = PolicyTable(one);
        *answer = std::make_unique<v1::Policy>(policy);
        return OkStatus();
      }
      valid += (valid.empty() ? "" : ", ") + policy.name();
    }
    return NotFound(StrCat("unknown policy '", request.name, "'; valid: ", valid));
  }
  *table = PolicyTable(*list);
  *answer = std::move(list);
  return OkStatus();
}

// Text of strangers, which may hold what a terminal would obey; at most 60 bytes.
std::string OneLine(const std::string& text) {
  std::string line = text.substr(0, 60);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

Status FetchAudit(Client& client, const ResourceRequest& request,
                  std::unique_ptr<ProtoMessage>* answer, Table* table) {
  auto list = std::make_unique<v1::ListAuditResponse>();
  v1::ListAuditRequest ask;
  ask.set_page_size(request.limit);
  WEIR_RETURN_IF_ERROR(
      request.limit == 0 ? client.CallAllPages(&v1::AdminService::Stub::ListAudit, ask, list.get())
                         : client.Call(&v1::AdminService::Stub::ListAudit, ask, list.get()));
  table->header = {"TIME", "WHO", "BY", "FROM", "METHOD", "TARGET", "OUTCOME", "REASON"};
  for (const v1::AuditRecord& record : list->records()) {
    table->rows.push_back(
        {TimeText(record.unix_s()), record.principal().empty() ? "?" : record.principal(),
         record.proof().empty() ? "-" : record.proof(), record.peer(), record.method(),
         OneLine(record.target()), record.outcome(), OneLine(record.reason())});
  }
  *answer = std::move(list);
  return OkStatus();
}

StatusOr<Kind> FindKind(const std::string& name) {
  static const Kind kinds[] = {
      {"nodes", "node",
       "no agent has connected: start weir-agent on every training node, with --controller",
       FetchNodes},
      {"links", "link",
       "no link is measured yet: agents do that by themselves once two of them are connected",
       FetchLinks},
      {"jobs", "job",
       "no job has attached: set WEIR_AGENT in its environment, or start it with weir run",
       FetchJobs},
      {"decisions", "decision",
       "no decision yet: the first one comes after some measured steps; weirctl doctor says what "
       "keeps a job from it",
       FetchDecisions},
      {"aggregators", "aggregator",
       "no aggregator is configured: start weir-controller with --aggregator NAME=URL",
       FetchAggregators},
      {"policies", "policy", "no policy is in force: apply one with weirctl apply -f FILE",
       FetchPolicies},
      {"audit", "audit", "nobody has changed anything yet, or tried to", FetchAudit}};
  for (const Kind& kind : kinds) {
    if (name == kind.plural || name == kind.event) return kind;
  }
  return InvalidArgument(
      StrCat("unknown resource '", name,
             "'; valid: nodes, links, jobs, decisions, aggregators, policies, audit"));
}

}  // namespace

Status Get(Client& client, const ResourceRequest& request) {
  WEIR_ASSIGN_OR_RETURN(const Kind kind, FindKind(request.kind));
  std::unique_ptr<ProtoMessage> answer;
  Table table;
  WEIR_RETURN_IF_ERROR(kind.fetch(client, request, &answer, &table));
  if (request.output == Output::kTable && table.rows.empty()) {
    std::fprintf(stderr, "%s\n", kind.none);
    return OkStatus();
  }
  const std::string text =
      request.output == Output::kTable ? Render(table) : Render(*answer, request.output);
  std::fputs(text.c_str(), stdout);
  return OkStatus();
}

std::vector<std::string> ResourceNames(Client& client, const std::string& kind_name) {
  const StatusOr<Kind> kind = FindKind(kind_name);
  std::unique_ptr<ProtoMessage> answer;
  Table table;
  if (!kind.ok() || !kind->fetch(client, ResourceRequest(), &answer, &table).ok()) return {};
  std::set<std::string> names;
  for (const auto& row : table.rows) names.insert(row.at(0));
  return {names.begin(), names.end()};
}

Status Describe(Client& client, const ResourceRequest& request) {
  if (request.output != Output::kTable) return Get(client, request);
  WEIR_ASSIGN_OR_RETURN(const Kind kind, FindKind(request.kind));
  std::unique_ptr<ProtoMessage> answer;
  Table table;
  WEIR_RETURN_IF_ERROR(kind.fetch(client, request, &answer, &table));
  if (table.rows.empty()) {
    std::fprintf(stderr, "%s\n", kind.none);
    return OkStatus();
  }
  std::fputs(DescriptionOf(*answer, UnixNow()).c_str(), stdout);
  return OkStatus();
}

Status Watch(Client& client, const ResourceRequest& request) {
  WEIR_ASSIGN_OR_RETURN(const Kind kind, FindKind(request.kind));
  const std::string_view event_kind = kind.event;
  if (request.switches && event_kind != "decision") {
    return InvalidArgument(StrCat("--switches is for decisions, not for ", kind.plural));
  }
  v1::WatchRequest watch;
  watch.add_kinds(kind.event);
  if (watch.kinds(0) == "job") watch.add_kinds("rank");  // such as a step that is skipped
  watch.set_job(request.job.empty() ? request.name : request.job);
  grpc::ClientContext context;
  client.Prepare(&context, /*with_deadline=*/false);
  const auto reader = client.stub().Watch(&context, watch);
  v1::Event event;
  while (reader->Read(&event)) {
    if (request.switches && !event.decision().switched()) continue;
    std::string text;
    if (request.output == Output::kJson) {
      text = ToJson(event) + "\n";
    } else if (request.output == Output::kYaml) {
      text = "---\n" + Render(event, Output::kYaml);
    } else {
      text = StrCat(TimeText(event.unix_s()), "  ", event.kind(), "  ",
                    event.job().empty() ? "-" : event.job(), "  ", event.text(), "\n");
    }
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  return client.ToStatus(reader->Finish());
}

}  // namespace weir::cli
