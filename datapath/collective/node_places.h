// SPDX-License-Identifier: Apache-2.0
#pragma once
// The groups of ranks that work together in collectives which know the ranks' nodes (Group::nodes).

#include <cstdint>
#include <span>
#include <vector>

namespace weir {

/// The first slots of the steps of one operation by nodes: 0 within nodes, then these.
inline constexpr uint32_t kAcrossNodesSlots = 0x10000000, kBackWithinNodeSlots = 0x20000000,
                          kAgreementSlots = 0x08000000;

/// Ranks are those of the group and ascend.
struct NodePlaces {
  std::vector<int> node;                // the ranks of this rank's node
  int place = 0;                        // this rank's place among them
  std::vector<int> across;              // on equal nodes: the ranks of this place on all nodes
  std::vector<int> leaders;             // the first ranks of all nodes
  std::vector<std::vector<int>> nodes;  // the ranks of every node
  bool equal = true;                    // all nodes have equally many ranks
};

/// The places as `rank` of `world` sees them. `nodes` as in Group::nodes; empty: every rank is a
/// node of its own. Pure, O(world log world).
NodePlaces NodePlacesOf(std::span<const int> nodes, int rank, int world);

}  // namespace weir
