// SPDX-License-Identifier: Apache-2.0
#include "controller/job/decision_record.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "controller/job/bounds.h"
#include "controller/job/job_lease.h"

namespace weir {
namespace {

bool SamePlanOf(const CandidatePlan& a, const CandidatePlan& b) {
  return a.choices == b.choices && a.layout == b.layout && a.sync == b.sync;
}

bool IsDenseOf(const Decision& decision, const CandidatePlan& candidate) {
  return candidate.choices == decision.dense.choices && !candidate.sync.local();
}

// Six digits: enough to compare candidates by, and half of the room.
double Brief(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", Finite(value));
  return std::strtod(text, nullptr);
}

void SetOrigin(const std::string& method, uint64_t samples, double age_s, InputEstimate* estimate) {
  estimate->method = method;
  estimate->samples = samples;
  estimate->measured.age_s = age_s;
}

// In the order of the enumeration.
constexpr std::array<std::string_view, 6> kOutcomeNames = {"",       "kept",   "offered",
                                                           "active", "nacked", "withdrawn"};
static_assert(kOutcomeNames.size() == static_cast<size_t>(DecisionOutcome::kWithdrawn) + 1);

}  // namespace

std::string OutcomeName(DecisionOutcome outcome) {
  return std::string(kOutcomeNames[static_cast<size_t>(outcome)]);
}

DecisionOutcome OutcomeNamed(std::string_view name) {
  const auto found = std::find(kOutcomeNames.begin(), kOutcomeNames.end(), name);
  return found == kOutcomeNames.end() ? DecisionOutcome::kNone
                                      : static_cast<DecisionOutcome>(found - kOutcomeNames.begin());
}

CandidateRecord RecordOf(const CandidatePlan& candidate, size_t largest) {
  CandidateRecord out;
  out.label = candidate.label;
  if (largest < candidate.choices.size()) out.choice = candidate.choices[largest];
  out.step_s = Brief(candidate.step_s);
  out.step_deviation_s = Brief(candidate.step_deviation_s);
  out.communication_s = Brief(candidate.communication_s);
  out.gain = Brief(candidate.gain);
  out.objective = Brief(candidate.objective);
  out.encoding = {candidate.encoding.place, Brief(candidate.encoding.copies_s)};
  out.sync = candidate.sync;
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
    dense_listed = dense_listed || IsDenseOf(decision, candidate);
  }
  if (!chosen_listed && !decision.chosen.choices.empty()) {
    out.candidates.push_back(RecordOf(decision.chosen, largest));
    out.candidates.back().chosen = true;
    dense_listed = dense_listed || IsDenseOf(decision, decision.chosen);
  }
  // Every answer says what dense would have cost.
  if (!dense_listed && !decision.dense.choices.empty()) {
    out.candidates.push_back(RecordOf(decision.dense, largest));
  }
  out.switched = decision.switched;
  out.facts = decision.facts;
  out.facts.dense_step_s = Finite(out.facts.dense_step_s);
  out.facts.chosen.step_s = Finite(out.facts.chosen.step_s);
  out.digest = decision.digest;
  return out;
}

void FillChanges(const std::vector<BucketDefinition>& buckets, const PlanModel& before,
                 const PlanModel& after, DecisionRecord* record) {
  for (size_t i = 0; i < buckets.size() && i < after.size(); ++i) {
    std::optional<ChoiceModel> former;
    if (i < before.size()) former = before[i];
    if (former == after[i]) continue;
    ++record->buckets_changed;
    if (record->changes.size() < DecisionRecord::kChangesMax) {
      record->changes.push_back({buckets[i].key, former, after[i]});
    }
  }
}

std::string GistOf(const DecisionRecord& record) {
  std::string gist = StrCat(record.facts.chosen.label, "|", static_cast<int>(record.facts.rule),
                            "|", record.facts.binding_constraint, "|", record.policy);
  for (const CandidateRecord& candidate : record.candidates) {
    // A new reason against an aggregator is worth a record of its own.
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
