// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of a collective that does not know nodes where ranks share them: its schedule is run
// message by message, to count the bytes through the interface of each node and the latencies on
// the longest path.

#include <string_view>
#include <vector>

namespace weir {

/// Relative to the same collective with every rank on a separate node.
struct NodeShare {
  double payloads = 1;  // through the busiest node's interface, over those of the busiest rank
  double latencies_within = 0;  // latencies of the longest path that are within nodes instead
  double payloads_within = 0;   // that a rank moves while no message crosses between nodes
};

/// `pattern`: as in CollectiveTraits in datapath/collective/collective.h; with an empty or unknown
/// one, ranks of a node share nothing. `nodes`: the node of each rank, in 0 .. nodes.size() - 1.
/// Bytes count in the busier direction.
/// Pure. O(N log N) for N ranks.
NodeShare ShareOf(std::string_view pattern, const std::vector<int>& nodes);

}  // namespace weir
