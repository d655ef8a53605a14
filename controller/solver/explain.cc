// SPDX-License-Identifier: Apache-2.0
// See explain.h.

#include "controller/solver/explain.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "controller/model/cost_model.h"

namespace weir {
namespace {

/// Unambiguous text of a decision: every string with its length, every number in the shortest form
/// that reads back to the same bits.
class Canonical {
 public:
  void Add(const std::string& value) {
    AddInteger(value.size());
    text_ += value;
    text_ += ';';
  }
  void Add(double value) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof(digits), value);
    text_.append(digits, end.ptr);
    text_ += ';';
  }
  void AddInteger(uint64_t value) {
    text_ += std::to_string(value);
    text_ += ';';
  }
  void Add(const SyncModel& sync) {
    if (!sync.local()) return;  // as before there were any
    for (const uint32_t value : {sync.every, sync.overlap, sync.fragments}) AddInteger(value);
    AddInteger(static_cast<uint64_t>(sync.outer));
    for (const double value : {sync.rate, sync.momentum, sync.mix}) Add(value);
  }
  void Add(const CandidatePlan& plan) {
    AddInteger(plan.choices.size());
    for (const ChoiceModel& choice : plan.choices) {
      Add(choice.codec);
      Add(choice.collective);
      Add(choice.ratio);
      AddInteger(static_cast<uint64_t>(choice.bits));
      AddInteger(choice.segment_bytes);
    }
    const PlanLayout& layout = plan.layout;
    AddInteger(layout.ring_order.size());
    for (const int rank : layout.ring_order) AddInteger(static_cast<uint64_t>(rank));
    AddInteger(layout.shard_shares.size());
    for (const uint32_t share : layout.shard_shares) AddInteger(share);
    for (const double value : {plan.step_s, plan.step_deviation_s, plan.communication_s,
                               plan.exposed_s, plan.gain, plan.objective}) {
      Add(value);
    }
    AddInteger(plan.feasible);
    AddInteger(plan.dense);
    Add(plan.sync);
    if (plan.encoding.place == CodecPlace::kUnknown) return;
    AddInteger(static_cast<uint64_t>(plan.encoding.place));
    Add(plan.encoding.copies_s);
  }
  void Add(const std::vector<CandidatePlan>& plans) {
    AddInteger(plans.size());
    for (const CandidatePlan& plan : plans) Add(plan);
  }
  void Add(const DecisionFacts& facts) {
    AddInteger(static_cast<uint64_t>(facts.rule));
    AddInteger(static_cast<uint64_t>(facts.world));
    AddInteger(facts.incumbent.has_value());
    AddInteger(!facts.binding_constraint.empty());
    for (const double value :
         {facts.latency_s, facts.bandwidth_bytes_per_s, facts.dense_step_s, facts.promised,
          facts.promised_min, facts.probability, facts.probability_min, facts.since_switch_s,
          facts.dwell_s, facts.ring.slowest_bytes_per_s, facts.ring.avoided_bytes_per_s,
          facts.progress_exponent, facts.progress_deviation, facts.dense_probability,
          facts.shards.speedup, facts.shards.least_bytes_per_s, facts.shards.most_bytes_per_s}) {
      Add(value);
    }
    if (facts.local != LocalFacts{}) {
      Add(facts.local.sync);
      for (const double value : {facts.local.every_step_s, facts.local.cost,
                                 facts.local.cost_deviation, facts.local.signal_share}) {
        Add(value);
      }
    }
    if (facts.failures == 0) return;  // as before there were any
    AddInteger(static_cast<uint64_t>(facts.failures));
    Add(facts.held_s);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

namespace {

// ", encoded on the GPU,"; empty where gradients are in the host's memory.
std::string EncodingText(const EncodingPlace& encoding) {
  const std::string place = PlaceText(encoding.place, encoding.copies_s);
  if (place.empty()) return "";
  return (encoding.place == CodecPlace::kNowhere ? ", " : ", encoded ") + place + ",";
}

// Few bytes say little of the bandwidth, as within one host, and then little depends on it.
constexpr double kVague = 0.3, kUnknown = 1;  // deviations, as shares

// "at 50 Mb/s and 0.4 ms".
std::string NetworkText(const DecisionFacts& facts) {
  if (facts.world <= 1) return "in a world of one";
  const std::string latency = SecondsText(facts.latency_s);
  if (facts.bandwidth_deviation >= kUnknown) {
    return "at " + latency + " and a bandwidth that too few bytes show";
  }
  std::string bandwidth = BandwidthText(facts.bandwidth_bytes_per_s);
  if (facts.bandwidth_deviation >= kVague) {
    bandwidth += " +- " + PercentText(facts.bandwidth_deviation);
  }
  return "at " + bandwidth + " and " + latency;
}

// "top_k 0.01 over sparse_all_gather, encoded on the GPU, predicts 0.21 s per step at gain 0.41".
std::string PredictionText(const PlanFacts& plan) {
  return plan.label + EncodingText(plan.encoding) + " predicts " + SecondsText(plan.step_s) +
         " per step at gain " + NumberText(plan.gain);
}

// The alternatives: dense, and the plan that ran, unless that is the same.
std::string Against(const DecisionFacts& facts) {
  std::string text;
  const std::string dense = SecondsText(facts.dense_step_s);
  if (facts.dense_step_s > 0 && !facts.chosen.dense) text += " against " + dense + " dense";
  if (!facts.switched || !facts.incumbent.has_value()) return text;
  const PlanFacts& ran = *facts.incumbent;
  if (ran.dense && !text.empty() && SecondsText(ran.step_s) == dense) return text;
  return text + (text.empty() ? " against " : " and ") + SecondsText(ran.step_s) + " at gain " +
         NumberText(ran.gain) + " for " + ran.label;
}

// "20 % less time per progress than what runs".
std::string SavingText(const DecisionFacts& facts, double share) {
  const bool by_progress = facts.progress_exponent > 0;
  return PercentText(share) + (by_progress ? " less time per progress" : " less of the objective") +
         " than what runs";
}

// The text behind the prediction.
std::string RuleText(const DecisionFacts& facts) {
  const std::string& label = facts.alternative;
  switch (facts.rule) {
    case DecisionRule::kNone:
    case DecisionRule::kFirstPlan:
    case DecisionRule::kFixed:
      return "";
    case DecisionRule::kFirstPlanDense:
      return ", until " + label + " is better with more confidence (" +
             PercentText(facts.probability) + " now, " + PercentText(facts.probability_min) +
             " required)";
    case DecisionRule::kNothingBetter:
      return " and stays: no candidate is predicted to be better";
    case DecisionRule::kBetter:
      return " (" + SavingText(facts, facts.promised) + ", with " + PercentText(facts.probability) +
             " confidence)";
    case DecisionRule::kTooLittleBetter:
      return " and stays: " + label + " promises " +
             SavingText(facts, std::max(0.0, facts.promised)) + ", " +
             PercentText(facts.promised_min) + " required";
    case DecisionRule::kDwell:
      return " and stays: the last switch was " + SecondsText(facts.since_switch_s) + " ago, " +
             SecondsText(facts.dwell_s) + " must pass before " + label;
    case DecisionRule::kUnsure:
      return " and stays: " + label + " promises " + SavingText(facts, facts.promised) +
             ", but with only " + PercentText(facts.probability) + " confidence, " +
             PercentText(facts.probability_min) + " required";
    case DecisionRule::kIncumbentExcluded:
      return "; the running plan is excluded by " + facts.excluded_by;
    case DecisionRule::kDoubtful:
      return "; the running plan makes more progress than dense with only " +
             PercentText(facts.probability) + " confidence, " + PercentText(facts.probability_min) +
             " required";
    case DecisionRule::kPromiseBroken:
      return "; the running plan does not keep its promise: the plan before it comes back, and "
             "such "
             "a change is not made again for " +
             SecondsText(facts.held_s);
    case DecisionRule::kHeld:
      return " and stays: a change like that to " + label + " failed " +
             (facts.failures == 1 ? std::string("once") : StrCat(facts.failures, " times")) +
             " and is not made again for " + SecondsText(facts.held_s);
    case DecisionRule::kIncumbentUnpredictable:
      return "; the running plan cannot continue: " + facts.excluded_by;
  }
  return "";
}

// "; synchronising every 32 steps: 27 ms a step instead of 0.44 s, costs 3 % +- 2 % of progress".
std::string LocalText(const LocalFacts& local) {
  if (local.unable_rank >= 0) {
    return StrCat("; the policy allows local steps, but rank ", local.unable_rank,
                  " was attached without an optimizer: ranks synchronise in every step");
  }
  if (!local.sync.local()) return "";
  std::string text = StrCat("; ", SyncText(local.sync), " costs ", PercentText(local.cost), " +- ",
                            PercentText(local.cost_deviation), " of progress, and a step takes ",
                            SecondsText(local.every_step_s), " if ranks synchronise in every one");
  if (local.signal_share > 0) {
    text += "; " + PercentText(local.signal_share) + " of the ranks' mean movement is signal";
  }
  return text;
}

}  // namespace

std::string ReasonText(const DecisionFacts& facts) {
  const bool first =
      facts.rule == DecisionRule::kFirstPlan || facts.rule == DecisionRule::kFirstPlanDense;
  std::string text = (first ? "first plan: " : "") + NetworkText(facts) + " " +
                     PredictionText(facts.chosen) + Against(facts) + RuleText(facts);
  if (facts.switched) {
    for (const std::string& layout : {RingText(facts.ring), ShardText(facts.shards)}) {
      if (!layout.empty()) text += "; " + layout;
    }
  }
  text += LocalText(facts.local);
  if (!facts.binding_constraint.empty())
    text += "; " + facts.binding_constraint + " excludes better";
  return text;
}

std::string DigestOf(const Decision& decision) {
  Canonical canonical;
  canonical.AddInteger(decision.switched);
  canonical.Add(decision.chosen);
  canonical.Add(decision.incumbent);
  canonical.Add(decision.dense);
  canonical.Add(decision.top);
  canonical.Add(decision.front);
  canonical.Add(decision.facts);
  const std::string& text = canonical.text();
  char digest[17];
  std::snprintf(digest, sizeof(digest), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digest;
}

}  // namespace weir
