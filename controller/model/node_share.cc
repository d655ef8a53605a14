// SPDX-License-Identifier: Apache-2.0
#include "controller/model/node_share.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace weir {
namespace {

/// Sums the traffic of one run. Messages of a round are sent before any message of that round has
/// arrived.
class NodeTraffic {
 public:
  explicit NodeTraffic(const std::vector<int>& nodes)
      : nodes_(nodes), out_(nodes.size()), in_(nodes.size()), round_(nodes.size()) {
    crossed_.resize(nodes.size());
    arrived_ = crossed_;
  }

  int world() const { return static_cast<int>(nodes_.size()); }

  void Send(int from, int to, double payloads) {
    const auto sender = static_cast<size_t>(from), receiver = static_cast<size_t>(to);
    const bool crosses = nodes_[sender] != nodes_[receiver];
    arrived_[receiver] = std::max(arrived_[receiver], crossed_[sender] + (crosses ? 1 : 0));
    round_within_ = std::max(round_within_, round_[sender] += payloads);
    if (!crosses) return;
    round_crosses_ = true;
    out_[static_cast<size_t>(nodes_[sender])] += payloads;
    in_[static_cast<size_t>(nodes_[receiver])] += payloads;
  }

  void EndRound() {
    crossed_ = arrived_;
    if (!round_crosses_) within_ += round_within_;
    round_crosses_ = false;
    round_within_ = 0;
    std::fill(round_.begin(), round_.end(), 0.0);
  }

  double Busiest() const {
    return std::max(*std::max_element(out_.begin(), out_.end()),
                    *std::max_element(in_.begin(), in_.end()));
  }
  /// The number of messages between nodes on the longest path.
  int Crossed() const { return *std::max_element(crossed_.begin(), crossed_.end()); }
  double Within() const { return within_; }

 private:
  const std::vector<int>& nodes_;
  std::vector<double> out_, in_;  // by node
  std::vector<double> round_;     // sent by each rank in this round
  std::vector<int> crossed_,
      arrived_;  // on the longest path to each rank, before and in this round
  double within_ = 0, round_within_ = 0;
  bool round_crosses_ = false;
};

/// recursive_doubling.cc
void RunDoubling(NodeTraffic& traffic) {
  const int world = traffic.world();
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(world)));
  for (int rank = power; rank < world; ++rank) traffic.Send(rank, rank - power, 1);
  traffic.EndRound();
  for (int bit = 1; bit < power; bit <<= 1) {
    for (int rank = 0; rank < power; ++rank) traffic.Send(rank, rank ^ bit, 1);
    traffic.EndRound();
  }
  for (int rank = power; rank < world; ++rank) traffic.Send(rank - power, rank, 1);
  traffic.EndRound();
}

/// circulant.cc: a reduce-scatter, then the same rounds backwards.
void RunCirculant(NodeTraffic& traffic) {
  const int world = traffic.world();
  std::vector<int> skips = {world};
  while (skips.back() > 1) skips.push_back((skips.back() + 1) / 2);
  const auto round = [&](size_t k, int direction) {
    const double payloads = static_cast<double>(skips[k] - skips[k + 1]) / world;
    for (int rank = 0; rank < world; ++rank) {
      traffic.Send(rank, (rank + world + direction * skips[k + 1]) % world, payloads);
    }
    traffic.EndRound();
  };
  for (size_t k = 0; k + 1 < skips.size(); ++k) round(k, 1);
  for (size_t k = skips.size() - 1; k > 0; --k) round(k - 1, -1);
}

/// bruck_all_gather.cc
void RunBruck(NodeTraffic& traffic) {
  const int world = traffic.world();
  for (int distance = 1; distance < world; distance *= 2) {
    for (int rank = 0; rank < world; ++rank) {
      traffic.Send(rank, (rank + world - distance) % world, std::min(distance, world - distance));
    }
    traffic.EndRound();
  }
}

/// ps_star.cc
void RunStar(NodeTraffic& traffic) {
  for (int rank = 1; rank < traffic.world(); ++rank) traffic.Send(rank, 0, 1);
  traffic.EndRound();
  for (int rank = 1; rank < traffic.world(); ++rank) traffic.Send(0, rank, 1);
  traffic.EndRound();
}

