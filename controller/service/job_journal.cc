// SPDX-License-Identifier: Apache-2.0
#include "controller/service/job_journal.h"

#include "controller/service/json.h"
#include "controller/service/mapping.h"

namespace weir {

Status StoreJournal::SaveJob(const JobView& job, double unix_s) {
  return store_.PutJob({job.name, ToJson(ToProto(job)), unix_s});
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

StatusOr<int64_t> StoreJournal::AddDecision(const DecisionRecord& record,
                                            const std::string& snapshot,
                                            const std::string& policy) {
  return store_.AddDecision(
      {0, record.job, record.step, record.unix_s, ToJson(ToProto(record)), snapshot, policy});
}

Status StoreJournal::UpdateDecision(const DecisionRecord& record) {
  return store_.UpdateDecision(record.id, ToJson(ToProto(record)));
}

Status StoreJournal::SavePin(const std::string& job, const JobPin& pin, double unix_s) {
  return store_.PutPin({job, ToJson(ToProto(job, pin)), unix_s});
}

Status StoreJournal::DeletePin(const std::string& job) { return store_.DeletePin(job); }

StatusOr<v1::Decision> DecisionOf(const StoredDecision& stored) {
  v1::Decision decision;
  const Status parsed = FromJson(stored.payload, &decision);
  if (!parsed.ok()) return DataLoss(StrCat("decision ", stored.id, ": ", Message(parsed)));
  decision.set_id(std::to_string(stored.id));
  return decision;
}

}  // namespace weir
