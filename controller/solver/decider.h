// SPDX-License-Identifier: Apache-2.0
#pragma once
// One decision as it takes shape; only decide.cc and decide_choice.cc include it.

#include <string>
#include <vector>

#include "controller/objective/objective.h"
#include "controller/policy/policy.h"
#include "controller/solver/candidates.h"
#include "controller/solver/pareto.h"
#include "controller/solver/progress_risk.h"
#include "controller/solver/solver.h"

namespace weir {

inline constexpr double kSlowerThanDenseMax = 1.02;
inline constexpr char kSlowerThanDense[] = "never slower than dense";

/// One whole-job alternative before it is written out.
struct Alternative {
  KindPlan kinds;  // empty for a plan that ran
  SyncModel sync = {};
  CandidateEstimate estimate;
  double score = 0;
  std::string excluded_by;
  bool dense = false;
  bool uniform = false;
  bool leased = false;  // uniform, over a collective that needs a lease
  bool listed = true;   // uniform: the policy's lists name it
};

/// A plan that runs or ran, off the grid; its index into the alternatives, -1: none, or not
/// predictable.
struct PlanThatRan {
  CostedPlan plan;
  int index = -1;
};

/// The decision as it takes shape.
class Decider {
 public:
  Decider(const CandidateSpace& space, const Policy& policy, const Objective& objective,
          const CandidateScope& scope, const PlanLayout& layout, const ProgressRisk& risk)
      : space_(space),
        policy_(policy),
        objective_(objective),
        scope_(scope),
        layout_(layout),
        risk_(risk) {}

  StatusOr<Decision> Run();

 private:
  std::vector<BucketTimes> TimesOf(const KindPlan& kinds) const;
  CandidateEstimate EstimateKinds(const KindPlan& kinds) const;
  void AddAlternatives();
  /// Alternatives with local steps, if the policy allows them and the ranks can make them: with the
  /// period that scores best for each of the alternatives so far, and a quarter of it.
  void AddLocal();
  CandidateEstimate Locally(const CandidateEstimate& every_step, const SyncTimes& times,
                            const SyncModel& sync) const;
  /// The better of overlapping a synchronisation with steps, and waiting for it.
  CandidateEstimate BestOverlap(const CandidateEstimate& every_step, const SyncTimes& times,
                                uint32_t every) const;
  void AddIncumbent();
  void AddFormer();
  /// Costs the choices of a plan that ran.
  Status AddPlan(const FormerPlan& plan, PlanThatRan* ran);
  double ScoreOne(const CandidateEstimate& estimate) const;
  /// The share of the signal that an alternative keeps, by its gain and by the steps between
  /// synchronisations. Gentler ones keep more.
  double KeptBy(size_t index) const;
  void ApplyDenseGuard();
  void ScoreAll();
  /// The better feasible alternative comes first.
  bool Better(size_t a, size_t b) const;
  Status NothingFeasible() const;
  void FindBinding();

  CandidatePlan Write(size_t index) const;
  CostedPlan Costed(size_t index) const;
  void WriteTop(size_t chosen);
  void WriteFront();

  /// Returns the index of the alternative that should run, and fills in the facts behind that.
  size_t Choose(const std::vector<size_t>& ranked);
  size_t ChooseFirst(const std::vector<size_t>& ranked);
  size_t ChooseAgainst(const std::vector<size_t>& ranked);
  size_t ChooseFormer(const std::vector<size_t>& ranked);
  /// Why the change to `index` is not made now; null: nothing speaks against it.
  const HeldChange* Held(size_t index) const;
  bool SamePlan(size_t a, size_t b) const;
  PlanLayout LayoutFor(size_t index, const PlanModel& choices) const;
  std::string Label(size_t index, const PlanModel& choices) const;
  size_t ChooseSurelyBetter(const std::vector<size_t>& ranked, bool too_slow);
  /// P(`index` makes faster progress than `factor` times dense), if progress alone is uncertain; 1
  /// where nothing dense may run.
  double DenseProbability(size_t index, double factor) const;
  bool IsTrusted(size_t index) const;
  /// Whether the alternative is dense, or better by enough than dense where dense may run.
  bool IsWorthItsLoss(size_t index) const;
  size_t FirstTrusted(const std::vector<size_t>& ranked) const;
  size_t ChooseGentler(const std::vector<size_t>& ranked);
  size_t Because(DecisionRule rule, size_t chosen);
  PlanFacts FactsOf(size_t index) const;
  void WriteFacts(size_t chosen);

  const CandidateSpace& space_;
  const Policy& policy_;
  const Objective& objective_;
  const CandidateScope& scope_;
  const PlanLayout& layout_;  // of all but the incumbent
  const ProgressRisk& risk_;
  std::vector<Alternative> all_;
  std::vector<size_t> front_;  // indices into all_
  PlanThatRan incumbent_plan_, former_;
  int incumbent_ = -1;         // incumbent_plan_.index
  int dense_ = -1;             // best dense alternative
  std::string unpredictable_;  // why the incumbent has no prediction
  Decision decision_;
};

}  // namespace weir
