// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which order of ranks around a ring a job should run on, by the links that were measured. The
// algorithm that finds orders is ring_order.h; this file says what a link costs, when a better
// order is worth a change, and puts it into words.

#include <span>
#include <string>
#include <vector>

#include "controller/model/snapshot.h"
#include "datapath/base/status.h"

namespace weir {

/// A better order must make the slowest link this much faster, or by twice the deviation of the
/// least certain link if that is more: estimates move, and every order is as good on equal links.
inline constexpr double kRingGainMin = 1.15;
/// Jobs on more nodes keep their order.
inline constexpr int kRingNodesMax = 64;

struct RingChoice {
  std::vector<int> order;  // empty: ascending
  double speedup = 1;      // see Snapshot::speedup
};

/// The order that the next plan should have: the incumbent's unless another one is better by
/// kRingGainMin. Ranks of a node stay together, so that each node is entered once; then nodes are
/// in the order whose slowest link is fastest. Links that nobody measured count as the slowest
/// known one, so no order is chosen for them. Pure. Complexity: BestRingOrder of the nodes.
RingChoice ChooseRing(const Snapshot& snapshot);

/// Seconds per byte of the slowest link of the ring `order` (empty: ascending), where a link that
/// the ring crosses k times in one direction takes k times as long; 0: no link of it was measured.
double RingSecondsPerByte(const NodeLinks& links, std::span<const int> order);

/// The effect of an order.
struct RingFacts {
  std::vector<int> order;  // empty: ascending, and nothing to say
  // The slowest link of the order, and of the ascending one with its ranks; 0: nothing is gained.
  double slowest_bytes_per_s = 0, avoided_bytes_per_s = 0;
  int avoided_from = 0, avoided_to = 0;
  friend bool operator==(const RingFacts&, const RingFacts&) = default;
};
RingFacts DescribeRing(const Snapshot& snapshot, std::span<const int> order);
/// "the ring goes 0 2 1 3: its slowest link gives 118 MB/s, ascending order would use 1.2 MB/s from
/// rank 1 to rank 2"; empty for an ascending one.
std::string RingText(const RingFacts& ring);
/// "0 2 1 3"; of more than 16 ranks the first ones and how many there are.
std::string OrderText(std::span<const int> order);

/// Whether `order` is empty or names each of `world` ranks once.
bool IsRingOrder(std::span<const int> order, int world);

/// kInvalidArgument: nodes, links or the order do not fit the world.
Status CheckRing(const Snapshot& snapshot);

}  // namespace weir
