// SPDX-License-Identifier: Apache-2.0
#pragma once
// The aggregator's /metrics, made anew from its status for every scrape: a lease that has ended
// leaves no label behind. The label `job` is bounded by the leases that may exist.

#include <optional>
#include <string>
#include <vector>

#include "datapath/aggregation/io/server.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::aggregation {

/// The page as Prometheus reads it. kernel: of the data plane in the kernel, where there is one.
/// tls: of the certificate, where there is one. Thread-safe.
std::string MetricsText(const std::string& version, const std::vector<ShardStatus>& shards,
                        const std::vector<LeaseStatus>& leases,
                        const std::optional<OffloadStatus>& kernel,
                        const std::optional<TlsHealth>& tls);

}  // namespace weir::aggregation
