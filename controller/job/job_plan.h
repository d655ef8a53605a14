// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans as the controller makes, keeps and offers them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/model/job_model.h"
#include "controller/model/snapshot.h"

namespace weir {

/// Slots on an aggregator that the ranks of a job share; see AggregatorLease in plan.proto.
struct SlotGrant {
  std::string collective, aggregator, address, mode;
  uint32_t id = 0, epoch = 0;
  std::string cookie;  // secret of the job's ranks
  uint32_t slots = 0, lanes = 0, columns = 0, sum_bits = 0;
  std::vector<uint32_t> levels;
  uint32_t quorum = 0, cutoff_us = 0;
  bool unchecked = false;
  friend bool operator==(const SlotGrant&, const SlotGrant&) = default;
};

struct PlannedBucket {
  std::string bucket;
  ChoiceModel choice;
  friend bool operator==(const PlannedBucket&, const PlannedBucket&) = default;
};

/// One immutable version of all choices of a job; see Plan in plan.proto.
struct JobPlan {
  std::string job;
  uint64_t version = 0;
  std::vector<PlannedBucket> buckets = {};
  std::optional<ChoiceModel> fallback = {};  // for buckets that are not listed; none: dense
  std::string digest = {};
  std::vector<SlotGrant> grants = {};  // at most one per collective, by its name ascending
  PlanLayout layout = {};
  SyncModel sync = {};
  friend bool operator==(const JobPlan&, const JobPlan&) = default;
};

/// Sets keys, choices, the layout, how often ranks synchronise, fallback and digest.
JobPlan MakePlan(const std::string& job, uint64_t version,
                 const std::vector<BucketDefinition>& buckets, const PlanModel& choices,
                 const PlanLayout& layout, const ChoiceModel& fallback, const SyncModel& sync = {});

/// One choice per bucket of `buckets`; the plan's fallback where it lists none.
PlanModel ChoicesFor(const JobPlan& plan, const std::vector<BucketDefinition>& buckets);

/// 16 hexadecimal digits over the canonical text: one line "key codec collective ratio
/// segment_bytes" per bucket in plan order, then one per grant by collective and per rank of the
/// ring's order, the shares of shards, with local steps "sync|...", then "fallback ..."; the
/// version is left out. FNV-1a, 64 bits.
std::string PlanDigest(const JobPlan& plan);

/// The plan for everybody but the job's ranks: without the cookies of its grants, and with the
/// digest of what is left, since a digest would give a cookie away to who tries.
JobPlan Redacted(JobPlan plan);

/// "top_k 0.01 over sparse_all_gather"; codecs that keep everything show no ratio.
std::string ChoiceLabel(const ChoiceModel& choice);

}  // namespace weir
