// SPDX-License-Identifier: Apache-2.0
// See explain.h.

#include "controller/solver/explain.h"

#include <charconv>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

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
  void Add(const CandidatePlan& plan) {
    Add(plan.label);
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
    // Even shares add nothing, so that decisions of before there were others keep their digest.
    if (!layout.shard_shares.empty()) Add("shards");
    for (const uint32_t share : layout.shard_shares) AddInteger(share);
    for (const double value : {plan.step_s, plan.step_deviation_s, plan.communication_s,
                               plan.exposed_s, plan.gain, plan.objective}) {
      Add(value);
    }
    AddInteger(plan.feasible);
    Add(plan.excluded_by);
    AddInteger(plan.dense);
  }
  void Add(const std::vector<CandidatePlan>& plans) {
    AddInteger(plans.size());
    for (const CandidatePlan& plan : plans) Add(plan);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

std::string NetworkText(const Snapshot& snapshot) {
  if (snapshot.world <= 1) return "in a world of one";
  return "at " + BandwidthText(snapshot.bandwidth_bytes_per_s.value) + " and " +
         SecondsText(snapshot.latency_s.value);
}

std::string PredictionText(const CandidatePlan& candidate) {
  return candidate.label + " predicts " + SecondsText(candidate.step_s) + " per step at gain " +
         NumberText(candidate.gain);
}

std::string DigestOf(const Decision& decision) {
  Canonical canonical;
  canonical.AddInteger(decision.switched);
  canonical.Add(decision.chosen);
  canonical.Add(decision.incumbent);
  canonical.Add(decision.dense);
  canonical.Add(decision.top);
  canonical.Add(decision.front);
  canonical.Add(decision.binding_constraint);
  canonical.Add(decision.ring);
  if (!decision.shards.empty()) canonical.Add(decision.shards);
  canonical.Add(decision.reason);
  const std::string& text = canonical.text();
  char digest[17];
  std::snprintf(digest, sizeof(digest), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digest;
}

}  // namespace weir
