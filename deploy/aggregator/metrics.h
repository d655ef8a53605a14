// SPDX-License-Identifier: Apache-2.0
#pragma once
// The aggregator's /metrics, made from its status for every scrape, so that a lease that has ended
// leaves no label behind. The label for the job is bounded by the number of leases.

#include <optional>
#include <string>
#include <vector>

#include "datapath/aggregation/io/server.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::aggregation {

/// The page in the format of Prometheus. tls: the state of the certificate, if there is one.
/// Thread-safe.
std::string MetricsText(const std::string& version, const std::vector<ShardStatus>& shards,
                        const std::vector<LeaseStatus>& leases,
                        const std::optional<TlsHealth>& tls);

}  // namespace weir::aggregation
