// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only place where wire messages become the controller's own structs and back. All data from
// agents pass through here, so here numbers are made finite and sizes are bounded.

#include <string>
#include <vector>

#include "controller/job/bounds.h"
#include "controller/job/decision_record.h"
#include "controller/job/job_host.h"
#include "controller/job/job_view.h"
#include "controller/job/rank_said.h"
#include "controller/model/job_model.h"
#include "controller/model/snapshot.h"
#include "datapath/base/status.h"
#include "weir/v1/admin.pb.h"
#include "weir/v1/agent.pb.h"
#include "weir/v1/rank.pb.h"

namespace weir {

// mapping.cc: messages and capabilities of ranks.

/// Checks that world size, rank and names are within bounds.
Status CheckHello(const v1::RankHello& hello);

CollectiveModel ToModel(const v1::CollectiveCapability& capability);
v1::CollectiveCapability ToProto(const CollectiveModel& collective);
JobCapabilities ToModel(const v1::Capabilities& capabilities);
/// The names that policies may use where ranks have these.
PolicyNames NamesOf(const v1::Capabilities& capabilities);
/// Converts a greeting that CheckHello accepts.
RankGreeting ToModel(const v1::RankHello& hello);
/// Returns nothing if the message is empty or a hello.
std::optional<RankSaid> ToModel(int rank, const v1::RankMessage& message);
BucketList ToModel(const v1::BucketTable& table);
StepObservation ToModel(int rank, const v1::StepReport& report);
SyncModel ToModel(const v1::Sync& in);
v1::Sync ToProto(const SyncModel& in);
RankIncident ToModel(const v1::RankEvent& event);
v1::RankEvent ToProto(const RankIncident& incident);

// mapping_job.cc: plans, jobs and decisions.

BucketInfo ToModel(const v1::Bucket& bucket);
FramesProtected ToModel(v1::FrameProtection protection);
v1::FrameProtection ToProto(FramesProtected protection);
ChoiceModel ToModel(const v1::Choice& choice);
v1::Choice ToProto(const ChoiceModel& choice);
v1::Estimate ToProto(const Measured& measured);
v1::Estimate ToProto(const InputEstimate& estimate);
JobPlan ToModel(const v1::Plan& plan);
v1::Plan ToProto(const JobPlan& plan);
JobPin ToModel(const v1::PinRequest& request);
v1::PinRequest ToProto(const std::string& job, const JobPin& pin);
v1::ToRank ToProto(const std::string& job, int rank, const RankOrder& order);
/// The part that a restart needs: name, world, ranks, sums and the active plan.
JobView ToModel(const v1::Job& job);
v1::Job ToProto(const JobView& job);
std::string ProtectionText(const v1::Job& job);
v1::SeriesPoint ToProto(const StepPoint& point);
/// Without the decision itself.
v1::Explanation ToProto(const DecisionInputs& inputs);
v1::Event ToProto(const JobEvent& event);
v1::Aggregator ToProto(const AggregatorReport& report);

// mapping_decision.cc.

v1::Candidate ToProto(const CandidateRecord& candidate);
v1::PlanFacts ToProto(const PlanFacts& facts);
v1::LinkSharing ToProto(const JobSharing& sharing);
DecisionRecord ToModel(const v1::Decision& decision);
/// Without words: as it is stored.
v1::Decision ToProto(const DecisionRecord& record);
/// Sets the fields that put others into words.
void AddWords(v1::Decision* decision);

}  // namespace weir
