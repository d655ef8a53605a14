// SPDX-License-Identifier: Apache-2.0
#pragma once
// Leases as JSON: the requests of a controller and the answers of an aggregator.
//
//   POST /v1/leases      {"job": "train-7", "mode": "sum", "workers": ["10.0.0.1:40000", ...],
//                         "slots": 64}                        -> the lease, with cookie and owner
//   GET /v1/leases       {"leases": [...]}, each with the round that has waited longest
//   GET /v1/capacity     the total capacity, and what is free
//   DELETE /v1/leases/train-7?epoch=3  with the header Weir-Lease-Owner  -> {}

#include <string>
#include <string_view>
#include <vector>

#include "datapath/aggregation/io/server.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// Longer bodies are rejected.
inline constexpr size_t kLeaseBytesMax = 16384;

/// Parses the body of a POST. job, mode ("sum", "max", "table", "sparse" or "float"), workers and
/// slots are required; lanes, world, columns, sum_bits, levels, quorum, cutoff_ms, little_endian
/// and checked as in Lease, with its defaults; owner as in LeaseRequest; parent: {"address",
/// "lease", "epoch", "cookie", "workers"} of the lease above, as in its grant. kInvalidArgument
/// names the key, what was expected and found; an unknown key is an error. Grant checks whether the
/// terms fit together. Thread-safe.
StatusOr<LeaseRequest> ParseLeaseRequest(std::string_view json);

/// {"job", "owner", "lease", "epoch", "cookie", "mode", "address", "port", "shard", "first_slot",
/// "slots", "lanes", "workers", "plane": "software"}; the cookie as 16 hexadecimal digits.
std::string GrantJson(const LeaseGrant& grant);

/// {"leases": [as above without cookie and owner, with "idle_s" and "waiting": {"slot", "round",
/// "operation", "age_s", "missing": [{"worker", "address"}]} while some round waits]}.
std::string LeasesJson(const std::vector<LeaseStatus>& leases);

/// {"shards", "slots", "slots_free", "slots_free_of_shard", "slots_per_job", "leases_free",
/// "lanes_max", "workers_max", "goodput_bits_per_s"}. Slots and leases are those of all shards
/// together, except slots_free_of_shard, which is the largest number free on one shard, because a
/// lease lies within one shard. `goodput_bits_per_s`: payload that the shards can receive from all
/// workers; 0: not known.
std::string CapacityJson(const AggregatorLimits& limits, const std::vector<ShardStatus>& shards,
                         double goodput_bits_per_s);

/// {"code", "message", "details"}, as the controller's REST interface says it, and its HTTP status.
std::string ErrorBody(const Status& status);
int HttpStatus(StatusCode code);

}  // namespace weir::aggregation
