// SPDX-License-Identifier: Apache-2.0
#pragma once
// A job's request for slots of an aggregator, and the state that aggregators report.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "datapath/base/clock.h"

namespace weir {

/// The meaning of the indices in mode "table".
struct LeaseTable {
  uint32_t sum_bits = 0;
  std::vector<uint32_t> levels;
};

/// The operator's settings for leases.
struct LeaseWish {
  // Mode "table": how many workers are enough, once a round has waited so long; zeros: all.
  uint32_t quorum = 0, cutoff_ms = 0;
  bool checked = true;  // packets carry a checksum
};

struct LeaseAsk {
  std::string aggregator;
  std::string job;  // of the controller
  uint64_t id = 0;  // of this ask, for its answer
  std::string collective;
  std::string mode;                  // "sum", "sparse" or "table"
  std::vector<std::string> workers;  // addresses in rank order
  uint32_t slots = 0, lanes = 0;
  uint32_t columns = 0;  // mode "sparse": blocks per packet
  LeaseTable table = {};
  LeaseWish wish = {};
};

/// Slots that an aggregator has granted, as it reports them; see GrantedLease in admin.proto.
struct ReportedLease {
  std::string job, mode, address;
  uint32_t epoch = 0, slots = 0, lanes = 0;
  std::vector<std::string> workers;
  double idle_s = 0, waiting_s = 0;
  uint32_t waiting_slot = 0;
  std::vector<std::string> missing;
  std::string plane;
};

/// A configured aggregator, as of its last answer; see Aggregator in admin.proto.
struct AggregatorReport {
  std::string name = {}, url = {};
  bool reachable = false;
  double since_unix_s = 0;
  std::string error = {};
  uint32_t shards = 0, slots = 0, slots_free = 0, slots_free_of_shard = 0, slots_per_job = 0;
  uint32_t leases_free = 0, lanes_max = 0, workers_max = 0;
  double goodput_bits_per_s = 0;
  std::vector<ReportedLease> leases = {};
  double answered_unix_s = 0;
};

struct AggregatorState {
  AggregatorReport said;    // as it answered last
  TimePoint answered_at{};  // when; before everything: never
  TimePoint since{};        // reachable, or not, since then
};
using AggregatorMap = std::map<std::string, AggregatorState>;  // by name

/// Who holds a job's lease of that mode (empty: "sum"): a job has one of each at most, and leases
/// of different modes do not end each other.
std::string LeaseOwner(const std::string& job, const std::string& mode);

/// The name of `job` at aggregators, which take 1 to 128 letters, digits, '.', '_' and '-': itself,
/// or what is left of it and a hash of all of it. Two jobs never share one, but for a collision of
/// 64 bits.
std::string LeaseJobName(const std::string& job);

}  // namespace weir
