// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decide: the pure function from the measured facts to the plan that should run.

#include <optional>
#include <string>
#include <vector>

#include "controller/model/ring_choice.h"
#include "controller/model/shard_choice.h"
#include "controller/model/snapshot.h"
#include "controller/policy/policy.h"
#include "datapath/base/status.h"

namespace weir {

/// The place at which ranks encode most of a plan's elements, and what its copies between devices
/// and the host take in a step.
struct EncodingPlace {
  CodecPlace place = CodecPlace::kUnknown;
  double copies_s = 0;
  friend bool operator==(const EncodingPlace&, const EncodingPlace&) = default;
};

/// One whole-job alternative with its predicted consequences.
struct CandidatePlan {
  std::string label;  // "top_k 0.01 over sparse_all_gather", "mixed" for differing buckets
  PlanModel choices;
  PlanLayout layout;    // parts that the choices' collectives do not go by are empty
  SyncModel sync = {};  // with local steps, times and progress are of one step of the optimiser
  double step_s = 0, step_deviation_s = 0;
  double communication_s = 0;  // sum over buckets of encode + network + decode
  double exposed_s = 0;
  double gain = 1;       // dimension-weighted
  double objective = 0;  // lower is better
  EncodingPlace encoding = {};
  bool feasible = true;
  std::string excluded_by;
  bool dense = false;
};

/// The facts that determined a decision.
enum class DecisionRule {
  kNone,
  kFirstPlan,          // nothing ran before
  kFirstPlanDense,     // nothing ran before, and the alternative is not surely better than dense
  kNothingBetter,      // the running plan has the best prediction
  kBetter,             // the alternative is better by enough, with enough confidence
  kTooLittleBetter,    // the alternative promises less than required
  kDwell,              // the last switch was too recent
  kUnsure,             // the alternative is better, but with too little confidence
  kFixed,              // the objective allows only this plan
  kIncumbentExcluded,  // a bound excludes the running plan
  kIncumbentUnpredictable,  // the running plan cannot continue
  kDoubtful,                // the running plan is not surely better than dense in progress
  kPromiseBroken,           // the running plan did not keep its promise: the one before comes back
  kHeld,                    // a change like the alternative failed lately
};

/// The facts of a plan that the text of a decision mentions.
struct PlanFacts {
  std::string label;
  double step_s = 0, gain = 1;
  bool dense = false;
  EncodingPlace encoding = {};
  friend bool operator==(const PlanFacts&, const PlanFacts&) = default;
};

/// The changes that local steps make, as predicted.
struct LocalFacts {
  SyncModel sync;                       // of the chosen plan
  double every_step_s = 0;              // a step with the same choices that synchronises every time
  double cost = 0, cost_deviation = 0;  // share of a step's progress that local steps lose
  double signal_share = 0;              // see SignalShare; 0: not known
  // The policy allows local steps, and this rank cannot make them; -1: none.
  int unable_rank = -1;
  friend bool operator==(const LocalFacts&, const LocalFacts&) = default;
};

/// Why a decision came out as it did, in numbers; ReasonText puts it into words.
struct DecisionFacts {
  DecisionRule rule = DecisionRule::kNone;
  bool switched = false;
  int world = 1;
  double latency_s = 0, bandwidth_bytes_per_s = 0;
  double bandwidth_deviation = 0;  // one standard deviation, as a share
  PlanFacts chosen;
  std::optional<PlanFacts> incumbent;  // as predicted on the same snapshot
  double dense_step_s = 0;             // 0: nothing dense is offered
  // The alternative that the rule is about; empty: the chosen one. Shares of the running plan's
  // objective that it promises and must promise to save, and how probable it is and must be that it
  // is better.
  std::string alternative;
  double promised = 0, promised_min = 0;
  double probability = 0, probability_min = 0;
  double since_switch_s = 0, dwell_s = 0;  // kDwell
  // For objectives that use progress: the exponent of the gain by the losses, and the probability
  // that the chosen plan makes faster progress than dense.
  double progress_exponent = 0, progress_deviation = 0, dense_probability = 0;
  // kPromiseBroken, kHeld: how often such a change failed, and how long it is not made again.
  int failures = 0;
  double held_s = 0;
  std::string excluded_by;         // kIncumbentExcluded, kIncumbentUnpredictable: by or for what
  std::string binding_constraint;  // the bound that excluded a better candidate; empty: none
  RingFacts ring;
  ShardFacts shards;
  LocalFacts local;
  friend bool operator==(const DecisionFacts&, const DecisionFacts&) = default;
};

struct Decision {
  bool switched = false;             // false: keep the incumbent
  CandidatePlan chosen;              // what should run from now on
  CandidatePlan incumbent;           // as predicted on the same snapshot; empty choices: none
  CandidatePlan dense;               // best uncompressed alternative
  std::vector<CandidatePlan> top;    // best candidates, ascending objective, at most 12
  std::vector<CandidatePlan> front;  // Pareto front of (step_s, gain), ascending step_s, at most 64
  DecisionFacts facts;               // why
  std::string digest;                // 16 hexadecimal digits over everything above but words
};

/// Chooses under `policy`. Pure and deterministic: equal inputs give bit-identical results on every
/// machine of one architecture, shares of shards with one build of their solver (shard_shares.h).
/// Thread-safe. kFailedPrecondition when the snapshot has no bucket or
/// no feasible candidate (says which bound excludes all); kNotFound: unknown objective, codec or
/// collective in the policy. Complexity: buckets x candidates x Pareto labels.
StatusOr<Decision> Decide(const Snapshot& snapshot, const Policy& policy);

/// Canonical JSON of a snapshot and back; Decide(Parse(Serialize(s))) equals Decide(s).
std::string SerializeSnapshot(const Snapshot& snapshot);
StatusOr<Snapshot> ParseSnapshot(std::string_view json);

}  // namespace weir
