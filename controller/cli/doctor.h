// SPDX-License-Identifier: Apache-2.0
#pragma once
// doctor: does everything that Weir needs answer, and what is wrong if not.

#include <map>
#include <string>
#include <vector>

#include "controller/cli/client.h"
#include "controller/cli/finding.h"

namespace weir::cli {

/// The controller's answers, with all pages of lists.
struct FleetFacts {
  std::string controller;  // its address
  Standing standing;       // of the one that answered
  v1::ListNodesResponse nodes;
  v1::ListLinksResponse links;
  v1::ListJobsResponse jobs;
  v1::ListPoliciesResponse policies;
  /// By job, of those that run: the newest decision, or why there is none.
  std::map<std::string, v1::Explanation> explanations;
};

/// One finding per matter. version: of this program; unix_s: this machine's time. Pure.
std::vector<Finding> JudgeFleet(const FleetFacts& facts, const std::string& version, double unix_s);

/// Prints one line per check, "ok", "warn" or "FAIL" first, and below it what mends it: of this
/// machine, then of the fleet. kInternal when any failed; errors of calls, once this machine's
/// findings are printed.
Status Doctor(Client& client, const std::string& version);

}  // namespace weir::cli
