// SPDX-License-Identifier: Apache-2.0
// Decide: enumerate, predict, score, then ask whether the best is worth a switch
// (decide_choice.cc).

#include <algorithm>
#include <cmath>
#include <map>

#include "controller/model/deterministic_math.h"
#include "controller/model/node_layout.h"
#include "controller/model/plan_layout.h"
#include "controller/model/ring_choice.h"
#include "controller/model/shard_choice.h"
#include "controller/solver/check_snapshot.h"
#include "controller/solver/decider.h"
#include "controller/solver/explain.h"
#include "controller/solver/local_candidates.h"
#include "controller/solver/switching.h"

namespace weir {
namespace {

constexpr size_t kTopMax = 12, kFrontMax = 64;
constexpr double kTie = 1e-9;

bool SameChoices(const CandidatePlan& a, const CandidatePlan& b) {
  return a.choices == b.choices && a.layout == b.layout && a.sync == b.sync;
}

}  // namespace

std::vector<BucketTimes> Decider::TimesOf(const KindPlan& kinds) const {
  std::vector<BucketTimes> buckets(kinds.size());
  for (size_t b = 0; b < kinds.size(); ++b) {
    const BucketOption& option = space_.option(b, kinds[b]);
    buckets[b] = {space_.snapshot().buckets[b].ready_s, option.encode_s, option.network_s,
                  option.cost.decode_s};
  }
  return buckets;
}

CandidateEstimate Decider::EstimateKinds(const KindPlan& kinds) const {
  double kept = 0;
  bool uniform = true;
  for (size_t b = 0; b < kinds.size(); ++b) {
    const BucketOption& option = space_.option(b, kinds[b]);
    kept += option.cost.gain * static_cast<double>(space_.snapshot().buckets[b].elements);
    uniform &= kinds[b] == kinds[0];
  }
  const StepTimes times = PredictStep(TimesOf(kinds), space_.snapshot().compute_s.value,
                                      space_.snapshot().backward_s.value);
  CandidateEstimate estimate;
  estimate.step_s = times.step_s;
  estimate.exposed_s = times.exposed_s;
  estimate.communication_s = times.communication_s;
  estimate.gain = space_.elements_total() > 0 ? kept / space_.elements_total() : 1;
  estimate.progress = risk_.mean().At(estimate.gain, {});
  if (uniform) estimate.ratio = space_.kinds()[kinds[0]].ratio;
  return estimate;
}

void Decider::AddAlternatives() {
  const size_t buckets = space_.bucket_count();
  for (size_t k = 0; k < space_.kinds().size(); ++k) {
    Alternative one;
    one.kinds.assign(buckets, static_cast<int>(k));
    one.excluded_by = space_.UniformExclusion(k);
    one.dense = space_.kinds()[k].dense;
    one.uniform = true;
    one.leased = space_.kinds()[k].collective->needs_lease;
    one.listed = space_.kinds()[k].listed;
    one.estimate = EstimateKinds(one.kinds);
    all_.push_back(std::move(one));
  }
  if (scope_.uniform) return;
  for (KindPlan& kinds : ParetoFront(space_)) {
    Alternative one;
    one.dense = std::all_of(kinds.begin(), kinds.end(),
                            [&](int kind) { return space_.kinds()[kind].dense; });
    one.uniform =
        std::all_of(kinds.begin(), kinds.end(), [&](int kind) { return kind == kinds[0]; });
    one.estimate = EstimateKinds(kinds);
    one.kinds = std::move(kinds);
    front_.push_back(all_.size());
    all_.push_back(std::move(one));
  }
}

Status Decider::AddPlan(const FormerPlan& plan, PlanThatRan* ran) {
  const PlanModel& choices = plan.choices;
  WEIR_ASSIGN_OR_RETURN(ran->plan, PlanOfChoices(space_, choices, plan.speedup));
  ran->plan.sync = plan.sync;
  ran->plan.dense = ran->plan.dense && !plan.sync.local();
  Alternative one;
  one.sync = plan.sync;
  one.dense = ran->plan.dense;
  one.excluded_by = SyncExclusion(space_.snapshot(), policy_, plan.sync);
  for (size_t b = 0; b < choices.size() && one.excluded_by.empty(); ++b) {
    one.excluded_by = space_.ExclusionOf(b, choices[b]);
  }
  one.estimate = EstimateOf(
      ran->plan, EvaluatePlan(space_, ran->plan, NetworkOf(space_.snapshot())), risk_.mean());
  ran->index = static_cast<int>(all_.size());
  all_.push_back(std::move(one));
  return OkStatus();
}

void Decider::AddIncumbent() {
  const PlanModel& choices = space_.snapshot().incumbent;
  if (choices.empty()) return;
  const Snapshot& snapshot = space_.snapshot();
  unpredictable_ = Message(
      AddPlan({choices, snapshot.layout, snapshot.speedup, snapshot.local.sync}, &incumbent_plan_));
  incumbent_ = incumbent_plan_.index;
  if (incumbent_ < 0) return;
  all_.back().uniform = std::all_of(choices.begin(), choices.end(), [&](const ChoiceModel& choice) {
    return choice == choices[0];
  });
}

void Decider::AddFormer() {
  const Snapshot& snapshot = space_.snapshot();
  if (snapshot.former.empty() || snapshot.former[0].choices.empty()) return;
  // One that has no prediction any more cannot come back.
  (void)AddPlan(snapshot.former[0], &former_).ok();
}

void Decider::ApplyDenseGuard() {
  for (size_t i = 0; i < all_.size(); ++i) {
    if (!all_[i].dense || all_[i].kinds.empty()) continue;
    if (dense_ < 0) {
      dense_ = static_cast<int>(i);
      continue;
    }
    const Alternative& best = all_[dense_];
    const bool allowed = all_[i].excluded_by.empty(), best_allowed = best.excluded_by.empty();
    if (allowed != best_allowed ? allowed : all_[i].estimate.step_s < best.estimate.step_s) {
      dense_ = static_cast<int>(i);
    }
  }
  if (dense_ >= 0 && all_[dense_].excluded_by.empty() && !scope_.may_be_slower_than_dense) {
    const double limit = kSlowerThanDenseMax * all_[dense_].estimate.step_s;
    for (Alternative& one : all_) {
      if (!one.dense && one.excluded_by.empty() && one.estimate.step_s > limit) {
        one.excluded_by = kSlowerThanDense;
      }
    }
  }
  for (Alternative& one : all_) one.estimate.feasible = one.excluded_by.empty();
}

void Decider::ScoreAll() {
  std::vector<CandidateEstimate> estimates;
  estimates.reserve(all_.size());
  for (const Alternative& one : all_) estimates.push_back(one.estimate);
  const std::vector<double> scores = objective_.Score(policy_, estimates);
  for (size_t i = 0; i < all_.size(); ++i) all_[i].score = scores[i];
}

bool Decider::Better(size_t a, size_t b) const {
  const Alternative &x = all_[a], &y = all_[b];
  if (x.score != y.score) return x.score < y.score;
  if (x.estimate.step_s != y.estimate.step_s) return x.estimate.step_s < y.estimate.step_s;
  if (x.estimate.gain != y.estimate.gain) return x.estimate.gain > y.estimate.gain;
  // Ties go to the plan that runs already, then to the simplest one.
  const bool x_runs = static_cast<int>(a) == incumbent_, y_runs = static_cast<int>(b) == incumbent_;
  if (x_runs != y_runs) return x_runs;
  if (x.uniform != y.uniform) return x.uniform;
  return a < b;
}

Status Decider::NothingFeasible() const {
  std::map<std::string, int> counts;
  for (const Alternative& one : all_) ++counts[one.excluded_by];
  std::string text;
  for (const auto& [bound, count] : counts) {
    text += StrCat(text.empty() ? "" : ", ", bound, " excludes ", count);
  }
  if (text.empty()) text = "no codec fits any collective at this world size";
  return FailedPrecondition(
      StrCat("policy ", policy_.name, " leaves no candidate out of ", all_.size(), ": ", text));
}

// Candidates that the policy's lists exclude do not compete with candidates that a bound excludes
// from those lists: a list is the binding constraint only where no bound is.
void Decider::FindBinding() {
  double best = decision_.chosen.objective * (1 - kTie);
  bool listed = false;
  for (const Alternative& one : all_) {
    const bool bound = !one.excluded_by.empty() && one.excluded_by != kSlowerThanDense &&
                       one.excluded_by.rfind("objective ", 0) != 0;
    if (!bound || !one.uniform || one.listed < listed) continue;
    const double than = one.listed && !listed ? decision_.chosen.objective * (1 - kTie) : best;
    if (!(one.score < than)) continue;
    best = one.score;
    listed = one.listed;
    decision_.facts.binding_constraint = one.excluded_by;
  }
}

CostedPlan Decider::Costed(size_t index) const {
  if (static_cast<int>(index) == incumbent_) return incumbent_plan_.plan;
  if (static_cast<int>(index) == former_.index) return former_.plan;
  CostedPlan plan = PlanOfKinds(space_, all_[index].kinds);
  plan.sync = all_[index].sync;
  plan.dense = plan.dense && !plan.sync.local();
  return plan;
}

/// The order of the ring is kept only for plans that use a ring, and the shares only for plans that
/// use shares.
PlanLayout Decider::LayoutFor(size_t index, const PlanModel& choices) const {
  PlanLayout layout = layout_;
  if (static_cast<int>(index) == incumbent_) layout = space_.snapshot().layout;
  if (static_cast<int>(index) == former_.index) layout = space_.snapshot().former[0].layout;
  if (!space_.WalksRing(choices)) layout.ring_order.clear();
  if (!space_.CutsByShares(choices)) layout.shard_shares.clear();
  return layout;
}

std::string Decider::Label(size_t index, const PlanModel& choices) const {
  std::string label = LabelOf(space_, choices);
  const PlanLayout layout = LayoutFor(index, choices);
  if (!layout.ring_order.empty()) label += " (ring " + OrderText(layout.ring_order) + ")";
  if (!layout.shard_shares.empty()) label += " (shards " + ShareText(layout.shard_shares) + ")";
  const std::string sync = SyncText(all_[index].sync);
  return sync.empty() ? label : label + ", " + sync;
}

bool Decider::SamePlan(size_t a, size_t b) const {
  const PlanModel x = Costed(a).choices, y = Costed(b).choices;
  return x == y && all_[a].sync == all_[b].sync && LayoutFor(a, x) == LayoutFor(b, y);
}

CandidatePlan Decider::Write(size_t index) const {
  const Alternative& one = all_[index];
  const CostedPlan plan = Costed(index);
  CandidatePlan out;
  out.label = Label(index, plan.choices);
  out.choices = plan.choices;
  out.layout = LayoutFor(index, plan.choices);
  out.sync = one.sync;
  out.step_s = one.estimate.step_s;
  out.step_deviation_s = StepDeviation(space_, plan);
  out.communication_s = one.estimate.communication_s;
  out.exposed_s = one.estimate.exposed_s;
  out.gain = one.estimate.gain;
  out.objective = one.score;
  out.feasible = one.excluded_by.empty();
  out.excluded_by = one.excluded_by;
  out.dense = one.dense;
  out.encoding = plan.encoding;
  return out;
}

void Decider::WriteTop(size_t chosen) {
  // The uniform alternatives, the chosen plan and the running one; only the first of those with
  // equal labels.
  std::vector<size_t> order;
  for (size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].uniform || i == chosen || static_cast<int>(i) == incumbent_) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return Better(a, b); });
  std::vector<size_t> must = {chosen};
  if (incumbent_ >= 0) must.push_back(incumbent_);
  if (dense_ >= 0) must.push_back(dense_);
  // Operators who run aggregators always see the cost with them, or why none is used.
  const auto is_leased = [&](size_t i) { return all_[i].leased; };
  auto leased = std::find_if(order.begin(), order.end(), [&](size_t i) {
    return all_[i].leased &&
           (all_[i].excluded_by.empty() || all_[i].excluded_by == kSlowerThanDense);
  });
  if (leased == order.end()) {
    leased = std::find_if(order.begin(), order.end(),
                          [&](size_t i) { return all_[i].leased && all_[i].listed; });
  }
  if (leased == order.end()) leased = std::find_if(order.begin(), order.end(), is_leased);
  if (leased != order.end()) must.push_back(*leased);
  size_t infeasible = 0;
  std::vector<CandidatePlan> optional, required;
  for (const size_t i : must) {
    CandidatePlan plan = Write(i);
    const bool seen = std::any_of(required.begin(), required.end(),
                                  [&](const auto& other) { return SameChoices(other, plan); });
    if (!seen) required.push_back(std::move(plan));
  }
  for (const size_t i : order) {
    if (required.size() + optional.size() >= kTopMax) break;
    if (!all_[i].excluded_by.empty() && ++infeasible > kTopMax / 3) continue;
    CandidatePlan plan;
    plan.choices = Costed(i).choices;
    plan.layout = LayoutFor(i, plan.choices);
    plan.sync = all_[i].sync;
    const auto same = [&](const CandidatePlan& other) { return SameChoices(other, plan); };
    if (std::any_of(required.begin(), required.end(), same)) continue;
    if (std::any_of(optional.begin(), optional.end(), same)) continue;
    optional.push_back(Write(i));
  }
  decision_.top = std::move(required);
  decision_.top.insert(decision_.top.end(), optional.begin(), optional.end());
  std::stable_sort(decision_.top.begin(), decision_.top.end(),
                   [](const auto& a, const auto& b) { return a.objective < b.objective; });
}

