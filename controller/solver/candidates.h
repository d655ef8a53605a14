// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every alternative that a snapshot offers: one "kind" is a (codec, ratio, collective); each kind
// is costed once per bucket, and any plan is then evaluated by looking costs up.

#include <string>
#include <vector>

#include "controller/model/cost_model.h"
#include "controller/model/timeline.h"
#include "controller/objective/objective.h"
#include "controller/policy/policy.h"
#include "controller/solver/solver.h"

namespace weir {

struct Kind {
  const CodecModel* codec = nullptr;
  const CollectiveModel* collective = nullptr;
  int collective_index = 0;  // in Snapshot::collectives
  double ratio = 1;
  bool dense = false;  // loses nothing, and needs no aggregator
  bool listed = true;  // the policy's lists and objective name it; bounds may yet exclude it
  // The bound that excludes it everywhere: the policy's lists come before a missing lease or
  // another bound; empty: allowed.
  std::string excluded_by = {};
};

/// The costs of one kind on one bucket.
struct BucketOption {
  BucketCost cost;
  std::string excluded_by;             // the bound that excludes it on this bucket; empty: allowed
  double encode_s = 0, network_s = 0;  // at the snapshot's network
};

/// Immutable after Build. Holds pointers to the snapshot and the policy, which must
/// outlive it.
class CandidateSpace {
 public:
  /// `speedup`: of the layout that candidates have, see PredictBucket. kNotFound: the
  /// policy names a codec or collective that the job does not offer.
  static StatusOr<CandidateSpace> Build(const Snapshot& snapshot, const Policy& policy,
                                        const CandidateScope& scope,
                                        const LayoutSpeedup& speedup = {});

  const Snapshot& snapshot() const { return *snapshot_; }
  /// In canonical order: codecs and collectives as the snapshot lists them, ratios descending.
  const std::vector<Kind>& kinds() const { return kinds_; }
  const BucketOption& option(size_t bucket, size_t kind) const { return options_[bucket][kind]; }
  size_t bucket_count() const { return options_.size(); }
  /// Why `kind` may not run on every bucket; empty: it may.
  std::string UniformExclusion(size_t kind) const;

  ChoiceModel ChoiceOf(size_t kind) const;
  /// The bound that excludes any choice, on or off the grid, on this bucket; empty: allowed.
  std::string ExclusionOf(size_t bucket, const ChoiceModel& choice) const;
  /// Costs of any choice, on or off the grid, under a layout of that speed. kNotFound: not offered,
  /// or outside the codec's range.
  StatusOr<BucketCost> CostOf(size_t bucket, const ChoiceModel& choice,
                              const LayoutSpeedup& speedup) const;
  /// Whether any choice goes around the ring.
  bool WalksRing(const PlanModel& choices) const;
  /// Whether any choice cuts by the shares of a layout.
  bool CutsByShares(const PlanModel& choices) const;
  int CollectiveIndex(const std::string& name) const;
  double elements_total() const { return elements_total_; }

 private:
  /// Whether any choice's collective has `trait`.
  template <typename Trait>
  bool AnyCollective(const PlanModel& choices, const Trait& trait) const;
  void AddKinds();
  void CostKinds();
  std::string ListExclusion(const Kind& kind) const;
  std::string BoundExclusion(const Kind& kind) const;
  void Exclude(Kind* kind) const;
  std::string CostExclusion(const Kind& kind, size_t bucket, const BucketCost& cost) const;

  const Snapshot* snapshot_ = nullptr;
  const Policy* policy_ = nullptr;
  CandidateScope scope_;
  LayoutSpeedup speedup_;
  std::vector<Placement> placements_;         // by collective of the snapshot
  std::vector<double> residual_corrections_;  // per bucket: measured over predicted residual
  std::vector<Kind> kinds_;
  std::vector<std::vector<BucketOption>> options_;  // [bucket][kind]
  double elements_total_ = 0;
};

/// A plan with its costs looked up, ready to be evaluated under several networks.
struct CostedPlan {
  PlanModel choices;
  std::vector<BucketCost> costs;
  std::vector<int> collective_indices;
  double gain = 1;
  bool dense = true;
  EncodingPlace encoding = {};
  SyncModel sync = {};
};

struct PlanEstimate {
  StepTimes times;
  std::vector<double> network_s_by_collective;
  double codec_deviation_s = 0;
};

/// Runs the timeline with the snapshot's buckets under `network`.
PlanEstimate EvaluatePlan(const CandidateSpace& space, const CostedPlan& plan,
                          const NetworkState& network);

CostedPlan PlanOfKinds(const CandidateSpace& space, const std::vector<int>& kinds);

/// The costs of any plan under a layout of that speed. kNotFound as CandidateSpace::CostOf.
StatusOr<CostedPlan> PlanOfChoices(const CandidateSpace& space, const PlanModel& choices,
                                   const LayoutSpeedup& speedup);

/// "top_k 0.01 over sparse_all_gather", "dense over ring".
std::string LabelOf(const ChoiceModel& choice, bool uses_ratio);
/// The label of a whole plan; differing buckets: "mixed (mostly <label of most elements>)".
std::string LabelOf(const CandidateSpace& space, const PlanModel& plan);

}  // namespace weir
