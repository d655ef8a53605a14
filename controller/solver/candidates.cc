// SPDX-License-Identifier: Apache-2.0
// See candidates.h.

#include "controller/solver/candidates.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "controller/model/deterministic_math.h"
#include "controller/model/format.h"
#include "controller/model/node_layout.h"
#include "datapath/base/registry.h"

namespace weir {
namespace {

constexpr double kRatioGrid[] = {1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001};
// The smallest factor between two ratios of the grid.
constexpr double kRatioStepMin = 1.05;

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether any plan may fall back on this pair: it loses nothing and needs no lease.
bool IsDense(const CodecModel& codec, const CollectiveModel& collective) {
  return !codec.lossy && !collective.needs_lease;
}

template <typename T>
Status CheckNames(const std::vector<std::string>& wanted, const std::vector<T>& offered,
                  const char* what) {
  for (const std::string& name : wanted) {
    std::set<std::string> known;  // a codec has one row for each of its settings
    for (const T& one : offered) known.insert(one.name);
    if (!known.contains(name)) {
      return NotFound(
          StrCat("policy names ", what, " '", name,
                 "', which no rank or not every rank offers; valid: ", ValidNames(name, known)));
    }
  }
  return OkStatus();
}

/// Grid, the policy's own bounds and the codec's own range, descending, no near-duplicates.
std::vector<double> RatiosFor(const CodecModel& codec, const Policy& policy,
                              const CandidateScope& scope) {
  if (!codec.uses_ratio) return {1.0};
  if (scope.only.has_value()) return {scope.only->ratio};
  const bool own_ratios = !scope.ratios.empty() && codec.error_model == scope.error_model;
  const std::array<double, 2> bounds = {policy.ratio_min, policy.ratio_max};
  std::vector<double> all = scope.ratios;
  if (!own_ratios) {
    all.assign(std::begin(kRatioGrid), std::end(kRatioGrid));
    all.insert(all.end(), bounds.begin(), bounds.end());
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  std::vector<double> ratios;
  for (const double ratio : all) {
    if (ratio < codec.ratio_min || ratio > codec.ratio_max || ratio <= 0) continue;
    if (!ratios.empty() && ratios.back() < ratio * kRatioStepMin && !own_ratios) {
      // If a grid value and a bound of the policy are close, the bound stays.
      if (std::find(bounds.begin(), bounds.end(), ratio) != bounds.end()) ratios.back() = ratio;
      continue;
    }
    if (ratios.empty() || ratios.back() != ratio) ratios.push_back(ratio);
  }
  return ratios;
}

/// Steady residual of error feedback that keeps `gain` of the energy of gradient plus residual,
/// when successive gradients are uncorrelated: r^2 = (1 - gain)(1 + r^2).
double SteadyResidual(double gain) {
  if (gain >= 1) return 0;
  return DetSqrt((1 - gain) / std::max(gain, 1e-9));
}

}  // namespace

StatusOr<CandidateSpace> CandidateSpace::Build(const Snapshot& snapshot, const Policy& policy,
                                               const CandidateScope& scope,
                                               const LayoutSpeedup& speedup) {
  WEIR_RETURN_IF_ERROR(CheckNames(policy.codecs, snapshot.codecs, "codec"));
  WEIR_RETURN_IF_ERROR(CheckNames(policy.collectives, snapshot.collectives, "collective"));
  if (scope.only.has_value()) {
    WEIR_RETURN_IF_ERROR(CheckNames({scope.only->codec}, snapshot.codecs, "codec"));
    WEIR_RETURN_IF_ERROR(CheckNames({scope.only->collective}, snapshot.collectives, "collective"));
  }
  CandidateSpace space;
  space.snapshot_ = &snapshot;
  space.policy_ = &policy;
  space.scope_ = scope;
  space.speedup_ = speedup;
  for (const BucketModel& bucket : snapshot.buckets) {
    space.elements_total_ += static_cast<double>(bucket.elements);
  }
  for (const CollectiveModel& collective : snapshot.collectives) {
    space.placements_.push_back(PlacementOf(snapshot, collective));
  }
  space.AddKinds();
  space.CostKinds();
  return space;
}

void CandidateSpace::AddKinds() {
  const NodeLayout layout = LayoutOf(snapshot_->memory);
  const bool alone = layout.nodes == 0 || layout.ranks_max == 1;
  for (const CodecModel& codec : snapshot_->codecs) {
    if (codec.opt_in && policy_->codecs.empty() && !scope_.only.has_value()) continue;
    for (const double ratio : RatiosFor(codec, *policy_, scope_)) {
      for (size_t c = 0; c < snapshot_->collectives.size(); ++c) {
        const CollectiveModel& collective = snapshot_->collectives[c];
        if (!Compatible(codec, collective, snapshot_->world)) continue;
        // Where every rank has a node of its own, a flat collective does the same.
        const bool named =
            scope_.only.has_value() || Contains(policy_->collectives, collective.name);
        if (collective.by_node && alone && !named) continue;
        Kind kind{&codec, &collective, static_cast<int>(c), ratio, IsDense(codec, collective)};
        Exclude(&kind);
        kinds_.push_back(std::move(kind));
      }
    }
  }
}

std::string CandidateSpace::ListExclusion(const Kind& kind) const {
  const std::string& codec = kind.codec->name;
  const std::string& collective = kind.collective->name;
  if (scope_.only.has_value()) {
    const bool same = scope_.only->codec == codec && scope_.only->collective == collective &&
                      FindCodec(snapshot_->codecs, codec, scope_.only->bits) == kind.codec &&
                      (!kind.codec->uses_ratio || scope_.only->ratio == kind.ratio);
    return same ? "" : StrCat("objective ", policy_->objective);
  }
  if (!scope_.error_model.empty() && kind.codec->error_model != scope_.error_model) {
    return StrCat("objective ", policy_->objective);
  }
  if (!policy_->codecs.empty() && !Contains(policy_->codecs, codec)) return "codecs";
  if (kind.codec->opt_in && policy_->codecs.empty()) return "codecs";
  if (!policy_->collectives.empty() && !Contains(policy_->collectives, collective)) {
    return "collectives";
  }
  return "";
}

std::string CandidateSpace::BoundExclusion(const Kind& kind) const {
  if (kind.collective->needs_lease && !kind.collective->lease_available) {
    const std::string& why_not = kind.collective->lease_why_not;
    return why_not.empty() ? StrCat(kind.collective->name, ": no aggregator is registered")
                           : why_not;
  }
  if (scope_.only.has_value() || !kind.codec->uses_ratio) return "";
  if (kind.ratio < policy_->ratio_min) return StrCat("ratio_min ", policy_->ratio_min);
  if (kind.ratio > policy_->ratio_max) return StrCat("ratio_max ", policy_->ratio_max);
  return "";
}

void CandidateSpace::Exclude(Kind* kind) const {
  kind->excluded_by = ListExclusion(*kind);
  kind->listed = kind->excluded_by.empty();
  if (kind->listed) kind->excluded_by = BoundExclusion(*kind);
}

std::string CandidateSpace::CostExclusion(const Kind& kind, size_t bucket,
                                          const BucketCost& cost) const {
  if (!kind.excluded_by.empty() || kind.dense || scope_.only.has_value()) return kind.excluded_by;
  if (cost.gain < policy_->gain_min) return StrCat("gain_min ", policy_->gain_min);
  if (policy_->residual_ratio_max > 0 && kind.codec->needs_error_feedback &&
      SteadyResidual(cost.gain) * residual_corrections_[bucket] > policy_->residual_ratio_max) {
    return StrCat("residual_ratio_max ", policy_->residual_ratio_max);
  }
  return "";
}

void CandidateSpace::CostKinds() {
  const NetworkState network = NetworkOf(*snapshot_);
  const double beta = 1 / EffectiveBandwidth(*snapshot_, network);
  options_.resize(snapshot_->buckets.size());
  residual_corrections_.assign(snapshot_->buckets.size(), 1.0);
  for (size_t b = 0; b < snapshot_->buckets.size(); ++b) {
    const BucketModel& bucket = snapshot_->buckets[b];
    // The ratio of the measured residual to that of the formula for the plan that runs now.
    if (b < snapshot_->incumbent.size() && bucket.residual_ratio > 0) {
      const auto running = CostOf(b, snapshot_->incumbent[b], speedup_);
      const double expected = running.ok() ? SteadyResidual(running->gain) : 0;
      if (expected > 0.01) {
        residual_corrections_[b] = std::clamp(bucket.residual_ratio / expected, 0.2, 5.0);
      }
    }
    options_[b].resize(kinds_.size());
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const Kind& kind = kinds_[k];
      BucketOption& option = options_[b][k];
      option.cost = PredictBucket(*snapshot_, bucket, *kind.codec, *kind.collective,
                                  placements_[static_cast<size_t>(kind.collective_index)],
                                  kind.ratio, speedup_);
      option.encode_s = option.cost.EncodeSeconds(network.alpha_s);
      option.network_s = option.cost.NetworkSeconds(network.alpha_s, beta);
      option.excluded_by = CostExclusion(kind, b, option.cost);
    }
  }
}

std::string CandidateSpace::UniformExclusion(size_t kind) const {
  if (!kinds_[kind].excluded_by.empty()) return kinds_[kind].excluded_by;
  for (const auto& bucket : options_) {
    if (!bucket[kind].excluded_by.empty()) return bucket[kind].excluded_by;
  }
  return "";
}

ChoiceModel CandidateSpace::ChoiceOf(size_t kind) const {
  return {.codec = kinds_[kind].codec->name,
          .collective = kinds_[kind].collective->name,
          .ratio = kinds_[kind].ratio,
          .bits = kinds_[kind].codec->bits};
}

std::string CandidateSpace::ExclusionOf(size_t bucket, const ChoiceModel& choice) const {
  const auto cost = CostOf(bucket, choice, speedup_);
  if (!cost.ok()) return "not offered by every rank";
  const int c = CollectiveIndex(choice.collective);
  const CodecModel& codec = *FindCodec(snapshot_->codecs, choice.codec, choice.bits);
  const CollectiveModel& collective = snapshot_->collectives[c];
  Kind kind{&codec, &collective, c, choice.ratio, IsDense(codec, collective)};
  Exclude(&kind);
  return CostExclusion(kind, bucket, *cost);
}

int CandidateSpace::CollectiveIndex(const std::string& name) const {
  for (size_t c = 0; c < snapshot_->collectives.size(); ++c) {
    if (snapshot_->collectives[c].name == name) return static_cast<int>(c);
  }
  return -1;
}

template <typename Trait>
bool CandidateSpace::AnyCollective(const PlanModel& choices, const Trait& trait) const {
  return std::any_of(choices.begin(), choices.end(), [&](const ChoiceModel& choice) {
    const int c = CollectiveIndex(choice.collective);
    return c >= 0 && trait(snapshot_->collectives[static_cast<size_t>(c)]);
  });
}

bool CandidateSpace::WalksRing(const PlanModel& choices) const {
  return AnyCollective(choices, [](const CollectiveModel& one) { return one.uses_ring_order; });
}

bool CandidateSpace::CutsByShares(const PlanModel& choices) const {
  return AnyCollective(choices,
                       [](const CollectiveModel& one) { return one.shard_segment_bytes > 0; });
}

StatusOr<BucketCost> CandidateSpace::CostOf(size_t bucket, const ChoiceModel& choice,
                                            const LayoutSpeedup& speedup) const {
  const int c = CollectiveIndex(choice.collective);
  const CodecModel* codec = FindCodec(snapshot_->codecs, choice.codec, choice.bits);
  if (codec != nullptr && c >= 0 &&
      Compatible(*codec, snapshot_->collectives[c], snapshot_->world)) {
    return PredictBucket(*snapshot_, snapshot_->buckets[bucket], *codec, snapshot_->collectives[c],
                         placements_[static_cast<size_t>(c)], choice.ratio, speedup);
  }
  return NotFound(StrCat("not every rank offers ", choice.codec, " over ", choice.collective));
}

PlanEstimate EvaluatePlan(const CandidateSpace& space, const CostedPlan& plan,
                          const NetworkState& network) {
  const Snapshot& snapshot = space.snapshot();
  const double beta = 1 / EffectiveBandwidth(snapshot, network);
  PlanEstimate estimate;
  estimate.network_s_by_collective.resize(snapshot.collectives.size());
  std::vector<BucketTimes> buckets(plan.costs.size());
  for (size_t b = 0; b < plan.costs.size(); ++b) {
    const BucketCost& cost = plan.costs[b];
    buckets[b].ready_s = snapshot.buckets[b].ready_s;
    buckets[b].encode_s = cost.EncodeSeconds(network.alpha_s);
    buckets[b].network_s = cost.NetworkSeconds(network.alpha_s, beta);
    buckets[b].decode_s = cost.decode_s;
    estimate.network_s_by_collective[plan.collective_indices[b]] +=
        cost.relative_deviation * buckets[b].network_s / plan.sync.every;
    estimate.codec_deviation_s += cost.codec_deviation_s / plan.sync.every;
  }
  if (plan.sync.local()) {
    estimate.times =
        PredictLocalStep(PredictSync(std::move(buckets)), plan.sync, snapshot.compute_s.value);
    return estimate;
  }
  estimate.times = PredictStep(buckets, snapshot.compute_s.value, snapshot.backward_s.value);
  return estimate;
}

namespace {

/// The place of most elements; the first of places that tie.
EncodingPlace EncodingOf(const CandidateSpace& space, const std::vector<BucketCost>& costs) {
  EncodingPlace most;
  std::map<CodecPlace, uint64_t> elements;
  for (size_t b = 0; b < costs.size(); ++b) {
    elements[costs[b].place] += space.snapshot().buckets[b].elements;
    most.copies_s += costs[b].copies_s;
  }
  uint64_t largest = 0;
  for (const auto& [place, count] : elements) {
    if (count <= largest) continue;
    largest = count;
    most.place = place;
  }
  return most;
}

}  // namespace

CostedPlan PlanOfKinds(const CandidateSpace& space, const std::vector<int>& kinds) {
  CostedPlan plan;
  double kept = 0;
  for (size_t b = 0; b < kinds.size(); ++b) {
    const Kind& kind = space.kinds()[kinds[b]];
    plan.choices.push_back(space.ChoiceOf(kinds[b]));
    plan.costs.push_back(space.option(b, kinds[b]).cost);
    plan.collective_indices.push_back(kind.collective_index);
    plan.dense &= kind.dense;
    kept += plan.costs.back().gain * static_cast<double>(space.snapshot().buckets[b].elements);
  }
  plan.gain = space.elements_total() > 0 ? kept / space.elements_total() : 1;
  plan.encoding = EncodingOf(space, plan.costs);
  return plan;
}

StatusOr<CostedPlan> PlanOfChoices(const CandidateSpace& space, const PlanModel& choices,
                                   const LayoutSpeedup& speedup) {
  CostedPlan plan;
  double kept = 0;
  for (size_t b = 0; b < choices.size(); ++b) {
    WEIR_ASSIGN_OR_RETURN(const BucketCost cost, space.CostOf(b, choices[b], speedup));
    const int c = space.CollectiveIndex(choices[b].collective);
    plan.dense &= IsDense(*FindCodec(space.snapshot().codecs, choices[b].codec, choices[b].bits),
                          space.snapshot().collectives[static_cast<size_t>(c)]);
    plan.costs.push_back(cost);
    plan.collective_indices.push_back(c);
    kept += cost.gain * static_cast<double>(space.snapshot().buckets[b].elements);
  }
  plan.choices = choices;
  plan.gain = space.elements_total() > 0 ? kept / space.elements_total() : 1;
  plan.encoding = EncodingOf(space, plan.costs);
  return plan;
}

std::string LabelOf(const ChoiceModel& choice, bool uses_ratio) {
  const std::string bits = choice.bits == 0 ? "" : StrCat(" ", choice.bits, "-bit");
  const std::string ratio = uses_ratio ? StrCat(" ", choice.ratio) : "";
  return StrCat(CodecText(choice.codec), bits, ratio, " over ", choice.collective);
}

std::string LabelOf(const CandidateSpace& space, const PlanModel& plan) {
  if (plan.empty()) return "";
  std::vector<std::pair<const ChoiceModel*, double>> elements;  // few distinct choices
  for (size_t b = 0; b < plan.size(); ++b) {
    const auto same = std::find_if(elements.begin(), elements.end(),
                                   [&](const auto& entry) { return *entry.first == plan[b]; });
    const double count = static_cast<double>(space.snapshot().buckets[b].elements);
    if (same == elements.end()) {
      elements.push_back({&plan[b], count});
    } else {
      same->second += count;
    }
  }
  const auto most =
      std::max_element(elements.begin(), elements.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const CodecModel* codec =
      FindCodec(space.snapshot().codecs, most->first->codec, most->first->bits);
  const bool uses_ratio = codec != nullptr && codec->uses_ratio;
  const std::string label = LabelOf(*most->first, uses_ratio);
  return elements.size() == 1 ? label : StrCat("mixed (mostly ", label, ")");
}

}  // namespace weir
