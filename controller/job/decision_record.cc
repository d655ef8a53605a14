#include "controller/job/decision_record.h"

#include "controller/job/bounds.h"
#include "controller/job/job_lease.h"

namespace weir {
namespace {

bool SamePlanOf(const CandidatePlan& a, const CandidatePlan& b) {
  return a.choices == b.choices && a.layout == b.layout;
}

void SetOrigin(const std::string& method, uint64_t samples, double age_s, InputEstimate* estimate) {
  estimate->method = method;
  estimate->samples = samples;
  estimate->measured.age_s = age_s;
}

}  // namespace

CandidateRecord RecordOf(const CandidatePlan& candidate, size_t largest) {
  CandidateRecord out;
  out.label = candidate.label;
  if (largest < candidate.choices.size()) out.choice = candidate.choices[largest];
  out.step_s = Finite(candidate.step_s);
  out.step_deviation_s = Finite(candidate.step_deviation_s);
  out.communication_s = Finite(candidate.communication_s);
  out.gain = Finite(candidate.gain);
  out.objective = Finite(candidate.objective);
  out.dense = candidate.dense;
  out.feasible = candidate.feasible;
  out.excluded_by = candidate.excluded_by;
  return out;
}

DecisionRecord RecordOf(const Decision& decision, size_t largest) {
  DecisionRecord out;
  bool chosen_listed = false;
  bool dense_listed = false;
  for (const CandidatePlan& candidate : decision.top) {
    CandidateRecord& added = out.candidates.emplace_back(RecordOf(candidate, largest));
    added.chosen = !chosen_listed && SamePlanOf(candidate, decision.chosen);
    chosen_listed = chosen_listed || added.chosen;
    dense_listed = dense_listed || candidate.choices == decision.dense.choices;
  }
  if (!chosen_listed && !decision.chosen.choices.empty()) {
    out.candidates.push_back(RecordOf(decision.chosen, largest));
    out.candidates.back().chosen = true;
    dense_listed = dense_listed || decision.chosen.choices == decision.dense.choices;
  }
  // What dense would have cost belongs into every answer.
  if (!dense_listed && !decision.dense.choices.empty()) {
    out.candidates.push_back(RecordOf(decision.dense, largest));
  }
  out.ring = decision.ring;
  out.shards = decision.shards;
  out.reason = decision.reason;
  out.switched = decision.switched;
  if (!decision.incumbent.choices.empty()) out.from = decision.incumbent.label;
  out.to = decision.chosen.label;
  out.binding_constraint = decision.binding_constraint;
  out.dense_step_s = Finite(decision.dense.step_s);
  out.predicted_step_s = Finite(decision.chosen.step_s);
  out.digest = decision.digest;
  return out;
}

std::string GistOf(const DecisionRecord& record) {
  std::string gist = StrCat(record.to, "|", record.binding_constraint, "|", record.policy);
  for (const CandidateRecord& candidate : record.candidates) {
    // What stands against an aggregator is news of its own.
    if (!candidate.choice.has_value()) continue;
    if (LeaseModeOf(candidate.choice->collective).empty() || candidate.feasible) continue;
    gist += StrCat("|", candidate.excluded_by);
  }
  return gist;
}

DecisionInputs DescribeInputs(const Snapshot& snapshot, const std::vector<LinkEstimate>& links) {
  DecisionInputs inputs;
  inputs.latency_s.measured = snapshot.latency_s;
  inputs.bandwidth_bytes_per_s.measured = snapshot.bandwidth_bytes_per_s;
  inputs.compute_s = Finite(snapshot.compute_s.value);
  if (snapshot.world <= 1) return inputs;
  inputs.latency_s.method = inputs.bandwidth_bytes_per_s.method = "collectives";
  double slowest = 0, longest_s = 0;
  for (const LinkEstimate& link : links) {
    const double bandwidth = link.bandwidth_bytes_per_s.value;
    if (link.bandwidth_samples > 0 && bandwidth > 0 && (slowest == 0 || bandwidth < slowest)) {
      slowest = bandwidth;
      SetOrigin(link.bandwidth_method, link.bandwidth_samples, link.bandwidth_bytes_per_s.age_s,
                &inputs.bandwidth_bytes_per_s);
    }
    if (link.rtt_samples > 0 && link.rtt_s.value > longest_s) {
      longest_s = link.rtt_s.value;
      SetOrigin(link.rtt_method, link.rtt_samples, link.rtt_s.age_s, &inputs.latency_s);
    }
  }
  return inputs;
}

}  // namespace weir
