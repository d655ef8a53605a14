// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "controller/job/job_lease.h"
#include "controller/messages/mapping.h"
#include "controller/model/cost_model.h"
#include "controller/model/format.h"
#include "datapath/base/status.h"

namespace weir {
namespace {

constexpr size_t kCandidatesShown = 8;
// Bounds of the width of the column that names a choice; with the widest, lines have 110 columns.
constexpr size_t kLabelWidthMin = 44, kLabelWidthMax = 65;

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char line[320];
  std::snprintf(line, sizeof(line), format, args...);
  return line;
}

// "tcp_info, 120 samples, 1.2 s old".
std::string Origin(const v1::Estimate& estimate) {
  std::string text = estimate.method().empty() ? "" : estimate.method() + ", ";
  if (estimate.samples() > 0) text += StrCat(estimate.samples(), " samples, ");
  return text + AgeText(estimate.age_s()) + " old";
}

std::string Measurements(const v1::Explanation& explanation) {
  const auto& bandwidth = explanation.bandwidth_bytes_per_s();
  const auto& latency = explanation.latency_s();
  std::string text = "\nMeasured when it was decided\n";
  text += StrCat(
      "  bandwidth  ",
      WithDeviation(BandwidthText(bandwidth.value()), bandwidth.value(), bandwidth.deviation()),
      ", ", Origin(bandwidth), "  (bottleneck link)\n");
  text += StrCat("  latency    ",
                 WithDeviation(SecondsText(latency.value()), latency.value(), latency.deviation()),
                 ", ", Origin(latency), "  (one way, worst link)\n");
  text += StrCat("  compute    ", SecondsText(explanation.compute_s()), " per step\n");
  return text;
}

// "  on the GPU"; empty where gradients are in the host's memory.
std::string PlaceOf(const v1::EncodingPlace& encoding) {
  const std::string place =
      PlaceText(static_cast<CodecPlace>(encoding.encoded_on()), encoding.copies_s());
  return place.empty() ? "" : "  " + place;
}

bool SumsOnAggregator(const v1::Candidate& candidate) {
  return !LeaseModeOf(candidate.choice().collective()).empty();
}

std::string Candidates(const v1::Decision& decision) {
  std::string text = "\nCandidates, best first (* chosen, d dense)\n";
  std::vector<const v1::Candidate*> shown;
  size_t width = kLabelWidthMin;
  for (const auto& candidate : decision.candidates()) {
    const bool marked = candidate.chosen() || candidate.dense() || SumsOnAggregator(candidate);
    if (shown.size() >= kCandidatesShown && !marked) continue;
    shown.push_back(&candidate);
    width = std::max(width, candidate.label().size());
  }
  const int columns = static_cast<int>(std::min(width, kLabelWidthMax));
  text += Format("    %-*s %10s %10s %6s %11s\n", columns, "choice", "step", "network", "gain",
                 "objective");
  for (const v1::Candidate* each : shown) {
    const v1::Candidate& candidate = *each;
    text += Format(
        "  %c %-*.*s %10s %10s %6.3f %11.5g%s\n",
        candidate.chosen()  ? '*'
        : candidate.dense() ? 'd'
                            : ' ',
        columns, columns, candidate.label().c_str(), SecondsText(candidate.step_s()).c_str(),
        SecondsText(candidate.communication_s()).c_str(), candidate.gain(), candidate.objective(),
        (PlaceOf(candidate.encoding()) +
         (candidate.feasible() ? "" : "  excluded: " + candidate.excluded_by()))
            .c_str());
  }
  return text;
}

// 0: allowed. 1: a bound, or a lease that is missing. 2: the policy's lists leave it out.
int HowExcluded(const v1::Candidate& candidate) {
  if (candidate.feasible()) return 0;
  return candidate.excluded_by() == "codecs" || candidate.excluded_by() == "collectives" ? 2 : 1;
}

/// The fastest candidate of those that are allowed, or else of those that the policy names, or else
/// of all; null if there is none.
const v1::Candidate* Fastest(const v1::Decision& decision, bool on_aggregator) {
  const v1::Candidate* best = nullptr;
  for (const auto& candidate : decision.candidates()) {
    if (SumsOnAggregator(candidate) != on_aggregator) continue;
    const auto rank = [](const v1::Candidate& one) {
      return std::pair(HowExcluded(one), one.step_s());
    };
    if (best == nullptr || rank(candidate) < rank(*best)) best = &candidate;
  }
  return best;
}

// Says what an aggregator would save, or why none is used; empty if the ranks cannot use one.
std::string OffloadText(const v1::Decision& decision) {
  const v1::Candidate* there = Fastest(decision, true);
  const v1::Candidate* here = Fastest(decision, false);
  if (there == nullptr) return "";
  const std::string& label = there->label();
  const std::string& why_not = there->excluded_by();
  if (!there->feasible()) {
    const bool names_itself = why_not.starts_with(there->choice().collective() + ": ");
    return StrCat("Aggregator: ", names_itself ? "" : StrCat(label, " is excluded by "), why_not,
                  "\n");
  }
  std::string text = StrCat("Aggregator: ", label, there->chosen() ? " takes " : " would take ",
                            SecondsText(there->step_s()), " per step");
  if (here != nullptr) {
    text += StrCat(", ", here->label(), here->chosen() ? " takes " : " would take ",
                   SecondsText(here->step_s()));
  }
  return text + "\n";
}

// "bandwidth rose 33 Mb/s -> 60 Mb/s".
std::string RoseOrFell(const Change& change) {
  const char* const verb = change.after >= change.before ? " rose " : " fell ";
  const auto text = [&](const std::string& what, std::string (*format)(double)) {
    return StrCat(what, verb, format(change.before), " -> ", format(change.after));
  };
  switch (change.of) {
    case Change::Of::kBandwidth:
      return text("bandwidth", BandwidthText);
    case Change::Of::kLatency:
      return text("latency", SecondsText);
    case Change::Of::kGain:
      return text("what compression keeps", PercentText);
    case Change::Of::kPlanGain:
      return StrCat("plan ", change.plan_version, " keeps ", PercentText(change.after), " where ",
                    PercentText(change.before), " was predicted");
    case Change::Of::kLoss:
      return StrCat("the loss is ", NumberText(change.after), " where ", NumberText(change.before),
                    " was expected");
    case Change::Of::kStepTime:
      return StrCat("plan ", change.plan_version, " takes ", SecondsText(change.after),
                    " for the progress of a dense step where ", SecondsText(change.before),
                    " were promised");
  }
  return "";
}

// The event that caused a decision.
std::string CauseText(const Trigger& trigger) {
  std::string text;
  // A detector tells its own last step; what came since the plan, which follows, is the whole
  // change.
  std::map<Change::Of, const Change*> whole;
  for (const Change& change : trigger.changes) whole[change.of] = &change;
  for (const auto& [of, change] : whole) {
    text += (text.empty() ? "" : ", ") + RoseOrFell(*change);
  }
  if (!trigger.note.empty()) text += (text.empty() ? "" : ", ") + trigger.note;
  return text.empty() ? "no estimate has changed" : text;
}

}  // namespace

