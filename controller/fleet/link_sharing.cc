// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/link_sharing.h"

#include <algorithm>
#include <set>
#include <utility>

namespace weir {

std::vector<JobSharing> SharingOf(const std::string& job,
                                  const std::map<std::string, std::vector<std::string>>& nodes_of) {
  std::vector<JobSharing> sharing;
  const auto own = nodes_of.find(job);
  if (own == nodes_of.end()) return sharing;
  const std::set<std::string> nodes(own->second.begin(), own->second.end());
  for (const auto& [other, others] : nodes_of) {
    if (other == job) continue;
    const auto common = static_cast<uint32_t>(
        std::count_if(others.begin(), others.end(),
                      [&](const std::string& node) { return nodes.contains(node); }));
    if (common < 2) continue;  // no link between them
    sharing.push_back({.job = other, .nodes = common});
  }
  std::stable_sort(sharing.begin(), sharing.end(),
                   [](const auto& a, const auto& b) { return a.nodes > b.nodes; });
  return sharing;
}

std::map<std::string, size_t> SharingCounts(
    const std::map<std::string, std::vector<std::string>>& nodes_of) {
  std::map<std::string, std::vector<std::string>> jobs_on;
  for (const auto& [job, nodes] : nodes_of) {
    for (const std::string& node : nodes) jobs_on[node].push_back(job);
  }
  std::map<std::pair<std::string, std::string>, int> common;  // nodes of two jobs
  std::map<std::string, size_t> counts;
  for (const auto& [node, jobs] : jobs_on) {
    for (const std::string& one : jobs) {
      for (const std::string& other : jobs) {
        // The second node in common makes a link.
        if (one != other && ++common[{one, other}] == 2) ++counts[one];
      }
    }
  }
  return counts;
}

}  // namespace weir
