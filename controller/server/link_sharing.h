// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which jobs share links, by the nodes of their ranks. Pure.

#include <map>
#include <string>
#include <vector>

#include "weir/v1/admin.pb.h"

namespace weir {

/// The jobs of `nodes_of` (the distinct nodes of each job's ranks) that share two nodes or more
/// with `job`, those with most of them first, then by name. O(nodes of all jobs, with a logarithm).
std::vector<v1::LinkSharing> SharingOf(
    const std::string& job, const std::map<std::string, std::vector<std::string>>& nodes_of);

/// "shares the links between 4 nodes with job b"; empty: with none.
std::string SharingText(const std::vector<v1::LinkSharing>& sharing);

}  // namespace weir