void Decider::WriteFront() {
  std::vector<size_t> order = front_;
  if (scope_.uniform) {
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].excluded_by.empty() && static_cast<int>(i) != incumbent_) order.push_back(i);
    }
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const CandidateEstimate &x = all_[a].estimate, &y = all_[b].estimate;
    return x.step_s != y.step_s ? x.step_s < y.step_s : x.gain > y.gain;
  });
  std::vector<size_t> kept;
  for (const size_t i : order) {
    if (kept.empty() || all_[i].estimate.gain > all_[kept.back()].estimate.gain) kept.push_back(i);
  }
  const size_t count = std::min(kept.size(), kFrontMax);
  for (size_t i = 0; i < count; ++i) {
    // Evenly spread, both ends included.
    const size_t at = count > 1 ? i * (kept.size() - 1) / (count - 1) : 0;
    decision_.front.push_back(Write(kept[at]));
  }
}

void Decider::WriteFacts(size_t chosen) {
  const Snapshot& snapshot = space_.snapshot();
  DecisionFacts& facts = decision_.facts;
  facts.switched = decision_.switched;
  facts.world = snapshot.world;
  const Measured& bandwidth = snapshot.bandwidth_bytes_per_s;
  if (bandwidth.value > 0) facts.bandwidth_deviation = bandwidth.deviation / bandwidth.value;
  facts.latency_s = snapshot.latency_s.value;
  facts.bandwidth_bytes_per_s = snapshot.bandwidth_bytes_per_s.value;
  facts.chosen = FactsOf(chosen);
  if (incumbent_ >= 0) facts.incumbent = FactsOf(static_cast<size_t>(incumbent_));
  if (dense_ >= 0) facts.dense_step_s = all_[dense_].estimate.step_s;
  if (scope_.by_progress) {
    facts.progress_exponent = risk_.mean().curve.exponent;
    facts.progress_deviation = risk_.deviation();
    facts.dense_probability = DenseProbability(chosen, 1);
  }
  const PlanLayout& layout = decision_.chosen.layout;
  if (!layout.ring_order.empty()) facts.ring = DescribeRing(snapshot, layout.ring_order);
  if (!layout.shard_shares.empty()) facts.shards = DescribeShards(snapshot, layout.shard_shares);
  facts.local = DescribeLocal(space_, policy_, risk_, Costed(chosen));
}

