// SPDX-License-Identifier: Apache-2.0
#include "controller/model/ring_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "controller/model/format.h"
#include "controller/model/ring_order.h"

namespace weir {
namespace {

constexpr size_t kRanksShown = 16;

int CountNodes(const NodeLinks& links) {
  return links.nodes.empty() ? 0 : 1 + *std::max_element(links.nodes.begin(), links.nodes.end());
}

/// Costs of all links, those that nobody measured as slow as the slowest known; empty: none is
/// known. Within a node nothing is slow.
std::vector<double> CostsOf(const NodeLinks& links) {
  double slowest = 0;
  for (const double cost : links.s_per_byte) slowest = std::max(slowest, cost);
  if (!(slowest > 0)) return {};
  std::vector<double> costs = links.s_per_byte;
  for (double& cost : costs) {
    if (cost < 0) cost = slowest;
  }
  return costs;
}

std::vector<int> Ascending(size_t world) {
  std::vector<int> order(world);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

struct SlowLink {
  double s_per_byte = 0;
  int from = 0, to = 0;  // ranks
};

SlowLink SlowestOf(const NodeLinks& links, std::span<const double> costs,
                   std::span<const int> order) {
  const auto nodes = static_cast<size_t>(CountNodes(links));
  std::map<std::pair<int, int>, SlowLink> used;
  for (size_t i = 0; i < order.size(); ++i) {
    const int from = order[i], to = order[(i + 1) % order.size()];
    const int a = links.nodes[static_cast<size_t>(from)], b = links.nodes[static_cast<size_t>(to)];
    if (a == b) continue;
    SlowLink& link = used.try_emplace({a, b}, SlowLink{0, from, to}).first->second;
    link.s_per_byte += costs[static_cast<size_t>(a) * nodes + static_cast<size_t>(b)];
  }
  SlowLink slowest;
  for (const auto& [pair, link] : used) {
    if (link.s_per_byte > slowest.s_per_byte) slowest = link;
  }
  return slowest;
}

/// Ranks of each node together, ascending; nodes in their order, rank 0's first.
std::vector<int> RanksOf(const NodeLinks& links, std::span<const int> node_order) {
  std::vector<int> order;
  for (const int node : node_order) {
    for (size_t rank = 0; rank < links.nodes.size(); ++rank) {
      if (links.nodes[rank] == node) order.push_back(static_cast<int>(rank));
    }
  }
  return order;
}

}  // namespace

double RingSecondsPerByte(const NodeLinks& links, std::span<const int> order) {
  const std::vector<double> costs = CostsOf(links);
  if (costs.empty()) return 0;
  const std::vector<int> ascending = Ascending(links.nodes.size());
  return SlowestOf(links, costs, order.empty() ? std::span<const int>(ascending) : order)
      .s_per_byte;
}

RingChoice ChooseRing(const Snapshot& snapshot) {
  RingChoice choice{snapshot.layout.ring_order, snapshot.speedup.ring};
  const NodeLinks& links = snapshot.node_links;
  const int nodes = CountNodes(links);
  if (nodes < 2 || nodes > kRingNodesMax) return choice;
  const std::vector<double> costs = CostsOf(links);
  if (costs.empty()) return choice;
  const auto best = BestRingOrder(costs, nodes);
  if (!best.ok()) return choice;
  std::vector<int> order = RanksOf(links, best->order);
  double cost = RingSecondsPerByte(links, order);
  const double ascending = RingSecondsPerByte(links, {});
  if (ascending <= cost) {
    order.clear();
    cost = ascending;
  }
  const double running = RingSecondsPerByte(links, snapshot.layout.ring_order);
  const double wanted = std::max(kRingGainMin, 1 + 2 * links.relative_deviation);
  if (!(cost > 0) || running < wanted * cost) return choice;
  return {std::move(order), snapshot.speedup.ring * running / cost};
}

std::string OrderText(std::span<const int> order) {
  std::string text;
  for (size_t i = 0; i < std::min(order.size(), kRanksShown); ++i) {
    text += StrCat(i == 0 ? "" : " ", order[i]);
  }
  return order.size() <= kRanksShown ? text : StrCat(text, " ... of ", order.size());
}

RingFacts DescribeRing(const Snapshot& snapshot, std::span<const int> order) {
  const NodeLinks& links = snapshot.node_links;
  RingFacts facts{.order = {order.begin(), order.end()}};
  const std::vector<double> costs = CostsOf(links);
  if (costs.empty() || links.nodes.size() != order.size()) return facts;
  const SlowLink used = SlowestOf(links, costs, order);
  const SlowLink avoided = SlowestOf(links, costs, Ascending(order.size()));
  if (!(used.s_per_byte > 0) || !(avoided.s_per_byte > used.s_per_byte)) return facts;
  facts.slowest_bytes_per_s = 1 / used.s_per_byte;
  facts.avoided_bytes_per_s = 1 / avoided.s_per_byte;
  facts.avoided_from = avoided.from;
  facts.avoided_to = avoided.to;
  return facts;
}

std::string RingText(const RingFacts& ring) {
  if (ring.order.empty()) return "";
  std::string text = "the ring goes " + OrderText(ring.order);
  if (!(ring.avoided_bytes_per_s > 0)) return text;
  return text + ": its slowest link gives " + BandwidthText(ring.slowest_bytes_per_s) +
         ", ascending order would use " + BandwidthText(ring.avoided_bytes_per_s) +
         StrCat(" from rank ", ring.avoided_from, " to rank ", ring.avoided_to);
}

bool IsRingOrder(std::span<const int> order, int world) {
  if (order.empty()) return true;
  std::vector<int> sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted == Ascending(static_cast<size_t>(std::max(0, world)));
}

Status CheckRing(const Snapshot& snapshot) {
  const NodeLinks& links = snapshot.node_links;
  const auto world = static_cast<size_t>(std::max(0, snapshot.world));
  if (!IsRingOrder(snapshot.layout.ring_order, snapshot.world)) {
    return InvalidArgument(StrCat("snapshot: ring_order: expected each of ", world,
                                  " ranks once, found ", OrderText(snapshot.layout.ring_order)));
  }
  if (!std::isfinite(snapshot.speedup.ring) || !(snapshot.speedup.ring > 0)) {
    return InvalidArgument(StrCat(
        "snapshot: ring_speedup: expected a finite number above 0, found ", snapshot.speedup.ring));
  }
  if (links.nodes.empty() && links.s_per_byte.empty()) return OkStatus();
  const bool fits = links.nodes.size() == world &&
                    std::all_of(links.nodes.begin(), links.nodes.end(), [&](int node) {
                      return node >= 0 && static_cast<size_t>(node) < world;
                    });
  const auto nodes = static_cast<size_t>(fits ? CountNodes(links) : 0);
  const bool finite = std::all_of(links.s_per_byte.begin(), links.s_per_byte.end(),
                                  [](double cost) { return std::isfinite(cost); }) &&
                      std::isfinite(links.relative_deviation);
  if (fits && finite && links.s_per_byte.size() == nodes * nodes) return OkStatus();
  return InvalidArgument(StrCat("snapshot: node_links: expected the nodes of ", world,
                                " ranks and finite costs of all links between them, found ",
                                links.nodes.size(), " ranks and ", links.s_per_byte.size(),
                                " costs"));
}

}  // namespace weir
