// SPDX-License-Identifier: Apache-2.0
#include "controller/model/node_layout.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "controller/model/node_share.h"

namespace weir {

NodeLayout LayoutOf(const SharedMemory& memory) {
  NodeLayout layout;
  if (memory.latency_s > 0) layout.latency_s = memory.latency_s;
  if (memory.s_per_byte > 0) layout.s_per_byte = memory.s_per_byte;
  if (memory.device_latency_s > 0) layout.device_latency_s = memory.device_latency_s;
  if (memory.device_s_per_byte > 0) layout.device_s_per_byte = memory.device_s_per_byte;
  layout.node_of = memory.lowest_ranks;
  std::vector<int> counts(memory.lowest_ranks.size());
  for (const int lowest : memory.lowest_ranks) ++counts[static_cast<size_t>(lowest)];
  for (const int count : counts) {
    layout.nodes += count > 0;
    layout.ranks_max = std::max(layout.ranks_max, count);
  }
  for (const int count : counts) {
    layout.even = layout.even && (count == 0 || count == layout.ranks_max);
  }
  return layout;
}

NodeLayout BetweenDevices(NodeLayout layout) {
  layout.latency_s = layout.device_latency_s;
  layout.s_per_byte = layout.device_s_per_byte;
  return layout;
}

Status CheckMemory(const Snapshot& snapshot) {
  const SharedMemory& memory = snapshot.memory;
  const auto world = static_cast<size_t>(std::max(0, snapshot.world));
  const auto is_rank = [&](int rank) { return rank >= 0 && static_cast<size_t>(rank) < world; };
  const bool fits = memory.lowest_ranks.empty() ||
                    (memory.lowest_ranks.size() == world &&
                     std::all_of(memory.lowest_ranks.begin(), memory.lowest_ranks.end(), is_rank));
  const bool finite = std::isfinite(memory.latency_s) && std::isfinite(memory.s_per_byte) &&
                      std::isfinite(memory.device_latency_s) &&
                      std::isfinite(memory.device_s_per_byte);
  if (fits && finite) return OkStatus();
  return InvalidArgument(StrCat("snapshot: memory: expected none or ", world, " ranks below ",
                                world, " and finite times, found ", memory.lowest_ranks.size(),
                                " ranks, ", memory.latency_s, " s and ", memory.s_per_byte,
                                " s per byte"));
}

namespace {

/// Adapts the features of a collective that ignores nodes to ranks that share nodes.
void ShareInterfaces(const CollectiveModel& collective, const NodeLayout& layout,
                     CollectiveFeatures* features) {
  if (collective.needs_lease && !collective.all_pairs) {
    features->payload *= layout.ranks_max;
    features->index *= layout.ranks_max;
    return;
  }
  constexpr std::string_view kPairs = "pairs";
  const NodeShare payload =
      ShareOf(collective.all_pairs ? kPairs : collective.payload_pattern, layout.node_of);
  const NodeShare index =
      ShareOf(collective.all_pairs ? kPairs : collective.index_pattern, layout.node_of);
  const double within = payload.latencies_within + index.latencies_within;
  features->payload *= payload.payloads;
  features->index *= index.payloads;
  features->latency = std::max(0.0, features->latency - within);
  features->within_latency_s = within * layout.latency_s;
  features->within_s_per_byte = payload.payloads_within * layout.s_per_byte;
}

}  // namespace

CollectiveFeatures FeaturesOf(const CollectiveModel& collective, int world,
                              const NodeLayout& layout) {
  const bool alone = layout.nodes == 0 || layout.ranks_max == 1;
  CollectiveFeatures features;
  if (!collective.by_node || alone) {
    features.latency = collective.latency.At(world);
    features.payload = collective.payload.At(world);
    features.index = collective.index.At(world);
    features.reduce = collective.reduce.At(world);
    if (!alone && layout.nodes > 1) ShareInterfaces(collective, layout, &features);
    return features;
  }
  const WithinNodeModel& within = layout.even ? collective.within_even : collective.within_uneven;
  // All-gathers: each rank of a node brings a payload across, each node hands one round.
  const bool gathers = collective.exchange.gathers;
  const double latency = within.latency.At(layout.ranks_max);
  const double payload = within.payload.At(layout.ranks_max) * (gathers ? layout.nodes : 1);
  features.reduce = within.reduce.At(layout.ranks_max);
  features.floats_within = collective.exchange.encodes_nodes;
  if (layout.nodes == 1) {
    features.latency = latency;
    (features.floats_within ? features.dense : features.payload) = payload;
    return features;
  }
  features.latency = collective.latency.At(layout.nodes);
  features.payload = collective.payload.At(layout.nodes) * (gathers ? layout.ranks_max : 1);
  features.index = collective.index.At(layout.nodes);
  features.reduce += collective.reduce.At(layout.nodes) / (layout.even ? layout.ranks_max : 1);
  features.within_latency_s = latency * layout.latency_s;
  features.within_s_per_byte = payload * layout.s_per_byte;
  return features;
}

}  // namespace weir