/// BinomialBroadcast of primitives.cc, from rank 0. From other ranks up to twice as many messages
/// may cross between nodes with unequal numbers of ranks, and one or two more one after the other.
void RunBroadcast(NodeTraffic& traffic) {
  for (int distance = 1; distance < traffic.world(); distance *= 2) {
    for (int rank = 0; rank < distance && rank + distance < traffic.world(); ++rank) {
      traffic.Send(rank, rank + distance, 1);
    }
    traffic.EndRound();
  }
}

/// tree.cc: the parent of position p of 1 .. N is the nearest position with more trailing zeros
/// that is not behind one with still more. Messages go up from the lowest level and then down
/// again, half a payload each in each of two trees.
void RunTrees(NodeTraffic& traffic) {
  const int world = traffic.world();
  const auto level_of = [](int p) { return std::countr_zero(static_cast<unsigned>(p)); };
  // The nearest positions of a higher level are on both sides; the parent is the one of lower
  // level.
  const auto parent_of = [&](int p) {
    const int step = 1 << level_of(p), left = p - step, right = p + step;
    if (left == 0) return right <= world ? right : 0;
    if (right > world) return left;
    return level_of(left) < level_of(right) ? left : right;
  };
  const int levels = std::bit_width(static_cast<unsigned>(world));
  const auto round = [&](int shift, int level, bool down) {
    const auto rank_at = [&](int p) { return (p - 1 - shift + world) % world; };
    for (int p = 1 << level; p <= world; p += 2 << level) {
      const int parent = parent_of(p);
      if (parent == 0) continue;
      const int child_rank = rank_at(p), parent_rank = rank_at(parent);
      traffic.Send(down ? parent_rank : child_rank, down ? child_rank : parent_rank, 0.5);
    }
  };
  for (int step = 0; step < 2 * levels; ++step) {
    const bool down = step >= levels;
    for (int shift = 0; shift < 2; ++shift) {
      round(shift, down ? 2 * levels - 1 - step : step, down);
    }
    traffic.EndRound();
  }
}

struct Schedule {
  std::string_view pattern;
  void (*run)(NodeTraffic&);
  bool pipelined;  // rounds overlap
};
constexpr std::array<Schedule, 6> kSchedules = {{{"doubling", RunDoubling, false},
                                                 {"circulant", RunCirculant, false},
                                                 {"bruck", RunBruck, false},
                                                 {"star", RunStar, true},
                                                 {"broadcast", RunBroadcast, true},
                                                 {"trees", RunTrees, true}}};

NodeShare ShareOfSchedule(void (*run)(NodeTraffic&), bool pipelined,
                          const std::vector<int>& nodes) {
  std::vector<int> own(nodes.size());
  std::iota(own.begin(), own.end(), 0);
  NodeTraffic shared(nodes), alone(own);
  run(shared);
  run(alone);
  return {.payloads = shared.Busiest() / alone.Busiest(),
          .latencies_within = static_cast<double>(alone.Crossed() - shared.Crossed()),
          .payloads_within = pipelined ? 0 : shared.Within()};
}

NodeShare ShareOfPairs(const std::vector<int>& nodes) {
  const int world = static_cast<int>(nodes.size());
  std::vector<int> ranks(nodes.size());
  for (const int node : nodes) ++ranks[static_cast<size_t>(node)];
  double busiest = 0;
  for (const int here : ranks) {
    busiest = std::max(busiest, static_cast<double>(here) * (world - here));
  }
  return {.payloads = busiest / (world - 1)};
}

}  // namespace

NodeShare ShareOf(std::string_view pattern, const std::vector<int>& nodes) {
  if (nodes.size() < 2) return {};
  if (pattern == "pairs") return ShareOfPairs(nodes);
  const auto schedule = std::find_if(kSchedules.begin(), kSchedules.end(),
                                     [&](const Schedule& one) { return one.pattern == pattern; });
  if (schedule == kSchedules.end()) return {};
  return ShareOfSchedule(schedule->run, schedule->pipelined, nodes);
}

}  // namespace weir
