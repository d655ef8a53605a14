// SPDX-License-Identifier: Apache-2.0
#include "controller/model/ring_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

namespace weir {
namespace {

class Links {
 public:
  Links(std::span<const double> cost, int world) : cost_(cost), world_(world) {}
  int world() const { return world_; }
  double operator()(int from, int to) const {
    return cost_[static_cast<size_t>(from) * static_cast<size_t>(world_) + static_cast<size_t>(to)];
  }

 private:
  std::span<const double> cost_;
  int world_;
};

// The lexicographically first cycle through all ranks over links that cost at most `limit`; empty
// when there is none. completes[set] has a bit for each last rank of a path that still has to visit
// `set` (of ranks 1 ..) and can do so and return to 0; so every step forward is known to succeed.
std::vector<int> CycleWithin(const Links& links, double limit) {
  const int others = links.world() - 1;
  const uint32_t everyone = (1u << others) - 1;
  std::vector<uint32_t> reaches(others);  // ranks 1 .. as bits 0 ..
  uint32_t home = 0;                      // who reaches rank 0
  for (int i = 0; i < others; ++i) {
    for (int j = 0; j < others; ++j) {
      if (i != j && links(i + 1, j + 1) <= limit) reaches[i] |= 1u << j;
    }
    if (links(i + 1, 0) <= limit) home |= 1u << i;
  }
  std::vector<uint32_t> completes(size_t{everyone} + 1);
  completes[0] = home;
  for (uint32_t left = 1; left <= everyone; ++left) {
    for (int last = 0; last < others; ++last) {
      if (left >> last & 1) continue;
      uint32_t next = reaches[last] & left;
      for (; next != 0; next &= next - 1) {
        const int step = std::countr_zero(next);
        if (completes[left ^ (1u << step)] >> step & 1) break;
      }
      if (next != 0) completes[left] |= 1u << last;
    }
  }
  std::vector<int> order = {0};
  for (uint32_t left = everyone; left != 0;) {
    const int last = order.back();
    int step = 0;
    for (; step < others; ++step) {
      if (!(left >> step & 1) || links(last, step + 1) > limit) continue;
      if (completes[left ^ (1u << step)] >> step & 1) break;
    }
    if (step == others) return {};
    left ^= 1u << step;
    order.push_back(step + 1);
  }
  return order;
}

RingOrder ExactOrder(const Links& links) {
  std::vector<double> limits;
  for (int i = 0; i < links.world(); ++i) {
    for (int j = 0; j < links.world(); ++j) {
      if (i != j) limits.push_back(links(i, j));
    }
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  size_t low = 0, high = limits.size() - 1;  // the highest limit admits every link
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (CycleWithin(links, limits[middle]).empty()) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return {.order = CycleWithin(links, limits[low]), .bottleneck = limits[low]};
}

// The score to minimise: the worst link, then the number of links that are as bad, then the sum.
struct RingScore {
  double worst = 0;
  int as_bad = 0;
  double sum = 0;
  friend auto operator<=>(const RingScore&, const RingScore&) = default;
};

RingScore ScoreOf(const Links& links, std::span<const int> order) {
  RingScore score;
  for (size_t i = 0; i < order.size(); ++i) {
    const double cost = links(order[i], order[(i + 1) % order.size()]);
    if (cost > score.worst) score = {.worst = cost, .as_bad = 0, .sum = score.sum};
    score.as_bad += cost == score.worst;
    score.sum += cost;
  }
  return score;
}

std::vector<int> NearestNeighbours(const Links& links) {
  std::vector<int> order = {0}, left(links.world() - 1);
  std::iota(left.begin(), left.end(), 1);
  while (!left.empty()) {
    const auto next = std::min_element(left.begin(), left.end(), [&](int a, int b) {
      return links(order.back(), a) < links(order.back(), b);
    });
    order.push_back(*next);
    left.erase(next);
  }
  return order;
}

// A move that leaves the worst link where it is cannot help, so all moves tried cut it. False when
// none helps.
bool Improve(const Links& links, std::vector<int>& order) {
  const size_t n = order.size();
  RingScore best = ScoreOf(links, order);
  size_t cut = 0;  // the worst link leaves this place
  while (links(order[cut], order[(cut + 1) % n]) != best.worst) ++cut;
  // The ring is read from behind the cut, so that a move is a prefix of it.
  std::rotate(order.begin(), order.begin() + static_cast<ptrdiff_t>((cut + 1) % n), order.end());
  std::vector<int> better;
  const auto offer = [&](std::vector<int> candidate) {
    const RingScore score = ScoreOf(links, candidate);
    if (!(score < best)) return;
    best = score;
    better = std::move(candidate);
  };
  for (size_t length = 1; length < n; ++length) {
    const auto middle = order.begin() + static_cast<ptrdiff_t>(length);
    std::vector<int> turned(order);
    std::reverse(turned.begin(), turned.begin() + static_cast<ptrdiff_t>(length));
    offer(std::move(turned));
    // The first or the last rank goes between two others.
    std::vector<int> first(order.begin() + 1, order.end());
    first.insert(first.begin() + static_cast<ptrdiff_t>(length - 1), order.front());
    offer(std::move(first));
    std::vector<int> last(order.begin(), middle);
    last.push_back(order.back());
    last.insert(last.end(), middle, order.end() - 1);
    offer(std::move(last));
  }
  if (better.empty()) return false;
  order = std::move(better);
  return true;
}

RingOrder GoodOrder(const Links& links) {
  std::vector<int> given(links.world());
  std::iota(given.begin(), given.end(), 0);
  RingOrder best;
  RingScore best_score;
  for (std::vector<int> order : {NearestNeighbours(links), given}) {
    while (Improve(links, order)) {
    }
    const RingScore score = ScoreOf(links, order);
    if (!best.order.empty() && !(score < best_score)) continue;
    std::rotate(order.begin(), std::find(order.begin(), order.end(), 0), order.end());
    best_score = score;
    best = {.order = std::move(order), .bottleneck = score.worst, .exact = false};
  }
  return best;
}

}  // namespace

double RingBottleneck(std::span<const double> cost, std::span<const int> order) {
  if (order.size() < 2) return 0;
  return ScoreOf(Links(cost, static_cast<int>(order.size())), order).worst;
}

StatusOr<RingOrder> BestRingOrder(std::span<const double> cost, int world) {
  if (world < 1 || world > kRingOrderWorldMax) {
    return InvalidArgument(
        StrCat("ring: expected 1 to ", kRingOrderWorldMax, " ranks, found ", world));
  }
  const auto ranks = static_cast<size_t>(world);
  if (cost.size() != ranks * ranks) {
    return InvalidArgument(
        StrCat("ring: expected ", ranks * ranks, " costs of links, found ", cost.size()));
  }
  const Links links(cost, world);
  for (int i = 0; i < world; ++i) {
    for (int j = 0; j < world; ++j) {
      if (i == j || (std::isfinite(links(i, j)) && links(i, j) >= 0)) continue;
      return InvalidArgument(StrCat("ring: expected a finite cost of at least 0 from rank ", i,
                                    " to rank ", j, ", found ", links(i, j)));
    }
  }
  if (world == 1) return RingOrder{.order = {0}};
  return world <= kRingOrderExactMax ? ExactOrder(links) : GoodOrder(links);
}

}  // namespace weir
