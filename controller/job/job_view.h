// SPDX-License-Identifier: Apache-2.0
#pragma once
// A job as others see it, and what is told of it when it changes.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "controller/job/benefit.h"
#include "controller/job/decision_record.h"
#include "controller/job/job_plan.h"
#include "controller/job/rank_said.h"
#include "controller/job/step_series.h"

namespace weir {

/// An operator's choice for all buckets.
struct JobPin {
  ChoiceModel choice;
  std::string actor, reason;
};

struct RankView {
  int rank = 0;
  std::string node;
  bool connected = false;
  uint64_t step = 0, plan_version = 0;
  double slower = 1;                        // see RankPace
  std::optional<RankCores> cores = {};      // nothing: not known
  std::optional<NcclConclusion> nccl = {};  // on its node; nothing: none
};

/// See Progress in admin.proto.
struct ProgressView {
  double exponent = 1, exponent_low = 1, exponent_high = 1;
  uint64_t losses = 0;
  double loss_behind = 0;
  Measured sync_cost;  // and the next two: of local steps
  double signal_share = 0, consensus_share = 0;
};

/// See Job in admin.proto.
struct JobView {
  std::string name;
  int world = 0;
  std::vector<RankView> ranks;
  BucketList buckets;
  uint64_t step = 0;
  double step_s = 0, loss = 0, gain = 0;
  std::optional<JobPlan> active_plan, offered_plan;  // without cookies
  std::string rollout_state, state;
  std::optional<JobPin> pin;
  std::string policy;
  uint64_t bytes_sent = 0;
  double started_unix_s = 0;
  Benefit benefit, plan_benefit;  // of the run and of the active plan
  ProgressView progress;
  std::optional<RankIncident> non_finite;  // of the newest step that was skipped
  std::string key_id;                      // empty: it has no key
  FramesProtected protection = FramesProtected::kNotSaid;
  uint32_t unauthenticated_peers = 0;
  uint64_t evaluations = 0, decisions = 0;
  JobLabels labels = {};
  std::string nothing_to_choose = {};  // see DecisionLoop
};

/// How the job's frames are protected, in a word: "encrypted", "authenticated", "checked", or
/// "unauthenticated" where a rank reaches others over a network without any proof; empty: the ranks
/// do not say.
std::string ProtectionText(FramesProtected protection, uint32_t unauthenticated_peers);

/// Counters of one job for /metrics.
struct JobCounters {
  std::map<std::string, uint64_t> decisions;  // evaluations by trigger
  uint64_t records = 0, unchanged = 0;        // of them recorded, and not
  uint64_t switches = 0, nacks = 0, withdrawals = 0, rollbacks = 0, skipped_steps = 0,
           store_errors = 0;
  uint64_t decision_errors = 0;
  double decide_s_sum = 0;
};

/// One event of a job, as watchers receive it.
struct JobEvent {
  std::string job, text;
  std::variant<JobView, DecisionRecord, StepPoint, RankIncident> body;
};

}  // namespace weir
