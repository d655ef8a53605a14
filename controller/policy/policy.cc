// SPDX-License-Identifier: Apache-2.0
// The layout of a policy document and the limits of each value; README.md beside this file shows
// it.

#include "controller/policy/policy.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "controller/policy/strict_yaml.h"

namespace weir {
namespace {

constexpr double kSecondsMax = 86400;
constexpr double kCutoffMsMax = 60000;  // as aggregators have it
// The only collective whose sums may leave ranks out.
constexpr std::string_view kCutoffCollective = "thc_table";

const std::set<std::string> kDenseChecks = {"auto", "never"};
const std::set<std::string> kOuterSteps = {"auto", "average", "sgd_nesterov"};
constexpr double kSyncStepsMax = 1 << 16;  // as ranks have it

// As the library has them, and its limits (datapath/nccl/plugin/table.h); a test compares them.
const std::set<std::string> kNcclFunctions = {"broadcast", "reduce", "all_gather", "reduce_scatter",
                                              "all_reduce"};
const std::set<std::string> kNcclAlgorithms = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
const std::set<std::string> kNcclProtocols = {"ll", "ll128", "simple"};
constexpr double kNcclBytesMax = 1LL << 50;
constexpr uint64_t kNcclChunkGrain = 4096;

// The names that documents are checked against; null: any name is valid.
struct Known {
  const std::set<std::string>* codecs = nullptr;
  const std::set<std::string>* collectives = nullptr;
  const std::set<std::string>* objectives = nullptr;
};

StrictSection ObjectiveSection(const std::string& origin, const Known& known, Policy* policy) {
  StrictSection section(origin);
  section.Name("name", NameKind::kPlain, &policy->objective, known.objectives)
      .Means("what is made small")
      .Number("progress_exponent", {.min = 0, .max = 4}, &policy->progress_exponent)
      .Means("time_to_accuracy: a step is worth its gain to this power, before losses say more")
      .Number("progress_deviation", {.min = 0, .max = 2}, &policy->progress_deviation)
      .Means("one standard deviation of that exponent; 0: it is not learnt")
      .Number("delay_target_s", {.min = 0, .max = 3600}, &policy->delay_target_s)
      .Means("delay_target: seconds of communication that may stay exposed per step; above 0 there")
      .Number("moo_weight_time", {.min = 0, .max = 1}, &policy->moo_weight_time)
      .Means("moo: weight of time; the rest is the weight of 1/gain")
      .Name("codec", NameKind::kVariant, &policy->fixed_codec, known.codecs)
      .Means("fixed: the codec that runs")
      .Name("collective", NameKind::kPlain, &policy->fixed_collective, known.collectives)
      .Means("fixed: the collective that runs")
      .Number("ratio", {.min = 0, .max = 1, .min_open = true}, &policy->fixed_ratio)
      .Means("fixed: the kept fraction")
      .Integer("bits", {.min = 0, .max = 64}, &policy->fixed_bits)
      .Means("fixed: a width of the codec; 0: its default");
  return section;
}

StrictSection BoundsSection(const std::string& origin, const Known& known, Policy* policy) {
  StrictSection section(origin);
  section.Number("ratio_min", {.min = 0, .max = 1, .min_open = true}, &policy->ratio_min)
      .Means("least kept fraction of codecs that select")
      .Number("ratio_max", {.min = 0, .max = 1, .min_open = true}, &policy->ratio_max)
      .Means("largest kept fraction of codecs that select")
      .Number("gain_min", {.min = 0, .max = 1}, &policy->gain_min)
      .Means("least share of its energy that every bucket keeps")
      .Number("residual_ratio_max", {.min = 0, .max = 1e6}, &policy->residual_ratio_max)
      .Means("largest norm of a bucket's residual over that of its gradient; 0: none")
      .Names("codecs", NameKind::kVariant, &policy->codecs, known.codecs)
      .Means("only these codecs run; empty: all that need no listing")
      .Names("collectives", NameKind::kPlain, &policy->collectives, known.collectives)
      .Means("only these collectives run; empty: all");
  return section;
}

StrictSection SwitchingSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Number("dwell_min_s", {.min = 0, .max = kSecondsMax}, &policy->dwell_min_s)
      .Means("least seconds between two switches; a switch to dense need not wait")
      .Number("improvement_min", {.min = 0, .max = 0.9}, &policy->improvement_min)
      .Means("relative improvement that a switch must promise")
      .Number("confidence", {.min = 0.5, .max = 0.999}, &policy->confidence)
      .Means("probability that it is an improvement at all")
      .Integer("flaps_max", {.min = 1, .max = 1000}, &policy->flaps_max)
      .Means("each switch beyond this number per window doubles dwell_min_s")
      .Number("flap_window_s", {.min = 1, .max = kSecondsMax}, &policy->flap_window_s)
      .Means("seconds of that window")
      .Number("lease_s", {.min = 0, .max = kSecondsMax}, &policy->lease_s)
      .Means("ranks turn dense when they hear nothing of the controller for longer; 0: never")
      .Number("loss_tolerance", {.min = 0, .max = 10}, &policy->loss_tolerance)
      .Means("share by which losses may be behind the fitted curve; 0: not watched")
      .Integer("loss_patience_steps", {.min = 1, .max = 1000000}, &policy->loss_patience_steps)
      .Means("for so many steps in a row, then a gentler plan runs")
      .Name("dense_checks", NameKind::kPlain, &policy->dense_checks, &kDenseChecks)
      .Means("whether a few dense steps may measure what a plan saves");
  return section;
}

StrictSection SyncSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Integer("every_max", {.min = 1, .max = kSyncStepsMax}, &policy->sync_every_max)
      .Means("ranks may make so many steps of the optimiser from one synchronisation to the next")
      .Number("progress_cost", {.min = 0, .max = 0.2}, &policy->sync_cost)
      .Means("progress lost for each e-fold of these steps, before losses say more")
      .Number("progress_cost_deviation", {.min = 0, .max = 0.2}, &policy->sync_cost_deviation)
      .Means("one standard deviation of that; 0: it is not learnt")
      .Name("outer", NameKind::kPlain, &policy->sync_outer, &kOuterSteps)
      .Means("what a synchronisation does with the mean movement of the ranks")
      .Number("outer_rate", {.min = 0, .max = 10, .min_open = true}, &policy->sync_outer_rate)
      .Means("of outer steps with momentum")
      .Number("outer_momentum", {.min = 0, .max = 0.99}, &policy->sync_outer_momentum)
      .Means("of these")
      .Number("mix", {.min = 0, .max = 1}, &policy->sync_mix)
      .Means("share of a rank's own parameters after a synchronisation that overlapped with steps");
  return section;
}

