// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order of ranks around a ring. A ring moves as fast as its slowest link, so the order that
// avoids slow links is worth as much as a faster network. Pure; where an order is applied is not
// this file's business.

#include <span>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

struct RingOrder {
  std::vector<int> order;  // ranks around the ring, rank 0 first; each sends to the next one
  double bottleneck = 0;   // cost of the worst link in use; 0 in a world of one
  bool exact = true;       // no order has a lesser bottleneck
};

/// Worlds up to this size get an exact answer.
inline constexpr int kRingOrderExactMax = 12;
inline constexpr int kRingOrderWorldMax = 1024;

/// The order whose worst link costs least. `cost`: world x world, row-major, cost[i * world + j] of
/// the link from i to j, for example seconds per byte; finite and not negative, the diagonal is not
/// read. Directions may differ. Up to kRingOrderExactMax ranks the bottleneck is the least possible
/// and the order the lexicographically first one that reaches it; beyond, nearest neighbours and
/// then moves of stretches (2-opt and or-opt) until none helps, never worse than 0, 1, 2, ...
/// The same bits everywhere. Thread-safe. Exact: O(2^N N log N) time; else O(N^2) a move.
/// kInvalidArgument: a world outside of 1..kRingOrderWorldMax, another size of `cost`, a cost that
/// is negative or not finite (names the link). Source: Garfinkel and Gilbert, "The bottleneck
/// traveling salesman problem", JACM 25(3), 1978 (threshold and Hamiltonian cycle); Held and Karp,
/// SIAM 10(1), 1962, for the cycle; Croes, "A method for solving traveling-salesman problems",
/// Operations Research 6(6), 1958 (2-opt).
StatusOr<RingOrder> BestRingOrder(std::span<const double> cost, int world);

/// The cost of the worst link that the ring `order` uses. O(N).
double RingBottleneck(std::span<const double> cost, std::span<const int> order);

}  // namespace weir
