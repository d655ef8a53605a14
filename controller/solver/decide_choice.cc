// SPDX-License-Identifier: Apache-2.0
// Whether the best alternative is worth a switch, and if not, what is.

#include <algorithm>

#include "controller/model/held_change.h"
#include "controller/solver/decider.h"
#include "controller/solver/switching.h"

namespace weir {
namespace {

// How many alternatives may be tried for confidence, best first.
constexpr int kChallengersMax = 8;
// How much more doubt a plan that runs may leave than one that begins, so that none begins and ends
// in turn.
constexpr double kDoubtFactor = 2;

}  // namespace

size_t Decider::Because(DecisionRule rule, size_t chosen) {
  decision_.facts.rule = rule;
  return chosen;
}

PlanFacts Decider::FactsOf(size_t index) const {
  const CandidateEstimate& estimate = all_[index].estimate;
  const CostedPlan plan = Costed(index);
  return {Label(index, plan.choices), estimate.step_s, estimate.gain, all_[index].dense,
          plan.encoding};
}

size_t Decider::ChooseFirst(const std::vector<size_t>& ranked) {
  const size_t best = ranked[0];
  const bool judged =
      !all_[best].dense && !scope_.immediate && dense_ >= 0 && all_[dense_].excluded_by.empty();
  if (!judged) return Because(DecisionRule::kFirstPlan, best);
  const auto dense = static_cast<size_t>(dense_);
  // The best is tried first; each later one is gentler than all before it, and better by enough.
  double gain = -1;
  int tried = 0;
  for (const size_t i : ranked) {
    if (!(all_[i].score < (1 - policy_.improvement_min) * all_[dense].score)) break;
    if (KeptBy(i) <= gain || tried++ >= kChallengersMax) continue;
    const double sure = ImprovementProbability(space_, objective_, policy_, risk_.points(),
                                               Costed(i), Costed(dense));
    if (sure >= policy_.confidence && IsTrusted(i)) return Because(DecisionRule::kFirstPlan, i);
    gain = KeptBy(i);
    if (tried > 1) continue;
    decision_.facts.alternative = Label(i, Costed(i).choices);
    decision_.facts.probability = std::min(sure, DenseProbability(i, 1));
    decision_.facts.probability_min = policy_.confidence;
  }
  return Because(tried == 0 ? DecisionRule::kFirstPlan : DecisionRule::kFirstPlanDense, dense);
}

double Decider::DenseProbability(size_t index, double factor) const {
  const bool known = risk_.learns() && dense_ >= 0 && all_[dense_].excluded_by.empty();
  if (!known || all_[index].dense) return 1;
  return risk_.Probability(all_[index].estimate, all_[dense_].estimate, factor);
}

bool Decider::IsTrusted(size_t index) const {
  return DenseProbability(index, 1) >= policy_.confidence;
}

bool Decider::IsWorthItsLoss(size_t index) const {
  if (all_[index].dense || dense_ < 0 || !all_[dense_].excluded_by.empty()) return true;
  return all_[index].score < (1 - policy_.improvement_min) * all_[dense_].score;
}

// The best that surely makes more progress than dense, where the objective minds; else the best.
size_t Decider::FirstTrusted(const std::vector<size_t>& ranked) const {
  const auto first = std::find_if(ranked.begin(), ranked.end(), [&](size_t i) {
    return scope_.immediate || (IsTrusted(i) && Held(i) == nullptr);
  });
  return first == ranked.end() ? ranked[0] : *first;
}

// The best that is gentler than what runs, and better than dense surely and by enough; dense
// itself, if there is none.
size_t Decider::ChooseGentler(const std::vector<size_t>& ranked) {
  const double gain = KeptBy(static_cast<size_t>(incumbent_));
  const double limit = (1 - policy_.improvement_min) * all_[dense_].score;
  for (const size_t i : ranked) {
    if (!(all_[i].score < limit)) break;
    if (KeptBy(i) > gain && IsTrusted(i) && Held(i) == nullptr) return i;
  }
  return static_cast<size_t>(dense_);
}

const HeldChange* Decider::Held(size_t index) const {
  const Snapshot& snapshot = space_.snapshot();
  if (snapshot.held.empty() || incumbent_ < 0) return nullptr;
  const PlanModel choices = Costed(index).choices;
  const PlanLayout from = LayoutFor(static_cast<size_t>(incumbent_), snapshot.incumbent);
  const PlanLayout to = LayoutFor(index, choices);
  const HeldChange change =
      DescribeChange(snapshot.buckets, {snapshot.incumbent, from, snapshot.local.sync},
                     {choices, to, all_[index].sync});
  for (const HeldChange& held : snapshot.held) {
    if (IsAlike(held, change)) return &held;
  }
  return nullptr;
}

// Measurement has the last word: what ran before was faster than the running plan is, whatever is
// predicted of both.
size_t Decider::ChooseFormer(const std::vector<size_t>& ranked) {
  const Snapshot& snapshot = space_.snapshot();
  const HeldChange failed = DescribeChange(
      snapshot.buckets,
      {snapshot.former[0].choices, snapshot.former[0].layout, snapshot.former[0].sync},
      {snapshot.incumbent, snapshot.layout, snapshot.local.sync});
  const auto held = std::find_if(snapshot.held.begin(), snapshot.held.end(),
                                 [&](const HeldChange& one) { return IsAlike(one, failed); });
  const auto back_to = [&](int index) {
    if (held != snapshot.held.end()) {
      decision_.facts.failures = held->failures;
      decision_.facts.held_s = held->held_s;
    }
    return Because(DecisionRule::kPromiseBroken, static_cast<size_t>(index));
  };
  const auto may_run = [&](int index) {
    if (index < 0 || SamePlan(static_cast<size_t>(index), static_cast<size_t>(incumbent_))) {
      return false;
    }
    const std::string& excluded_by = all_[static_cast<size_t>(index)].excluded_by;
    return excluded_by.empty() || excluded_by == kSlowerThanDense;
  };
  if (may_run(former_.index)) return back_to(former_.index);
  return may_run(dense_) ? back_to(dense_) : ChooseAgainst(ranked);
}

size_t Decider::ChooseAgainst(const std::vector<size_t>& ranked) {
  const Alternative& runs = all_[incumbent_];
  const bool too_slow = runs.excluded_by == kSlowerThanDense;
  const double kept = DenseProbability(static_cast<size_t>(incumbent_), kSlowerThanDenseMax);
  const bool doubtful = kept < std::max(0.5, 1 - kDoubtFactor * (1 - policy_.confidence));
  if (SamePlan(ranked[0], incumbent_) && !doubtful) {
    return Because(DecisionRule::kNothingBetter, incumbent_);
  }
  if (!runs.excluded_by.empty() && !too_slow) {
    decision_.facts.excluded_by = runs.excluded_by;
    return Because(DecisionRule::kIncumbentExcluded, FirstTrusted(ranked));
  }
  if (scope_.immediate) return Because(DecisionRule::kFixed, ranked[0]);
  if (doubtful) {
    decision_.facts.probability = kept;
    decision_.facts.probability_min = policy_.confidence;
    return Because(DecisionRule::kDoubtful, ChooseGentler(ranked));
  }
  return ChooseSurelyBetter(ranked, too_slow);
}

size_t Decider::ChooseSurelyBetter(const std::vector<size_t>& ranked, bool too_slow) {
  const Alternative& runs = all_[incumbent_];
  const Snapshot& snapshot = space_.snapshot();
  const double improvement = too_slow ? 0 : policy_.improvement_min;
  const double dwell = DwellSeconds(policy_, snapshot.recent_switches);
  const bool waits = snapshot.seconds_since_switch < dwell && snapshot.trigger != "policy" &&
                     snapshot.trigger != "rollback";
  // The facts about the first alternative that was refused.
  DecisionFacts refused = decision_.facts;
  const auto refuse = [&](DecisionFacts facts) {
    if (refused.rule == DecisionRule::kNone) refused = std::move(facts);
  };
  int tried = 0;
  for (const size_t i : ranked) {
    DecisionFacts facts = decision_.facts;
    facts.alternative = Label(i, Costed(i).choices);
    facts.promised = runs.score > 0 ? 1 - all_[i].score / runs.score : 0;
    const bool toward_dense = all_[i].dense && !runs.dense;
    if (!(all_[i].score < (1 - improvement) * runs.score) || tried >= kChallengersMax) {
      facts.rule = DecisionRule::kTooLittleBetter;
      facts.promised_min = improvement;
      refuse(std::move(facts));
      break;
    }
    if (!IsWorthItsLoss(i)) continue;  // dense follows in the ranking
    if (const HeldChange* held = Held(i); held != nullptr) {
      facts.rule = DecisionRule::kHeld;
      facts.failures = held->failures;
      facts.held_s = held->held_s;
      refuse(std::move(facts));
      continue;
    }
    ++tried;
    if (waits && !toward_dense) {
      facts.rule = DecisionRule::kDwell;
      facts.since_switch_s = snapshot.seconds_since_switch;
      facts.dwell_s = dwell;
      refuse(std::move(facts));
      continue;
    }
    facts.probability = ImprovementProbability(space_, objective_, policy_, risk_.points(),
                                               Costed(i), incumbent_plan_.plan);
    facts.probability = std::min(facts.probability, DenseProbability(i, 1));
    facts.probability_min = toward_dense || too_slow ? 0.5 : policy_.confidence;
    if (facts.probability >= facts.probability_min && IsTrusted(i)) {
      decision_.facts = std::move(facts);
      decision_.facts.alternative.clear();
      return Because(DecisionRule::kBetter, i);
    }
    facts.rule = DecisionRule::kUnsure;
    refuse(std::move(facts));
  }
  decision_.facts = std::move(refused);
  return static_cast<size_t>(incumbent_);
}

size_t Decider::Choose(const std::vector<size_t>& ranked) {
  if (incumbent_ >= 0 && !space_.snapshot().former.empty()) return ChooseFormer(ranked);
  if (incumbent_ >= 0) return ChooseAgainst(ranked);
  if (unpredictable_.empty()) return ChooseFirst(ranked);
  decision_.facts.excluded_by = unpredictable_;
  return Because(DecisionRule::kIncumbentUnpredictable, FirstTrusted(ranked));
}

}  // namespace weir