StrictSection ProbingSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Number("budget_ratio", {.min = 0, .max = 0.1}, &policy->probe_budget_ratio)
      .Means("bytes of active probes, as a share of training bytes")
      .Number("interval_s", {.min = 0.1, .max = kSecondsMax}, &policy->probe_interval_s)
      .Means("permitted age of a bandwidth estimate in seconds")
      .Number("latency_interval_s", {.min = 0.05, .max = kSecondsMax}, &policy->latency_interval_s)
      .Means("permitted age of a latency estimate in seconds");
  return section;
}

StrictSection AggregationSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Number("quorum", {.min = 0, .max = 1, .min_open = true}, &policy->quorum)
      .Means("share of the ranks that is enough for a lossy sum after cutoff_ms; absent: all")
      .Integer("cutoff_ms", {.min = 1, .max = kCutoffMsMax}, &policy->cutoff_ms)
      .Means("milliseconds to wait for ranks beyond the quorum; with quorum only")
      .Boolean("checksums", &policy->checksums)
      .Means("whether packets to and from aggregators carry a checksum");
  return section;
}

StrictSection NcclRuleSection(const std::string& origin, NcclRule* rule) {
  StrictSection section(origin);
  section.Name("function", NameKind::kPlain, &rule->function, &kNcclFunctions)
      .Means("the operation")
      .Count("bytes_min", {.min = 0, .max = kNcclBytesMax}, &rule->bytes_min)
      .Means("calls of at least so many bytes")
      .Count("bytes_end", {.min = 0, .max = kNcclBytesMax}, &rule->bytes_end)
      .Means("and of less than so many; 0: no end")
      .Integer("ranks", {.min = 0, .max = 1 << 20}, &rule->ranks)
      .Means("only in communicators of so many ranks; 0: in all")
      .Name("algorithm", NameKind::kPlain, &rule->algorithm, &kNcclAlgorithms)
      .Means("must be given")
      .Name("protocol", NameKind::kPlain, &rule->protocol, &kNcclProtocols)
      .Means("must be given")
      .Integer("channels", {.min = 0, .max = 64}, &rule->channels)
      .Means("0: as NCCL chooses")
      .Count("chunk_bytes", {.min = 0, .max = 64 << 20}, &rule->chunk_bytes)
      .Means("a multiple of 4096; 0: as NCCL chooses");
  return section;
}

StrictSection NcclSection(const std::string& origin, Policy* policy) {
  StrictSection section(origin);
  section.Names("nodes", NameKind::kPattern, &policy->nccl_nodes)
      .Means("shell patterns (* and ?) of the names of the nodes that the rules are for")
      .Sections("rules", NcclRuleSection, &policy->nccl_rules)
      .Means("the first rule that matches a call decides; calls without one are left to NCCL");
  return section;
}

