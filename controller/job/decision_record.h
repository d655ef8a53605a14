// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stored record of a decision: its reason, its candidates and its outcome.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/job/job_plan.h"
#include "controller/model/job_model.h"
#include "controller/solver/solver.h"

namespace weir {

/// A candidate for the whole job, with the solver's score; see Candidate in admin.proto.
struct CandidateRecord {
  SyncModel sync = {};
  std::string label;
  std::optional<ChoiceModel> choice;  // of the largest bucket
  double step_s = 0, step_deviation_s = 0, communication_s = 0;
  double gain = 0, objective = 0;
  EncodingPlace encoding = {};
  bool chosen = false, dense = false, feasible = false;
  std::string excluded_by;
};

/// Another job with ranks on the same nodes: both share what the links between these give.
struct JobSharing {
  std::string job;
  uint32_t nodes = 0;  // in common
  uint32_t node_pairs() const { return nodes * (nodes - 1) / 2; }
  static constexpr size_t kNamedMax = 8;  // in a record, and in words
};

/// A bucket's choice before and after.
struct BucketChange {
  std::string bucket;
  std::optional<ChoiceModel> before;  // none: there was no plan
  ChoiceModel after;
};

/// The outcome of a decision.
enum class DecisionOutcome {
  kNone,
  kKept,     // what ran goes on
  kOffered,  // ranks prepare its plan
  kActive,
  kNacked,     // a rank refused its plan
  kWithdrawn,  // its plan came to nothing for another reason
};
/// "kept"; empty for kNone.
std::string OutcomeName(DecisionOutcome outcome);
/// The outcome of that name; kNone for another text.
DecisionOutcome OutcomeNamed(std::string_view name);

/// See Decision in admin.proto.
struct DecisionRecord {
  int64_t id = 0;  // 0: not stored
  std::string job;
  uint64_t step = 0;
  double unix_s = 0;
  Trigger trigger;  // with what was before and after
  bool switched = false;
  uint64_t plan_version = 0;
  DecisionFacts facts;
  std::string withdrawn_for;  // why the plan that it offered was withdrawn
  std::vector<CandidateRecord> candidates;
  DecisionOutcome outcome = DecisionOutcome::kNone;
  uint64_t activation_step = 0;
  double actual_step_s = 0;
  std::string digest;
  std::optional<JobPlan> plan;  // without cookies
  std::string policy;
  // Buckets whose choice differs from that of the plan before; the first kChangesMax.
  static constexpr size_t kChangesMax = 16;
  std::vector<BucketChange> changes;
  uint64_t buckets_changed = 0;
  std::vector<JobSharing> sharing;  // the first kNamedMax
  uint64_t unchanged = 0;           // evaluations since then that changed nothing
};

/// A measurement that a decision was made from, with its origin.
struct InputEstimate {
  Measured measured;
  std::string method;
  uint64_t samples = 0;
};

/// The inputs of a decision, for people.
struct DecisionInputs {
  InputEstimate latency_s, bandwidth_bytes_per_s;
  double compute_s = 0;
};

/// `largest`: index of the bucket whose choice stands for the candidate.
CandidateRecord RecordOf(const CandidatePlan& candidate, size_t largest);
/// Candidates, reason, predictions and digest of `decision`; nothing about job, trigger or
/// versions.
DecisionRecord RecordOf(const Decision& decision, size_t largest);

/// The buckets whose choice differs; `before` may be empty.
void FillChanges(const std::vector<BucketDefinition>& buckets, const PlanModel& before,
                 const PlanModel& after, DecisionRecord* record);

/// The conclusion of a decision. Two decisions with equal conclusions found nothing new.
std::string GistOf(const DecisionRecord& record);

/// Latency, bandwidth and compute time as the decision on `snapshot` took them. Method, samples and
/// age are those of the link that bounds the job: the slowest, and for latency the one of the
/// longest round trip. Where no link was measured the figure comes from completed collectives
/// alone, which is then the method.
DecisionInputs DescribeInputs(const Snapshot& snapshot, const std::vector<LinkEstimate>& links);

}  // namespace weir
