// SPDX-License-Identifier: Apache-2.0
// The layout of a policy document and the limits of each value; README.md beside this file shows
// it.

#include "controller/policy/policy.h"

#include <algorithm>
#include <string_view>

#include "controller/policy/strict_yaml.h"

namespace weir {
namespace {

constexpr double kSecondsMax = 86400;
constexpr double kCutoffMsMax = 60000;  // as aggregators have it
// The only collective whose sums may leave ranks out.
constexpr std::string_view kCutoffCollective = "thc_table";

const std::set<std::string> kDenseChecks = {"auto", "never"};

const std::set<std::string>* CodecsOf(const PolicyNames* known) {
  return known == nullptr ? nullptr : &known->codecs;
}
const std::set<std::string>* CollectivesOf(const PolicyNames* known) {
  return known == nullptr ? nullptr : &known->collectives;
}

StrictSection ObjectiveSection(const std::string& origin, const PolicyNames* known,
                               Policy* policy) {
  StrictSection section(origin);
  section.Name("name", NameKind::kPlain, &policy->objective)
      .Number("progress_exponent", {.min = 0, .max = 4}, &policy->progress_exponent)
      .Number("progress_deviation", {.min = 0, .max = 2}, &policy->progress_deviation)
      .Number("delay_target_s", {.min = 0, .max = 3600}, &policy->delay_target_s)
      .Number("moo_weight_time", {.min = 0, .max = 1}, &policy->moo_weight_time)
      .Name("codec", NameKind::kVariant, &policy->fixed_codec, CodecsOf(known))
      .Name("collective", NameKind::kPlain, &policy->fixed_collective, CollectivesOf(known))
      .Number("ratio", {.min = 0, .max = 1, .min_open = true}, &policy->fixed_ratio)
      .Integer("bits", {.min = 0, .max = 64}, &policy->fixed_bits);
  return section;
}

StrictSection BoundsSection(const std::string& origin, const PolicyNames* known, Policy* policy) {
  StrictSection section(origin);
  section.Number("ratio_min", {.min = 0, .max = 1, .min_open = true}, &policy->ratio_min)
      .Number("ratio_max", {.min = 0, .max = 1, .min_open = true}, &policy->ratio_max)
      .Number("gain_min", {.min = 0, .max = 1}, &policy->gain_min)
      .Number("residual_ratio_max", {.min = 0, .max = 1e6}, &policy->residual_ratio_max)
      .Names("codecs", NameKind::kVariant, &policy->codecs, CodecsOf(known))
      .Names("collectives", NameKind::kPlain, &policy->collectives, CollectivesOf(known));
  return section;
}

StrictSection SwitchingSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Number("dwell_min_s", {.min = 0, .max = kSecondsMax}, &policy->dwell_min_s)
      .Number("improvement_min", {.min = 0, .max = 0.9}, &policy->improvement_min)
      .Number("confidence", {.min = 0.5, .max = 0.999}, &policy->confidence)
      .Integer("flaps_max", {.min = 1, .max = 1000}, &policy->flaps_max)
      .Number("flap_window_s", {.min = 1, .max = kSecondsMax}, &policy->flap_window_s)
      .Number("lease_s", {.min = 0, .max = kSecondsMax}, &policy->lease_s)
      .Number("loss_tolerance", {.min = 0, .max = 10}, &policy->loss_tolerance)
      .Integer("loss_patience_steps", {.min = 1, .max = 1000000}, &policy->loss_patience_steps)
      .Name("dense_checks", NameKind::kPlain, &policy->dense_checks, &kDenseChecks);
  return section;
}

StrictSection ProbingSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Number("budget_ratio", {.min = 0, .max = 0.1}, &policy->probe_budget_ratio)
      .Number("interval_s", {.min = 0.1, .max = kSecondsMax}, &policy->probe_interval_s)
      .Number("latency_interval_s", {.min = 0.05, .max = kSecondsMax}, &policy->latency_interval_s);
  return section;
}

StrictSection AggregationSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Number("quorum", {.min = 0, .max = 1, .min_open = true}, &policy->quorum)
      .Integer("cutoff_ms", {.min = 1, .max = kCutoffMsMax}, &policy->cutoff_ms)
      .Boolean("checksums", &policy->checksums);
  return section;
}

// A rank that may be left out of a sum must keep its gradient, and only lossy lane codecs have a
// residual for it.
Status CheckAggregation(const std::string& origin, const Policy& policy) {
  if (policy.quorum <= 0 && policy.cutoff_ms <= 0) return OkStatus();
  if (policy.quorum <= 0 || policy.cutoff_ms <= 0) {
    return InvalidArgument(StrCat(origin, ":1: aggregation: expected quorum and cutoff_ms, found ",
                                  policy.quorum > 0 ? "quorum" : "cutoff_ms", " alone"));
  }
  const auto refuse = [&](const std::string& key, const std::string& found) {
    return InvalidArgument(StrCat(
        origin, ":1: ", key, ": expected ", kCutoffCollective,
        " for aggregation.quorum, since every rank must be in sums of exact lanes, found ", found));
  };
  if (policy.objective == "fixed" && policy.fixed_collective != kCutoffCollective) {
    return refuse("objective.collective", policy.fixed_collective);
  }
  const auto& allowed = policy.collectives;
  if (!allowed.empty() &&
      std::find(allowed.begin(), allowed.end(), kCutoffCollective) == allowed.end()) {
    std::string found;
    for (const std::string& name : allowed) found += StrCat(found.empty() ? "" : ", ", name);
    return refuse("bounds.collectives", found);
  }
  return OkStatus();
}

bool PatternMatches(std::string_view pattern, std::string_view text) {
  // Greedy with one remembered star: linear in |pattern| * |text| at worst, no recursion.
  size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

StatusOr<Policy> ParsePolicy(std::string_view source, std::string_view origin,
                             const PolicyNames* known) {
  const std::string name(origin);
  Policy policy;
  StrictSection document(name);
  document.Name("name", NameKind::kPlain, &policy.name)
      .Names("jobs", NameKind::kPattern, &policy.jobs)
      .NameOrSection("objective", &policy.objective, ObjectiveSection(name, known, &policy))
      .Section("bounds", BoundsSection(name, known, &policy))
      .Section("switching", SwitchingSection(name, &policy))
      .Section("aggregation", AggregationSection(name, &policy))
      .Section("probing", ProbingSection(name, &policy));
  WEIR_RETURN_IF_ERROR(ReadStrictYaml(source, name, document));
  if (policy.ratio_min > policy.ratio_max) {
    return InvalidArgument(StrCat(name, ":1: bounds.ratio_min: expected at most ratio_max ",
                                  policy.ratio_max, ", found ", policy.ratio_min));
  }
  if (policy.objective == "delay_target" && policy.delay_target_s <= 0) {
    return InvalidArgument(StrCat(name,
                                  ":1: objective.delay_target_s: expected a time above 0 s for "
                                  "objective delay_target, found ",
                                  policy.delay_target_s));
  }
  WEIR_RETURN_IF_ERROR(CheckAggregation(name, policy));
  // Operators know this codec by the other name.
  const auto named = [](std::string& codec) {
    if (codec == "dense") codec = "identity";
  };
  named(policy.fixed_codec);
  for (std::string& codec : policy.codecs) named(codec);
  return policy;
}

bool PolicyMatches(const Policy& policy, std::string_view job) {
  for (const std::string& pattern : policy.jobs) {
    if (PatternMatches(pattern, job)) return true;
  }
  return false;
}

}  // namespace weir