StrictSection Document(const std::string& origin, const Known& known, Policy* policy) {
  StrictSection document(origin);
  document.Name("name", NameKind::kPlain, &policy->name)
      .Means("under which the policy is applied, shown and deleted")
      .Names("jobs", NameKind::kPattern, &policy->jobs)
      .Means("shell patterns (* and ?) of the names of the jobs that it rules")
      .Names("namespaces", NameKind::kPattern, &policy->namespaces)
      .Means("and of their namespaces; a job without one matches only *")
      .Map("labels", NameKind::kPattern, &policy->labels)
      .Means("labels that the jobs must have, each with a pattern of its value")
      .Integer("priority", {.min = -1000, .max = 1000}, &policy->priority)
      .Means("of several policies that match a job, that of the highest priority rules it")
      .NameOrSection("objective", &policy->objective, ObjectiveSection(origin, known, policy),
                     known.objectives)
      .Means("the name of an objective, or a section")
      .Section("bounds", BoundsSection(origin, known, policy))
      .Means("limits of every plan")
      .Section("switching", SwitchingSection(origin, policy))
      .Means("when plans change")
      .Section("sync", SyncSection(origin, policy))
      .Means("whether ranks may synchronise every few steps only")
      .Section("aggregation", AggregationSection(origin, policy))
      .Means("sums on aggregators")
      .Section("probing", ProbingSection(origin, policy))
      .Means("measurements that cost bytes")
      .Section("nccl", NcclSection(origin, policy))
      .Means("algorithms of NCCL in processes that use libnccl-weir.so");
  return document;
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

Status CheckNccl(const std::string& origin, const Policy& policy) {
  for (size_t i = 0; i < policy.nccl_rules.size(); ++i) {
    const NcclRule& rule = policy.nccl_rules[i];
    const auto wrong = [&](const char* key, const std::string& problem) {
      return InvalidArgument(StrCat(origin, ":1: nccl.rules[", i, "].", key, ": ", problem));
    };
    if (rule.algorithm.empty()) return wrong("algorithm", "expected a name, found nothing");
    if (rule.protocol.empty()) return wrong("protocol", "expected a name, found nothing");
    if (rule.bytes_end != 0 && rule.bytes_end <= rule.bytes_min) {
      return wrong("bytes_end", StrCat("expected 0, or more than bytes_min ", rule.bytes_min,
                                       ", found ", rule.bytes_end));
    }
    if (rule.chunk_bytes % kNcclChunkGrain != 0) {
      return wrong("chunk_bytes", StrCat("expected a multiple of ", kNcclChunkGrain, ", found ",
                                         rule.chunk_bytes));
    }
  }
  return OkStatus();
}

void Rename(const char* from, const char* to, Policy* policy) {
  if (policy->fixed_codec == from) policy->fixed_codec = to;
  std::replace(policy->codecs.begin(), policy->codecs.end(), std::string(from), std::string(to));
}

// With the name by which operators know the codec "identity".
Policy AsWritten(Policy policy) {
  Rename("identity", "dense", &policy);
  return policy;
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

bool AnyMatches(const std::vector<std::string>& patterns, std::string_view text) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return PatternMatches(pattern, text); });
}

}  // namespace

StatusOr<Policy> ParsePolicy(std::string_view source, std::string_view origin,
                             const PolicyNames* known, const Policy& defaults) {
  const std::string name(origin);
  Policy policy = defaults;
  Known names;
  if (known != nullptr) names = {&known->codecs, &known->collectives};
  const StrictSection document = Document(name, names, &policy);
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
  WEIR_RETURN_IF_ERROR(CheckNccl(name, policy));
  Rename("dense", "identity", &policy);
  return policy;
}

std::string PolicySchema(const PolicyNames& known, const std::set<std::string>& objectives) {
  const std::string origin;
  Policy defaults = AsWritten({});
  nlohmann::json schema =
      Document(origin, {&known.codecs, &known.collectives, &objectives}, &defaults).Schema();
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "Weir policy";
  return schema.dump(2);
}

std::map<std::string, std::string> PolicyValues(const Policy& policy) {
  const std::string origin;
  Policy shown = AsWritten(policy);
  std::map<std::string, std::string> values;
  const nlohmann::json document = Document(origin, {}, &shown).Values();
  for (const auto& [name, value] : document.items()) {
    if (name == "labels" || !value.is_object()) {
      values[name] = value.dump();
      continue;
    }
    for (const auto& [key, inner] : value.items()) values[StrCat(name, ".", key)] = inner.dump();
  }
  return values;
}

bool PolicyMatches(const Policy& policy, std::string_view job, const JobLabels& labels) {
  const auto space = labels.find(kNamespaceLabel);
  return AnyMatches(policy.jobs, job) &&
         AnyMatches(policy.namespaces, space == labels.end() ? "" : space->second) &&
         std::all_of(policy.labels.begin(), policy.labels.end(), [&](const auto& wanted) {
           const auto found = labels.find(wanted.first);
           return found != labels.end() && PatternMatches(wanted.second, found->second);
         });
}

bool SteersNccl(const Policy& policy, std::string_view node) {
  return !policy.nccl_rules.empty() && AnyMatches(policy.nccl_nodes, node);
}

}  // namespace weir
