// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reports of ranks about themselves and their steps, as the controller's structs; the messages
// are in rank.proto. Their maker ensures that numbers are finite and sizes bounded.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "controller/job/capabilities.h"
#include "controller/job/job_plan.h"
#include "controller/model/job_model.h"
#include "controller/policy/policy.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/status.h"

namespace weir {

/// How the frames between ranks are protected where they do not pass through shared memory.
enum class FramesProtected { kNotSaid, kChecked, kAuthenticated, kEncrypted };

/// The first message of a rank.
struct RankGreeting {
  std::string job;
  int rank = 0, world = 0;
  uint32_t pid = 0;
  uint64_t step = 0, epoch = 0;
  JobCapabilities capabilities;
  uint64_t active_plan_version = 0;
  std::optional<JobPlan> active_plan;
  std::string aggregation_address;  // empty: it receives no packets of aggregators
  int memory_group = 0;             // one more than the lowest rank that shares memory; 0: not said
  std::optional<RankProof> proof;   // none: the job has no key
  FramesProtected protection = FramesProtected::kNotSaid;
  uint32_t unauthenticated_peers = 0;
  JobLabels labels = {};
  GradientDevices gradient_device = {};  // not known: in the host's memory
  bool local_steps = false;              // it can synchronise every few steps only

  /// The key that it says it proves; empty: it proves none.
  std::string public_key() const { return proof.has_value() ? proof->public_key : ""; }
};

/// One bucket of a job as rank 0 declares it.
struct BucketInfo {
  std::string key;
  uint64_t elements = 0;
  uint32_t order = 0;
  std::string dtype;
  std::vector<std::string> parameters;
  bool sharded = false;  // see BucketModel
};
using BucketList = std::vector<BucketInfo>;

/// In ready order. kInvalidArgument: none, too many, an empty or repeated key, no elements.
StatusOr<std::vector<BucketDefinition>> DefinitionsOf(const BucketList& buckets);

/// The datapath's connection to one peer.
struct RankPathObservation {
  int peer_rank = 0;
  double rtt_s = 0, delivery_rate_bytes_per_s = 0;
  bool application_limited = false;
  double window_bytes = 0;  // of congestion; 0: not known
  double rtt_min_s = 0;     // of the connection's life; 0: not known
};
using PathList = std::vector<RankPathObservation>;

struct PlanAcked {
  uint64_t version = 0;
  std::string nonce;
};
struct PlanRefused {
  uint64_t version = 0;
  std::string nonce, reason;
};
struct PlanActivated {
  uint64_t version = 0, step = 0;
};

/// Something out of the ordinary; see RankEvent in rank.proto for the kinds.
struct RankIncident {
  std::string kind, detail;
  uint64_t step = 0;
  int guilty_rank = -1;
  std::string bucket = {}, parameter = {};
};

using RankSaid = std::variant<BucketList, StepObservation, PathList, PlanAcked, PlanRefused,
                              PlanActivated, RankIncident>;

}  // namespace weir
