// SPDX-License-Identifier: Apache-2.0
#include "controller/server/link_sharing.h"

#include <algorithm>
#include <set>

#include "datapath/base/status.h"

namespace weir {
namespace {

constexpr size_t kNamedMax = 8;

}  // namespace

std::vector<v1::LinkSharing> SharingOf(
    const std::string& job, const std::map<std::string, std::vector<std::string>>& nodes_of) {
  std::vector<v1::LinkSharing> sharing;
  const auto own = nodes_of.find(job);
  if (own == nodes_of.end()) return sharing;
  const std::set<std::string> nodes(own->second.begin(), own->second.end());
  for (const auto& [other, others] : nodes_of) {
    if (other == job) continue;
    const auto common = static_cast<uint32_t>(
        std::count_if(others.begin(), others.end(),
                      [&](const std::string& node) { return nodes.contains(node); }));
    if (common < 2) continue;  // no link between them
    v1::LinkSharing& one = sharing.emplace_back();
    one.set_job(other);
    one.set_nodes(common);
    one.set_node_pairs(common * (common - 1) / 2);
  }
  std::stable_sort(sharing.begin(), sharing.end(),
                   [](const auto& a, const auto& b) { return a.nodes() > b.nodes(); });
  return sharing;
}

std::string SharingText(const std::vector<v1::LinkSharing>& sharing) {
  std::string text;
  for (size_t i = 0; i < std::min(sharing.size(), kNamedMax); ++i) {
    text += StrCat(i == 0 ? "shares the links between " : ", ", sharing[i].nodes(),
                   " nodes with job ", sharing[i].job());
  }
  if (sharing.size() > kNamedMax) text += StrCat(" and ", sharing.size() - kNamedMax, " others");
  return text;
}

}  // namespace weir
