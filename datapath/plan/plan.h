// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan: one immutable, versioned set of choices, one per bucket. It arrives as the JSON form of
// weir.v1.Plan, from the agent or from a file, and is published to the pipeline as a
// shared_ptr<const>.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/codec/codec.h"
#include "datapath/collective/collective.h"
#include "datapath/exchange/exchange.h"
#include "datapath/plan/aggregator_lease.h"
#include "datapath/plan/sync.h"

namespace weir {

inline constexpr size_t kPlanBytesMax = 4u << 20;
inline constexpr size_t kPlanBucketsMax = 65536;
inline constexpr uint32_t kSegmentBytesMin = 1024;
inline constexpr uint32_t kSegmentBytesMax = 1u << 28;

/// How a bucket is communicated.
struct Choice {
  std::string codec;
  std::string collective;
  double ratio = 1;
  uint32_t bits = 0;           // width of values; 0: the default of the codec
  uint32_t segment_bytes = 0;  // 0: the default of the group
  friend bool operator==(const Choice&, const Choice&) = default;
};

/// The parameters of a choice's codec. Thread-safe.
CodecParams ParamsOf(const Choice& choice);

/// The choice without any plan: dense float32 by ring.
Choice DenseChoice();

/// Version 0 means "dense, no plan yet" and is never sent.
struct Plan {
  std::string job;  // empty: any
  uint64_t version = 0;
  std::map<uint64_t, Choice> buckets;
  Choice fallback = DenseChoice();                     // for buckets that are not listed
  std::string digest;                                  // as received; empty if the sender gave none
  std::map<std::string, AggregatorLease> leases = {};  // by collective
  std::vector<int> ring_order = {};  // every rank once, each sends to the next; empty: ascending
  std::vector<uint32_t> shard_shares = {};  // of each rank, in 1/kShardShareTotal; empty: equal
  Sync sync = {};
};

enum class UnknownKeys {
  kIgnore,  // for plans from the agent, because later versions may have more keys
  kReject,  // for files that a person wrote
};

/// Reads one plan. kInvalidArgument names the path of the key, what was expected and found. A
/// missing fallback is dense, and a missing ratio is 1. Thread-safe.
StatusOr<Plan> ParsePlan(std::string_view text, UnknownKeys unknown_keys);

/// Reads a plan file of at most kPlanBytesMax bytes, rejecting unknown keys. Errors have the name
/// of the file. A missing version is 1. kNotFound: there is no such file.
StatusOr<Plan> ReadPlanFile(const std::string& path);

/// The JSON form of weir.v1.Plan, with buckets by ascending key and leases by collective.
/// Thread-safe.
std::string PlanToJson(const Plan& plan);

/// XXH3-64 of the plan's canonical text: job, version, fallback, buckets by ascending key, leases
/// by ascending collective, and, if any, the order of the ring, the shares of shards and what
/// `sync` says. Numbers are the shortest decimals that read back as the same value. Equal plans
/// have equal digests on every machine. Thread-safe, O(n).
uint64_t PlanDigest(const Plan& plan);

/// The choice for a bucket. Thread-safe.
const Choice& ChoiceFor(const Plan& plan, uint64_t bucket);

/// The conditions for which a plan is validated before it is acked.
struct PlanLimits {
  std::string job;
  int world = 1;
  std::map<uint64_t, BucketSize> buckets;  // the buckets that are known so far
  uint64_t memory_bytes_max = UINT64_MAX;  // for payloads and residuals
  uint64_t residual_bytes_held = 0;        // already in use
  int encode_workers = 1;                  // each of them may hold a payload
  bool local_steps = false;                // the caller can do what Plan::sync says
  bool caller_sums = false;                // the callers of all ranks have a group that sums
};

/// Returns OK when every choice can run here: the job matches; names are known; forms match;
/// parameters, segment and world size are in range; leases are consistent and exist for the
/// collectives that need one; the order of the ring names every rank once; every rank has a share
/// of shards, and they add up; no sum is left to callers that cannot make it; and the memory stays
/// under the limit. kNotFound lists the valid
/// names. kInvalidArgument and kResourceExhausted name the bucket, "fallback" or the lease.
/// Thread-safe.
Status ValidatePlan(const Plan& plan, const PlanLimits& limits);

/// The memory that a bucket needs with a choice; nothing for unknown names. Thread-safe.
ExchangeMemory MemoryOf(const Choice& choice, const BucketSize& bucket, int world);

/// The number of operations that can hold payloads at the same time, besides those being encoded;
/// see pipeline.h.
inline constexpr size_t kPayloadsPastEncodingMax = 12;

}  // namespace weir
