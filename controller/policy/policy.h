// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operator's objective and bounds, parsed from strict YAML or JSON.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// A job's labels, as its ranks say.
using JobLabels = std::map<std::string, std::string>;
/// The label that Policy::namespaces selects.
inline constexpr char kNamespaceLabel[] = "namespace";

/// A rule for processes that run NCCL with libnccl-weir.so; see NcclRule in rank.proto.
struct NcclRule {
  std::string function = "all_reduce", algorithm, protocol;
  uint64_t bytes_min = 0, bytes_end = 0;  // bytes_end 0: no end
  int ranks = 0;                          // of the communicator; 0: any
  int channels = 0;                       // 0: as NCCL chooses
  uint64_t chunk_bytes = 0;               // 0: as NCCL chooses

  bool operator==(const NcclRule&) const = default;
};

struct Policy {
  std::string name = "default";
  // Which jobs it rules: those that match all of these. If several policies match a job, the one of
  // the highest priority rules it; see PolicySet.
  std::vector<std::string> jobs = {"*"};        // shell patterns of their names
  std::vector<std::string> namespaces = {"*"};  // and of their namespaces
  JobLabels labels = {};                        // label to pattern of its value
  int priority = 0;
  std::string objective = "time_to_accuracy";  // registered objective
  // Objective parameters.
  // psi(gain) = gain^exponent: what is believed of the exponent before losses say more, and how far
  // it may be off (one standard deviation; 0: it is not learnt).
  double progress_exponent = 1, progress_deviation = 0.2;
  double delay_target_s = 0;     // delay_target: exposed communication per step
  double moo_weight_time = 0.6;  // moo: published weights
  std::string fixed_codec = "identity", fixed_collective = "ring";  // fixed
  double fixed_ratio = 1;
  int fixed_bits = 0;  // 0: the codec's default
  // Bounds.
  double ratio_min = 0.001, ratio_max = 1;
  // The default is a floor under what nearly all training bears, for gradients that no codec fits.
  double gain_min = 0.01;
  double residual_ratio_max = 0;         // 0: none
  std::vector<std::string> codecs;       // allowed; empty: all
  std::vector<std::string> collectives;  // allowed; empty: all
  // Switching.
  double dwell_min_s = 1;         // between switches, unless toward dense
  double improvement_min = 0.05;  // relative gain in the objective that a switch must promise
  double confidence = 0.9;        // probability that it is an improvement
  int flaps_max = 6;              // switches per flap window before dwell doubles
  double flap_window_s = 300;
  double lease_s = 0;  // controller lost longer: ranks turn dense; 0: keep the plan
  // Losses behind the fitted curve by more than this share for so many steps: a gentler plan.
  double loss_tolerance = 0.05;  // 0: no such guard
  int loss_patience_steps = 100;
  // Whether a few dense steps may be run now and then to measure what a plan saves.
  std::string dense_checks = "auto";  // or "never"
  // Local steps. 1: gradients are summed in every step, whatever the network.
  int sync_every_max = 1;
  // Progress that is believed to be lost for each e-fold of steps between synchronisations, before
  // losses say more, and how far that may be off (one standard deviation).
  double sync_cost = 0.05, sync_cost_deviation = 0.05;
  std::string sync_outer = "auto";                          // or "average", "sgd_nesterov"
  double sync_outer_rate = 0.7, sync_outer_momentum = 0.9;  // of the latter
  double sync_mix = 0.5;  // of synchronisations that overlap: share of a rank's own parameters
  // Aggregation.
  double quorum = 0;  // share of the ranks that is enough for a lossy sum after cutoff_ms; 0: all
  int cutoff_ms = 0;
  bool checksums = true;  // packets carry a checksum beside the network's own
  // Probing.
  double probe_budget_ratio = 0.005;  // of training bytes
  double probe_interval_s = 30;
  double latency_interval_s = 1;
  // Rules for NCCL, and which nodes they are for. These processes are no jobs of Weir's, so a
  // policy with rules is for nodes, whatever jobs it rules; of several, as with jobs, the first
  // counts.
  std::vector<std::string> nccl_nodes = {"*"};  // shell patterns of their names
  std::vector<NcclRule> nccl_rules;             // the first that matches a call decides
};

/// The codecs, with their variants, and collectives that a policy may name. Documents may call the
/// codec "identity" also "dense", as everything for operators does; a parsed policy has "identity".
struct PolicyNames {
  std::set<std::string> codecs, collectives;
};

/// Parses one document. The parser is strict: an unknown or duplicate key, a wrong type or a value
/// out of range is kInvalidArgument with "`origin`:line: key: what was expected and found", and so
/// is a codec or collective that is not in `known` (null: any name is valid). Nesting and size are
/// bounded. Keys that it leaves out are as in `defaults`.
StatusOr<Policy> ParsePolicy(std::string_view source, std::string_view origin,
                             const PolicyNames* known = nullptr, const Policy& defaults = {});

/// The JSON Schema (2020-12) of documents that ParsePolicy takes, from the parser's own tables.
/// `objectives`: the names that there are. Conditions on several keys are not in it.
std::string PolicySchema(const PolicyNames& known, const std::set<std::string>& objectives);

/// The values of all keys, by "section.key", as a document would say them.
std::map<std::string, std::string> PolicyValues(const Policy& policy);

/// Whether the job's name, namespace and labels match the patterns (* and ?) of the policy.
bool PolicyMatches(const Policy& policy, std::string_view job, const JobLabels& labels = {});

/// Whether the policy has rules for NCCL on the node of that name.
bool SteersNccl(const Policy& policy, std::string_view node);

}  // namespace weir