std::string SummaryText(const DecisionRecord& record) {
  const DecisionFacts& facts = record.facts;
  const bool first = !facts.incumbent.has_value();
  const std::string& label = facts.chosen.label;
  std::string text = StrCat("Step ", record.step, ": ",
                            first && record.trigger.changes.empty() && record.trigger.note.empty()
                                ? "the first plan"
                                : CauseText(record.trigger),
                            ". ");
  if (!record.switched) {
    text += label + " stays";
  } else if (first || facts.incumbent->label == label) {
    // Plans of one label can differ in buckets, ring or shares.
    text += StrCat("Now ", label);
    if (!first) text += StrCat(" with another choice for ", record.buckets_changed, " buckets");
  } else {
    text += StrCat("Now ", label, " instead of ", facts.incumbent->label);
  }
  text += "; predicted " + SecondsText(facts.chosen.step_s);
  if (facts.dense_step_s > 0 && !facts.chosen.dense) {
    text += StrCat(" (dense ", SecondsText(facts.dense_step_s), ")");
  }
  text += StrCat(", keeps ", PercentText(facts.chosen.gain), ".");
  if (!record.sharing.empty()) text += StrCat(" The job ", SharingText(record.sharing), ".");
  if (!record.withdrawn_for.empty()) text += StrCat(" Withdrawn: ", record.withdrawn_for, ".");
  return text;
}

