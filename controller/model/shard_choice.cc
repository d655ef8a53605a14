// SPDX-License-Identifier: Apache-2.0
#include "controller/model/shard_choice.h"

#include <numeric>
#include <utility>

#include "controller/model/format.h"
#include "controller/model/shard_shares.h"

namespace weir {
namespace {

constexpr size_t kSharesShown = 16;

/// The links in the programme's form, with their memory.
struct MeasuredLinks {
  std::vector<double> s_per_byte;  // empty: some link was not measured
  std::vector<int> ranks;          // on each node
  double unpipelined = 1;
  ShardNetwork network() const { return {s_per_byte, ranks, unpipelined}; }
};

MeasuredLinks MeasuredOf(const NodeLinks& links, double unpipelined) {
  MeasuredLinks measured{links.s_per_byte, {}, unpipelined};
  for (const int node : links.nodes) {
    measured.ranks.resize(std::max(measured.ranks.size(), static_cast<size_t>(node) + 1));
    ++measured.ranks[static_cast<size_t>(node)];
  }
  const bool fits =
      measured.s_per_byte.size() == measured.ranks.size() * measured.ranks.size() &&
      std::all_of(measured.s_per_byte.begin(), measured.s_per_byte.end(),
                  [](double cost) { return cost >= 0; }) &&
      std::all_of(measured.ranks.begin(), measured.ranks.end(), [](int n) { return n > 0; });
  if (!fits) measured.s_per_byte.clear();
  return measured;
}

/// The shares of nodes; empty `shares`: even.
std::vector<double> SharesOfNodes(const NodeLinks& links, std::span<const uint32_t> shares) {
  std::vector<double> of_nodes;
  for (size_t rank = 0; rank < links.nodes.size(); ++rank) {
    const auto node = static_cast<size_t>(links.nodes[rank]);
    if (node >= of_nodes.size()) of_nodes.resize(node + 1);
    of_nodes[node] += shares.empty() ? 1.0 / static_cast<double>(links.nodes.size())
                                     : 1.0 * shares[rank] / kShareUnits;
  }
  return of_nodes;
}

/// The shares of ranks in units: all rounded down, then those with the largest rest up, lower ranks
/// first.
std::vector<uint32_t> InUnits(const NodeLinks& links, const MeasuredLinks& measured,
                              const std::vector<double>& of_nodes) {
  // Rests that only the solver's rounding tells apart count as equal.
  constexpr double kRestStep = 1e-6;
  std::vector<uint32_t> units;
  std::vector<int64_t> rests;
  for (const int node : links.nodes) {
    const auto at = static_cast<size_t>(node);
    const double exact = kShareUnits * of_nodes[at] / measured.ranks[at];
    const double whole = std::floor(exact + kRestStep);
    units.push_back(static_cast<uint32_t>(whole));
    rests.push_back(static_cast<int64_t>(std::llround((exact - whole) / kRestStep)));
  }
  std::vector<size_t> order(units.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rests[a] > rests[b]; });
  const uint32_t sum = std::accumulate(units.begin(), units.end(), 0u);
  for (uint32_t i = 0; sum + i < kShareUnits; ++i) ++units[order[i % order.size()]];
  for (uint32_t i = 0; sum - i > kShareUnits; ++i) {  // rounded up within kRestStep
    --*std::max_element(units.begin(), units.end());
  }
  return units;
}

/// Links as alike as what was measured leaves possible: each moved towards the middle one.
std::vector<double> AsAlikeAsPossible(const MeasuredLinks& measured, double relative_deviation) {
  const size_t nodes = measured.ranks.size();
  std::vector<double> alike = measured.s_per_byte, sorted;
  for (size_t i = 0; i < alike.size(); ++i) {
    if (i % (nodes + 1) != 0) sorted.push_back(alike[i]);
  }
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double open = 1 + 2 * std::max(0.0, relative_deviation);
  for (double& cost : alike) cost = std::clamp(*middle, cost / open, cost * open);
  return alike;
}

/// The bandwidth of the fastest link of the node.
double FastestLink(const MeasuredLinks& measured, int node) {
  const size_t nodes = measured.ranks.size(), own = static_cast<size_t>(node);
  double fastest = 0;
  for (size_t other = 0; other < nodes; ++other) {
    const double cost = measured.s_per_byte[own * nodes + other];
    if (other != own && cost > 0) fastest = std::max(fastest, 1 / cost);
  }
  return fastest;
}

}  // namespace

double ShardSecondsPerByte(const NodeLinks& links, std::span<const uint32_t> shares,
                           double unpipelined) {
  const MeasuredLinks measured = MeasuredOf(links, unpipelined);
  if (measured.s_per_byte.empty()) return 0;
  return ShardSecondsPerByte(measured.network(), SharesOfNodes(links, shares));
}

