#pragma once
// A plan: one immutable, versioned set of choices, one per bucket. It arrives as the JSON form of
// weir.v1.Plan from the agent or from a file, and is published to the pipeline as
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

namespace weir {

inline constexpr size_t kPlanBytesMax = 4u << 20;
inline constexpr size_t kPlanBucketsMax = 65536;
inline constexpr uint32_t kSegmentBytesMin = 1024;
inline constexpr uint32_t kSegmentBytesMax = 1u << 28;

/// How one bucket is communicated.
struct Choice {
  std::string codec;
  std::string collective;
  double ratio = 1;
  uint32_t bits = 0;           // width of values; 0: the codec's default
  uint32_t segment_bytes = 0;  // 0: the group's default
  friend bool operator==(const Choice&, const Choice&) = default;
};

/// The parameters of a choice's codec. Thread-safe.
CodecParams ParamsOf(const Choice& choice);

/// Dense float32 by ring: what runs without any plan.
Choice DenseChoice();

/// Version 0 is "dense, no plan yet" and never travels.
struct Plan {
  std::string job;  // empty: any
  uint64_t version = 0;
  std::map<uint64_t, Choice> buckets;
  Choice fallback = DenseChoice();  // buckets that are not listed
  std::string digest;               // as received; empty when the sender gave none
  std::map<std::string, AggregatorLease> leases = {};  // by collective
  std::vector<int> ring_order = {};  // every rank once, each sends to the next; empty: ascending
  std::vector<uint32_t> shard_shares = {};  // of each rank, in 1/kShardShareTotal; empty: even
};

enum class UnknownKeys {
  kIgnore,  // from the agent: a later version may say more
  kReject,  // from a file that a person wrote
};

/// Reads one plan. kInvalidArgument names the key's path, what was expected and found. Absent
/// parts: fallback is dense, an absent ratio of a choice is 1. Thread-safe.
StatusOr<Plan> ParsePlan(std::string_view text, UnknownKeys unknown_keys);

/// Reads a plan file of at most kPlanBytesMax bytes, strictly; errors carry the file's name. An
/// absent version means 1. kNotFound: no such file.
StatusOr<Plan> ReadPlanFile(const std::string& path);

/// The JSON form of weir.v1.Plan, buckets by ascending key, leases by collective. Thread-safe.
std::string PlanToJson(const Plan& plan);

/// XXH3-64 of the plan's canonical text (job, version, fallback, buckets by ascending key, leases
/// by ascending collective, the ring's order and the shares of shards if any; numbers as shortest
/// round-trip decimals). Equal plans have equal digests on every machine. Thread-safe, O(n).
uint64_t PlanDigest(const Plan& plan);

/// The choice for a bucket. Thread-safe.
const Choice& ChoiceFor(const Plan& plan, uint64_t bucket);

/// What a plan is checked against before it is acked.
struct PlanLimits {
  std::string job;
  int world = 1;
  std::map<uint64_t, BucketSize> buckets;  // the buckets known so far
  uint64_t memory_bytes_max = UINT64_MAX;  // for payloads and residuals
  uint64_t residual_bytes_held = 0;        // of those, already in use
  int encode_workers = 1;                  // each may hold a payload
};

/// OK when every choice can run here: job matches, names are known, forms match, parameters,
/// segment and world size are in range, leases make sense and are there for the collectives that
/// need one, the ring's order names every rank once, every rank has a share of shards and they add
/// up, and the memory it needs stays under the limit.
/// kNotFound lists valid names; kInvalidArgument and kResourceExhausted say which bucket,
/// "fallback" or lease. Thread-safe.
Status ValidatePlan(const Plan& plan, const PlanLimits& limits);

/// Memory that one bucket needs under a choice; nothing for unknown names. Thread-safe.
ExchangeMemory MemoryOf(const Choice& choice, const BucketSize& bucket, int world);

/// Operations that can hold payloads at the same time beside those being encoded, see pipeline.h.
inline constexpr size_t kPayloadsPastEncodingMax = 12;

}  // namespace weir
