#pragma once
// What a plan says of slots on an aggregator: weir.v1.AggregatorLease, and the terms that follow
// from it for a job.

#include <cstdint>
#include <string>
#include <vector>

#include "datapath/aggregation/lease.h"
#include "datapath/base/status.h"
#include "datapath/codec/codec.h"

namespace weir {

inline constexpr size_t kPlanLeasesMax = 64;

/// Equal leases are one lease: its slots and rounds go on where the plan before left them.
struct AggregatorLease {
  std::string collective;  // of the choices that use it
  std::string aggregator;  // its name, for people
  std::string address;     // IPv4 address and UDP port
  std::string mode;        // as aggregation::ModeName says it
  uint32_t id = 0;
  uint32_t epoch = 0;
  uint64_t cookie = 0;  // in no message or log
  uint32_t slots = 0;
  uint32_t lanes = 0;    // per packet, or per block of mode "sparse"
  uint32_t columns = 0;  // blocks per packet; 0 in other modes
  // Mode "table": of a sum, and what indices stand for, which must be the codec's table.
  uint32_t sum_bits = 0;
  std::vector<uint8_t> levels = {};
  // Mode "table": so many ranks are enough for a sum once it has waited cutoff_us; 0: all ranks.
  uint32_t quorum = 0, cutoff_us = 0;
  bool unchecked = false;  // packets carry no checksum
  friend bool operator==(const AggregatorLease&, const AggregatorLease&) = default;
};

/// The terms of `lease` for a job whose `world` ranks are its workers. kInvalidArgument names the
/// field, what was expected and found; kNotFound: no such collective. Thread-safe.
StatusOr<aggregation::Lease> TermsOf(const AggregatorLease& lease, int world);

/// Whether the aggregator's table is that of lanes of `setting`. kInvalidArgument: bits or levels
/// that were expected and found. Thread-safe.
Status CheckTable(const AggregatorLease& lease, const CodecSetting& setting);

/// Its line in a plan's canonical text. Thread-safe.
std::string CanonicalText(const AggregatorLease& lease);

}  // namespace weir