std::string SharingText(const std::vector<JobSharing>& sharing) {
  std::string text;
  const size_t named = std::min(sharing.size(), JobSharing::kNamedMax);
  for (size_t i = 0; i < named; ++i) {
    text += StrCat(i == 0 ? "shares the links between " : ", ", sharing[i].nodes,
                   " nodes with job ", sharing[i].job);
  }
  if (sharing.size() > named) text += StrCat(" and ", sharing.size() - named, " others");
  return text;
}

std::string ExplainText(const v1::Explanation& explanation) {
  const v1::Decision& decision = explanation.decision();
  std::string text =
      StrCat("Job ", decision.job(), ", step ", decision.step(), ", policy ", decision.policy(),
             decision.id().empty() ? "" : ", decision ", decision.id(), "\n");
  if (!decision.summary().empty()) text += decision.summary() + "\n\n";
  if (decision.switched()) {
    text += StrCat("Plan ", decision.plan_version(), " (", decision.outcome(),
                   "): ", decision.from(), " -> ", decision.to(), "\n");
  } else {
    text += StrCat("Plan ", decision.plan_version(), " stays: ", decision.to(), "\n");
  }
  text += StrCat("Why: ", decision.reason(), "\n");
  if (!decision.ring().empty()) text += StrCat("Ring: ", decision.ring(), "\n");
  if (!decision.shards().empty()) text += StrCat("Shards: ", decision.shards(), "\n");
  text += StrCat("Asked by: ", decision.trigger(), ", noticed at step ", decision.trigger_step());
  if (decision.activation_step() != 0)
    text += StrCat(", active since step ", decision.activation_step());
  text += "\n";
  if (decision.unchanged() > 0) {
    text += StrCat(decision.unchanged(), " evaluations since then changed nothing\n");
  }
  text += Measurements(explanation);
  text += Candidates(decision);
  text +=
      StrCat("\nBinding constraint: ",
             decision.binding_constraint().empty() ? "none" : decision.binding_constraint(), "\n");
  text += OffloadText(decision);
  text += StrCat("Dense would take ", SecondsText(decision.dense_step_s()),
                 " per step, this choice ", SecondsText(decision.predicted_step_s()));
  if (decision.predicted_step_s() > 0 && decision.dense_step_s() > 0) {
    const double saved = 1 - decision.predicted_step_s() / decision.dense_step_s();
    if (std::abs(saved) >= 0.005) {
      text += StrCat(saved > 0 ? " (saves " : " (costs ", PercentText(std::abs(saved)), ")");
    }
  }
  text += "\n";
  if (const v1::DecisionFacts& facts = decision.facts(); facts.dense_probability() > 0) {
    text += Format(
        "Progress: a step of gain g counts as g^%.2g (+- %.2g) dense ones; more progress "
        "than dense is %.3g %% sure\n",
        facts.progress_exponent(), facts.progress_deviation(), 100 * facts.dense_probability());
  }
  if (const v1::LocalFacts& local = decision.facts().local(); local.has_sync()) {
    text += StrCat("Local steps: ", SyncText(ToModel(local.sync())), ": ",
                   SecondsText(decision.predicted_step_s()), " a step instead of ",
                   SecondsText(local.every_step_s()), ", costs ", PercentText(local.cost()), " +- ",
                   PercentText(local.cost_deviation()), " of progress\n");
  }
  if (decision.actual_step_s() > 0) {
    text +=
        StrCat("Measured since: ", SecondsText(decision.actual_step_s()), " per step (median)\n");
  }
  return text;
}

}  // namespace weir
