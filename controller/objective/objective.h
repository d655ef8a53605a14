// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Objective interface: what "best" means. Implementations live in builtin/, one file each; a
// name in a policy picks one.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "controller/model/sync_model.h"
#include "controller/policy/policy.h"
#include "datapath/base/registry.h"
#include "datapath/base/status.h"

namespace weir {

/// The predicted consequences of one whole-job alternative: all that an objective may look at.
struct CandidateEstimate {
  double step_s = 0;
  double exposed_s = 0;        // communication that nothing hides
  double communication_s = 0;  // encode + network + decode, overlap ignored
  double gain = 1;             // dimension-weighted, in [0, 1]
  double progress = 1;   // of a step, in dense ones, that a step of that gain makes; in [0, 1]
  double ratio = 1;      // of a uniform plan; 1 otherwise
  SyncModel sync = {};   // how often ranks synchronise; times are of one step of the optimiser
  bool feasible = true;  // within every bound; infeasible ones are scored for display only
};

/// Which alternatives an objective wants to see. The default is everything the policy allows.
struct CandidateScope {
  struct Only {
    std::string codec, collective;
    double ratio = 1;
    int bits = 0;
  };
  std::optional<Only> only;    // exactly this choice for every bucket
  std::string error_model;     // only lossy codecs of this error model; empty: all
  std::vector<double> ratios;  // replaces the solver's grid unless empty
  bool uniform = false;        // one choice for all buckets; no per-bucket programme
  bool immediate = false;      // switch whenever the best changes: no confidence, no dwell
  bool by_progress = false;    // scores go by the progress of a step
  bool may_be_slower_than_dense = false;  // lifts the rule "at most 1.02 times dense"
};

struct ObjectiveTraits {
  std::string name;
  std::string summary;  // one line with its source
};

/// Stateless, pure, deterministic and thread-safe.
class Objective {
 public:
  virtual ~Objective() = default;
  virtual const ObjectiveTraits& Traits() const = 0;

  /// kInvalidArgument when the policy lacks what this objective needs.
  virtual Status Validate(const Policy& policy) const;
  virtual CandidateScope Scope(const Policy& policy) const;

  /// One finite number per candidate, lower is better: not increasing in gain and progress, not
  /// decreasing in step_s and exposed_s, so that the Pareto front of (step time, gain) holds the
  /// optimum. Only a uniform scope may let scores depend on the other candidates.
  virtual std::vector<double> Score(const Policy& policy,
                                    std::span<const CandidateEstimate> candidates) const = 0;
};

/// Every objective of this build: builtin_objectives.def. Thread-safe.
const Registry<Objective>& Objectives();

/// Whether the policy names a known objective and gives what it needs. kNotFound lists the valid
/// names; kInvalidArgument.
Status CheckObjective(const Policy& policy);

/// ParsePolicy, and then the objective's own checks: a known name and its parameters.
/// kInvalidArgument names `origin`, line and key, and lists the valid names.
StatusOr<Policy> ReadPolicy(std::string_view source, std::string_view origin,
                            const PolicyNames* known = nullptr);

}  // namespace weir