StatusOr<Decision> Decider::Run() {
  AddAlternatives();
  AddLocal();
  AddIncumbent();
  AddFormer();
  ApplyDenseGuard();
  ScoreAll();
  std::vector<size_t> ranked;
  for (size_t i = 0; i < all_.size(); ++i) {
    const bool comes_back = static_cast<int>(i) == former_.index;
    if (all_[i].excluded_by.empty() && !comes_back) ranked.push_back(i);
  }
  if (ranked.empty()) return NothingFeasible();
  std::sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) { return Better(a, b); });
  const size_t chosen = Choose(ranked);
  decision_.switched = static_cast<int>(chosen) != incumbent_;
  decision_.chosen = Write(chosen);
  if (incumbent_ >= 0) decision_.incumbent = Write(incumbent_);
  if (dense_ >= 0) decision_.dense = Write(dense_);
  WriteFacts(chosen);
  FindBinding();
  WriteTop(chosen);
  WriteFront();
  decision_.digest = DigestOf(decision_);
  return std::move(decision_);
}

StatusOr<Decision> Decide(const Snapshot& snapshot, const Policy& policy) {
  WEIR_RETURN_IF_ERROR(CheckSnapshot(snapshot));
  WEIR_ASSIGN_OR_RETURN(const Objective* objective, Objectives().Find(policy.objective));
  WEIR_RETURN_IF_ERROR(objective->Validate(policy));
  const CandidateScope scope = objective->Scope(policy);
  const ExponentBelief belief =
      BeliefOf(snapshot.progress, policy.progress_exponent, policy.progress_deviation);
  const ProgressRisk risk(*objective, policy, belief, snapshot.progress_gain_seen,
                          scope.by_progress, SyncCostOf(snapshot, policy));
  const LayoutChoice next = ChooseLayout(snapshot);
  WEIR_ASSIGN_OR_RETURN(const CandidateSpace space,
                        CandidateSpace::Build(snapshot, policy, scope, next.speedup));
  return Decider(space, policy, *objective, scope, next.layout, risk).Run();
}

}  // namespace weir
