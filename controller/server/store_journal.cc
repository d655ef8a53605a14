// SPDX-License-Identifier: Apache-2.0
#include "controller/server/store_journal.h"

#include "controller/messages/json.h"
#include "controller/messages/mapping.h"
#include "controller/server/fleet_mapping.h"
#include "controller/solver/snapshot_parts.h"

namespace weir {
namespace {

constexpr size_t kTablesMax = 256;
// Tables that differ by more are stored again as a whole.
constexpr size_t kDifferenceBytesMax = 3000;

// The plan is stored separately: repeated in every decision, it would take most of the room.
std::string PayloadOf(const DecisionRecord& record) {
  v1::Decision decision = ToProto(record);
  decision.clear_plan();
  return ToCompactJson(decision);
}

}  // namespace

Status StoreJournal::SaveNode(const NodeGreeting& said, double last_seen_unix_s) {
  return store_.PutNode({said.node, ToJson(ToProto(said)), last_seen_unix_s});
}

StatusOr<std::vector<FleetJournal::KeptNode>> StoreJournal::Nodes() {
  WEIR_ASSIGN_OR_RETURN(const auto stored, store_.ListNodes());
  std::vector<KeptNode> nodes;
  for (const StoredNode& node : stored) {
    v1::NodeHello hello;
    if (!FromJson(node.payload, &hello).ok()) continue;
    nodes.push_back({ToModel(hello), node.last_seen_unix_s});
  }
  return nodes;
}

Status StoreJournal::SavePolicy(const KeptPolicy& policy) {
  return store_.PutPolicy({policy.name, policy.source, policy.applied_unix_s});
}

Status StoreJournal::DeleteJob(const std::string& name) {
  tables_.erase(name);
  return store_.DeleteJob(name);
}

StatusOr<std::vector<FleetJournal::KeptPolicy>> StoreJournal::Policies() {
  WEIR_ASSIGN_OR_RETURN(const auto stored, store_.ListPolicies());
  std::vector<KeptPolicy> policies;
  for (const StoredPolicy& each : stored) {
    policies.push_back({each.name, each.source, each.applied_unix_s});
  }
  return policies;
}

StatusOr<std::vector<FleetJournal::KeptJob>> StoreJournal::Jobs() {
  std::map<std::string, JobPin> pins;
  WEIR_ASSIGN_OR_RETURN(const auto stored_pins, store_.ListPins());
  for (const StoredPin& pin : stored_pins) {
    v1::PinRequest request;
    if (FromJson(pin.payload, &request).ok()) pins[pin.job] = ToModel(request);
  }
  WEIR_ASSIGN_OR_RETURN(const auto stored_jobs, store_.ListJobs());
  std::vector<KeptJob> jobs;
  for (const StoredJob& stored : stored_jobs) {
    v1::Job job;
    if (!FromJson(stored.payload, &job).ok()) continue;
    KeptJob& kept = jobs.emplace_back(KeptJob{stored.name, ToModel(job), {}, {}, {}});
    kept.progress = store_.GetFact("progress/" + stored.name).value_or("");
    if (const auto pin = pins.find(stored.name); pin != pins.end()) kept.pin = pin->second;
    const auto decisions = store_.ListDecisions(stored.name, 0, 1);
    if (!decisions.ok() || decisions->empty()) continue;
    const auto decision = DecisionOf(decisions->front());
    if (decision.ok()) kept.newest = ToModel(*decision);
  }
  return jobs;
}

Status StoreJournal::LoadCapabilities() {
  WEIR_ASSIGN_OR_RETURN(capabilities_json_, store_.GetFact("capabilities"));
  if (!capabilities_json_.empty()) (void)FromJson(capabilities_json_, &capabilities_);
  capabilities_bytes_ = capabilities_.SerializeAsString();
  return OkStatus();
}

Status StoreJournal::SaveCapabilities(const v1::Capabilities& declared) {
  // Every rank declares them; their JSON would be the dearest part of its greeting.
  std::string bytes = declared.SerializeAsString();
  if (declared.codecs_size() == 0 || bytes == capabilities_bytes_) return OkStatus();
  capabilities_bytes_ = std::move(bytes);
  std::string text = ToJson(declared);
  if (text == capabilities_json_) return OkStatus();
  capabilities_ = declared;
  capabilities_json_ = std::move(text);
  return store_.PutFact("capabilities", capabilities_json_);
}

Status StoreJournal::SaveJob(const JobView& job, double unix_s) {
  return store_.PutJob({job.name, ToJson(ToProto(job)), unix_s});
}

Status StoreJournal::ClaimPlan(const JobPlan& plan, std::string_view state, double unix_s) {
  return store_.ClaimPlan(
      {plan.job, plan.version, ToJson(ToProto(plan)), std::string(state), unix_s});
}

Status StoreJournal::SavePlan(const JobPlan& plan, std::string_view state, double unix_s) {
  return store_.PutPlan(
      {plan.job, plan.version, ToJson(ToProto(plan)), std::string(state), unix_s});
}

std::optional<JobPlan> StoreJournal::LoadPlan(const std::string& job, uint64_t version) {
  const auto stored = store_.GetPlan(job, version);
  v1::Plan plan;
  if (!stored.ok() || !stored->has_value() || !FromJson((*stored)->payload, &plan).ok()) {
    return std::nullopt;
  }
  return ToModel(plan);
}

StatusOr<uint64_t> StoreJournal::HighestPlanVersion(const std::string& job) {
  return store_.HighestPlanVersion(job);
}

StatusOr<JobJournal::Added> StoreJournal::AddDecision(const DecisionRecord& record,
                                                      const std::string& snapshot,
                                                      const std::string& policy) {
  StoredDecision stored{.job = record.job, .step = record.step, .unix_s = record.unix_s};
  stored.payload = PayloadOf(record);
  stored.policy = policy;
  stored.switched = record.plan.has_value();
  if (tables_.size() > kTablesMax) tables_.clear();
  std::string& tables = tables_[record.job];
  SnapshotParts parts = SplitSnapshot(snapshot, tables);
  if (tables.empty() || parts.rest.size() > parts.least.size() + kDifferenceBytesMax) {
    tables = std::move(parts.tables);
    parts.rest = std::move(parts.least);
  }
  stored.snapshot = std::move(parts.rest);
  stored.base = tables;
  Added added;
  WEIR_ASSIGN_OR_RETURN(added.id, store_.AddDecision(stored));
  added.bytes = stored.payload.size() + stored.snapshot.size();
  return added;
}

Status StoreJournal::UpdateDecision(const DecisionRecord& record) {
  return store_.UpdateDecision(record.id, PayloadOf(record));
}

StatusOr<std::string> SnapshotOf(const StoredDecision& stored) {
  if (stored.snapshot.empty()) {
    return FailedPrecondition(
        StrCat("the inputs of decision ", stored.id, " were deleted to make room for newer ones"));
  }
  if (stored.base.empty()) return stored.snapshot;
  return WithTables(stored.snapshot, stored.base);
}

// The store deletes facts of this name with the job.
Status StoreJournal::SaveProgress(const std::string& job, const std::string& learnt) {
  return store_.PutFact("progress/" + job, learnt);
}

Status StoreJournal::SavePin(const std::string& job, const JobPin& pin, double unix_s) {
  return store_.PutPin({job, ToJson(ToProto(job, pin)), unix_s});
}

Status StoreJournal::DeletePin(const std::string& job) { return store_.DeletePin(job); }

namespace {

// `payload`: of the stored decision, whole or in part.
StatusOr<v1::Decision> DecisionFrom(const StoredDecision& stored, const std::string& payload) {
  v1::Decision decision;
  const Status parsed = FromJson(payload, &decision);
  if (!parsed.ok()) return DataLoss(StrCat("decision ", stored.id, ": ", Message(parsed)));
  decision.set_id(std::to_string(stored.id));
  AddWords(&decision);
  return decision;
}

}  // namespace

StatusOr<v1::Decision> DecisionOf(const StoredDecision& stored) {
  return DecisionFrom(stored, stored.payload);
}

StatusOr<v1::Decision> LightDecisionOf(const StoredDecision& stored) {
  return DecisionFrom(stored, WithoutMember(stored.payload, "candidates"));
}

}  // namespace weir