ShardChoice ChooseShards(const Snapshot& snapshot) {
  ShardChoice choice{snapshot.layout.shard_shares, snapshot.speedup.shards};
  const NodeLinks& links = snapshot.node_links;
  const MeasuredLinks measured =
      MeasuredOf(links, UnpipelinedShare(snapshot.buckets, snapshot.collectives, snapshot.world));
  if (measured.s_per_byte.empty() || measured.ranks.size() < 3) return choice;
  // Between phases that do not overlap nothing is gained.
  if (measured.unpipelined >= 1 && choice.shares.empty()) return choice;
  const auto best = BestShardShares(measured.network());
  if (!best.ok()) return choice;
  std::vector<uint32_t> shares = InUnits(links, measured, *best);

  MeasuredLinks alike = measured;
  alike.s_per_byte = AsAlikeAsPossible(measured, links.relative_deviation);
  const auto seconds = [&](const MeasuredLinks& on, std::span<const uint32_t> of) {
    return ShardSecondsPerByte(on.network(), SharesOfNodes(links, of));
  };
  const auto gains = [&](std::span<const uint32_t> from, std::span<const uint32_t> to) {
    return seconds(measured, from) >= kShardGainMin * seconds(measured, to) &&
           seconds(alike, from) >= kShardGainMin * seconds(alike, to);
  };
  const bool uneven = gains({}, shares);
  if (!uneven) shares.clear();
  const double running = seconds(measured, choice.shares), next = seconds(measured, shares);
  const bool better = uneven ? gains(choice.shares, shares) : running >= kEvenGainMin * next;
  if (!better || !(next > 0)) return choice;
  return {std::move(shares), snapshot.speedup.shards * running / next};
}

std::string ShareText(std::span<const uint32_t> shares) {
  std::string text;
  for (size_t i = 0; i < std::min(shares.size(), kSharesShown); ++i) {
    text += StrCat(i == 0 ? "" : " ", (100 * uint64_t{shares[i]} + kShareUnits / 2) / kShareUnits);
  }
  return text + (shares.size() <= kSharesShown ? " %" : StrCat(" ... % of ", shares.size()));
}

ShardFacts DescribeShards(const Snapshot& snapshot, std::span<const uint32_t> shares) {
  ShardFacts facts{.shares = {shares.begin(), shares.end()}};
  const NodeLinks& links = snapshot.node_links;
  const double unpipelined =
      UnpipelinedShare(snapshot.buckets, snapshot.collectives, snapshot.world);
  const MeasuredLinks measured = MeasuredOf(links, unpipelined);
  if (measured.s_per_byte.empty() || links.nodes.size() != shares.size()) return facts;
  const double even = ShardSecondsPerByte(links, {}, unpipelined);
  const double used = ShardSecondsPerByte(links, shares, unpipelined);
  if (!(used > 0) || !(even > used)) return facts;
  facts.speedup = even / used;
  const auto least = std::min_element(shares.begin(), shares.end()) - shares.begin();
  const auto most = std::max_element(shares.begin(), shares.end()) - shares.begin();
  facts.least_rank = static_cast<int>(least);
  facts.most_rank = static_cast<int>(most);
  facts.least_bytes_per_s = FastestLink(measured, links.nodes[static_cast<size_t>(least)]);
  facts.most_bytes_per_s = FastestLink(measured, links.nodes[static_cast<size_t>(most)]);
  return facts;
}

std::string ShardText(const ShardFacts& shards) {
  if (shards.shares.empty()) return "";
  const std::string text = "ranks own " + ShareText(shards.shares) + " of a bucket";
  if (!(shards.speedup > 0)) return text;
  return text + ", which moves " + NumberText(shards.speedup) +
         " times as fast as even shards: " + StrCat("rank ", shards.least_rank) +
         " owns least, its fastest link gives " + BandwidthText(shards.least_bytes_per_s) +
         StrCat(", that of rank ", shards.most_rank, " ") + BandwidthText(shards.most_bytes_per_s);
}

bool AreShardShares(std::span<const uint32_t> shares, int world) {
  if (shares.empty()) return true;
  const uint64_t sum = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
  return shares.size() == static_cast<size_t>(std::max(0, world)) && sum == kShareUnits;
}

Status CheckShards(const Snapshot& snapshot) {
  const std::vector<uint32_t>& shares = snapshot.layout.shard_shares;
  if (!AreShardShares(shares, snapshot.world)) {
    return InvalidArgument(StrCat("snapshot: shard_shares: expected a share of each of ",
                                  snapshot.world, " ranks, together ", kShareUnits, ", found ",
                                  shares.size(), " with a sum of ",
                                  std::accumulate(shares.begin(), shares.end(), uint64_t{0})));
  }
  if (std::isfinite(snapshot.speedup.shards) && snapshot.speedup.shards > 0) return OkStatus();
  return InvalidArgument(StrCat("snapshot: shard_speedup: expected a finite number above 0, found ",
                                snapshot.speedup.shards));
}

}  // namespace weir
