#pragma once
// The one place where wire messages become the solver's plain structs and back. Everything that
// comes from an agent passes through here, so here numbers are made finite and sizes are bounded.

#include <string>
#include <string_view>
#include <vector>

#include "controller/model/job_model.h"
#include "controller/model/snapshot.h"
#include "controller/solver/solver.h"
#include "datapath/base/status.h"
#include "weir/v1/admin.pb.h"
#include "weir/v1/agent.pb.h"
#include "weir/v1/rank.pb.h"

namespace weir {

constexpr int kWorldMax = 4096;
constexpr int kTableBucketsMax = 16384;
constexpr int kCapabilitiesMax = 256;
constexpr uint32_t kBitsMax = 64;
constexpr size_t kNameBytesMax = 253;

/// `value`, or 0 when it is not finite.
double Finite(double value);
/// kInvalidArgument unless `name` has 1 to 253 bytes, none of them a control character.
Status CheckName(std::string_view what, std::string_view name);
/// World size, rank and names within bounds.
Status CheckHello(const v1::RankHello& hello);

CollectiveModel ToModel(const v1::CollectiveCapability& capability);
v1::CollectiveCapability ToProto(const CollectiveModel& collective);
/// One model for each setting of each codec that `world` ranks can use.
std::vector<CodecModel> CodecsOf(const v1::Capabilities& capabilities, int world);
std::vector<CollectiveModel> CollectivesOf(const v1::Capabilities& capabilities);

/// In ready order. kInvalidArgument: none, too many, an empty or repeated key, no elements.
StatusOr<std::vector<BucketDefinition>> ToModel(const v1::BucketTable& table);
StepObservation ToModel(int rank, const v1::StepReport& report);

ChoiceModel ToModel(const v1::Choice& choice);
v1::Choice ToProto(const ChoiceModel& choice);
v1::Estimate ToProto(const Measured& measured);

/// How the job's frames are protected, in a word: "encrypted", "authenticated", "checked", or
/// "unauthenticated" where a rank reaches others over a network without any proof; empty: the ranks
/// do not say.
std::string ProtectionText(const v1::Job& job);
/// "top_k 0.01 over sparse_all_gather"; codecs that keep everything show no ratio.
std::string ChoiceLabel(const ChoiceModel& choice);
/// The choice of the largest bucket, with "mixed: " before it when others differ.
std::string PlanLabel(const PlanModel& plan, const std::vector<BucketDefinition>& buckets);

/// Sets keys, choices, the layout, fallback and digest.
v1::Plan MakePlan(const std::string& job, uint64_t version,
                  const std::vector<BucketDefinition>& buckets, const PlanModel& choices,
                  const PlanLayout& layout, const ChoiceModel& fallback);
/// What `plan` says of the ring's order and the shares of shards, unchecked.
PlanLayout LayoutIn(const v1::Plan& plan);
/// One choice per bucket of `buckets`; the plan's fallback where it lists none.
PlanModel ChoicesFor(const v1::Plan& plan, const std::vector<BucketDefinition>& buckets);
/// 16 hexadecimal digits over the canonical text: one line "key codec collective ratio
/// segment_bytes" per bucket in plan order, then one per lease by collective and per rank of the
/// ring's order, the shares of shards, then "fallback ..."; the version is left out. FNV-1a, 64
/// bits.
std::string PlanDigest(const v1::Plan& plan);
/// The plan for everybody but the job's ranks: without the cookies of its leases, and with the
/// digest of what is left, since a digest would give a cookie away to who tries.
v1::Plan Redacted(v1::Plan plan);

/// `largest`: index of the bucket whose choice stands for the candidate.
v1::Candidate ToProto(const CandidatePlan& candidate, size_t largest);
/// Candidates, reason, predictions and digest of `decision`; nothing about job, trigger or
/// versions.
void FillDecision(const Decision& decision, size_t largest, v1::Decision* out);

}  // namespace weir
