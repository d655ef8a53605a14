// SPDX-License-Identifier: Apache-2.0
#pragma once
// The entry of a plan about slots on an aggregator (weir.v1.AggregatorLease), and the terms that
// follow from it for a job.

#include <cstdint>
#include <string>
#include <vector>

#include "datapath/aggregation/lease.h"
#include "datapath/base/status.h"
#include "datapath/codec/codec.h"

namespace weir {

inline constexpr size_t kPlanLeasesMax = 64;

/// Equal leases in consecutive plans are the same lease: its slots and rounds continue.
struct AggregatorLease {
  std::string collective;  // the choices with this collective use the lease
  std::string aggregator;  // its name, for display
  std::string address;     // IPv4 address and UDP port
  std::string mode;        // one of aggregation::ModeName
  uint32_t id = 0;
  uint32_t epoch = 0;
  uint64_t cookie = 0;  // secret: never in messages or logs
  uint32_t slots = 0;
  uint32_t lanes = 0;    // per packet, or per block of mode "sparse"
  uint32_t columns = 0;  // blocks per packet; 0 in other modes
  // Mode "table": the width of a sum, and the levels of the indices, which must be those of the
  // codec's table.
  uint32_t sum_bits = 0;
  std::vector<uint8_t> levels = {};
  // Mode "table": once a sum has waited for cutoff_us, this many ranks are enough for it; 0: all
  // ranks.
  uint32_t quorum = 0, cutoff_us = 0;
  bool unchecked = false;  // packets have no checksum
  friend bool operator==(const AggregatorLease&, const AggregatorLease&) = default;
};

/// The terms of `lease` for a job with `world` ranks as workers. kInvalidArgument names the field,
/// what was expected and found. kNotFound: there is no such collective. Thread-safe.
StatusOr<aggregation::Lease> TermsOf(const AggregatorLease& lease, int world);

/// Checks that the aggregator's table matches the lanes of `setting`. kInvalidArgument states the
/// bits or levels that were expected and found. Thread-safe.
Status CheckTable(const AggregatorLease& lease, const CodecSetting& setting);

/// The line of the lease in a plan's canonical text. Thread-safe.
std::string CanonicalText(const AggregatorLease& lease);

}  // namespace weir
