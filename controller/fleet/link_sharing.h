// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which jobs share links, by the nodes of their ranks. Pure.

#include <map>
#include <string>
#include <vector>

#include "controller/job/decision_record.h"

namespace weir {

/// The jobs of `nodes_of` (the distinct nodes of each job's ranks) that share two nodes or more
/// with `job`, those with most of them first, then by name. O(nodes of all jobs, with a logarithm).
std::vector<JobSharing> SharingOf(const std::string& job,
                                  const std::map<std::string, std::vector<std::string>>& nodes_of);

/// With how many others each job shares links, for those that do. O(nodes * jobs on a node squared,
/// with a logarithm).
std::map<std::string, size_t> SharingCounts(
    const std::map<std::string, std::vector<std::string>>& nodes_of);

}  // namespace weir
