#pragma once
// What a collective that knows no nodes costs where ranks share them: who sends how much to whom is
// walked through message by message, for the bytes of a node's one interface and the latencies of
// the longest way through it.

#include <string_view>
#include <vector>

namespace weir {

/// Against the same collective with every rank on a node of its own.
struct NodeShare {
  double payloads = 1;  // through the busiest node's interface, over the busiest rank's alone
  double latencies_within = 0;  // fewer on the longest way between nodes: those are within nodes
  double payloads_within = 0;   // that a rank moves while nothing crosses between nodes
};

/// `pattern`: as CollectiveTraits has them in datapath/collective/collective.h; with an empty one,
/// or one that is not known here, ranks of a node share nothing. `nodes`: what each rank is on, in
/// 0 .. nodes.size() - 1. Bytes count in the busier direction.
/// Pure. O(N log N) for N ranks.
NodeShare ShareOf(std::string_view pattern, const std::vector<int>& nodes);

}  // namespace weir
