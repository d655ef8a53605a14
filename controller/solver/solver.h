// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decide: the pure function from what is known to what should run.

#include <string>
#include <vector>

#include "controller/model/snapshot.h"
#include "controller/policy/policy.h"
#include "datapath/base/status.h"

namespace weir {

/// One whole-job alternative with its predicted consequences.
struct CandidatePlan {
  std::string label;  // "top_k 0.01 over sparse_all_gather", "mixed" for differing buckets
  PlanModel choices;
  PlanLayout layout;  // parts that the choices' collectives do not go by are empty
  double step_s = 0, step_deviation_s = 0;
  double communication_s = 0;  // sum over buckets of encode + network + decode
  double exposed_s = 0;
  double gain = 1;       // dimension-weighted
  double objective = 0;  // lower is better
  bool feasible = true;
  std::string excluded_by;
  bool dense = false;
};

struct Decision {
  bool switched = false;             // false: keep the incumbent
  CandidatePlan chosen;              // what should run from now on
  CandidatePlan incumbent;           // as predicted on the same snapshot; empty choices: none
  CandidatePlan dense;               // best uncompressed alternative
  std::vector<CandidatePlan> top;    // best candidates, ascending objective, at most 12
  std::vector<CandidatePlan> front;  // Pareto front of (step_s, gain), ascending step_s, at most 64
  std::string binding_constraint;  // the policy bound that excluded a better candidate; empty: none
  std::string ring;                // what the chosen order of the ring avoids; empty: ascending
  std::string shards;              // who owns how much of a bucket, and why; empty: all alike
  std::string reason;              // one sentence with numbers
  std::string digest;              // 16 hexadecimal digits over everything above
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
