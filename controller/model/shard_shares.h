// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much of a bucket each node should own in a collective that cuts it into one shard for each
// rank, where links differ: a linear programme, solved with COIN-OR Clp. Pure; when shares are
// worth a change is not this file's business.

#include <span>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// Worlds of more nodes are refused.
inline constexpr int kShardNodesMax = 64;

/// Who exchanges shards, and over what.
struct ShardNetwork {
  // nodes x nodes, row-major: seconds per byte of the link from i to j at [i * nodes + j], finite
  // and not negative; the diagonal is not read. Directions may differ.
  std::span<const double> s_per_byte;
  std::span<const int> ranks;  // on each node, at least 1
  // Share of the bytes that begin their second phase only when the first has ended: 1 where each
  // shard is one message, 1/S where it is S segments that follow each other.
  double unpipelined = 0;
};

/// Seconds for each byte of a bucket of which node i owns the share `shares[i]` of 0 .. 1:
///   T = (1-h) x + h (p1 + p2), h = unpipelined,
/// x what the busiest interface or link carries of both phases, p1 and p2 what it carries in the
/// first (contributions go to their owners) and the second (sums go to all). Node a with P_a ranks
/// sends P_a W_b to node b first, then P_b W_a; an interface is as fast as the fastest link that it
/// has been seen on. Latency is left out: shares do not change how many messages follow each other.
/// Within nodes nothing is slow. Thread-safe. O(nodes^2).
double ShardSecondsPerByte(const ShardNetwork& network, std::span<const double> shares);

/// The shares W_i >= 0 of nodes, sum 1, with the least ShardSecondsPerByte; of those, to a
/// thousandth of it, shares whose largest one of a rank is least, so that equal links give even
/// ones. Ranks of a node own alike. The same input gives the same shares on every machine of one
/// architecture with one build of the solver. Thread-safe. A simplex of nodes + 4 columns.
/// kInvalidArgument: nodes outside of 1 .. kShardNodesMax, sizes that differ, a cost that is
/// negative or not finite (names the link), a node without ranks, an `unpipelined` outside of
/// 0 .. 1; kInternal: the solver found no optimum (says what it found).
/// Source: the programme of hivemind's load balancer, min x with (1 + (N-2) w_i) / B_i <= x and
/// sum w_i = 1, extended by links, directions, nodes and phases that do not overlap.
StatusOr<std::vector<double>> BestShardShares(const ShardNetwork& network);

}  // namespace weir
