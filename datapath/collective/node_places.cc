// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/node_places.h"

#include <algorithm>
#include <map>

namespace weir {

NodePlaces NodePlacesOf(std::span<const int> nodes, int rank, int world) {
  std::map<int, std::vector<int>> ranks;
  for (int each = 0; each < world; ++each) {
    ranks[nodes.empty() ? each : nodes[static_cast<size_t>(each)]].push_back(each);
  }
  NodePlaces places;
  places.node = ranks.at(nodes.empty() ? rank : nodes[static_cast<size_t>(rank)]);
  const auto place = std::find(places.node.begin(), places.node.end(), rank);
  const auto index = static_cast<size_t>(place - places.node.begin());
  places.place = static_cast<int>(index);
  for (const auto& [number, members] : ranks) {
    places.equal = places.equal && members.size() == places.node.size();
    places.leaders.push_back(members.front());
    if (index < members.size()) places.across.push_back(members[index]);
    places.nodes.push_back(members);
  }
  std::sort(places.leaders.begin(), places.leaders.end());
  std::sort(places.across.begin(), places.across.end());
  return places;
}

}  // namespace weir
