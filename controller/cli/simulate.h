// SPDX-License-Identifier: Apache-2.0
#pragma once
// simulate: what would be chosen, offline, with the controller's own solver.

#include <string>
#include <vector>

#include "controller/cli/render.h"
#include "weir/v1/admin.pb.h"

namespace weir::cli {

/// Prints the candidates and the choice. `policy_file`: empty for the default policy. Needs no
/// controller. Errors: those of ReadPolicy and Decide.
Status SimulateOffline(const v1::SimulateRequest& request, const std::string& policy_file,
                       Output output);

/// Names of the "codec"s or "collective"s that this build offers; empty for another kind.
std::vector<std::string> BuiltinNames(const std::string& kind);

/// "1Gb/s", "100Mb/s", "12.5MB/s", "1e9" (bytes per second) -> bytes per second.
StatusOr<double> ParseRate(const std::string& text);
/// "1-2=10Mb/s" -> the link from rank 1 to rank 2.
StatusOr<v1::LinkRate> ParseLink(const std::string& text);
/// "10ms", "250us", "0.01s", "0.01" (seconds) -> seconds.
StatusOr<double> ParseSeconds(const std::string& text);
/// "2.5M", "7B", "1000" -> a count.
StatusOr<double> ParseCount(const std::string& text);

}  // namespace weir::cli
