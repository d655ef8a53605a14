#pragma once
// Sums of nodes, encoded once (exchange forms node_sums and node_shards): ranks of a node add their
// float32 elements exactly, what crosses between nodes is the sum's payload, and what all nodes'
// payloads decode to is handed back within each node as float32. Shared by the collectives of
// builtin/node_sums.cc and builtin/node_shards.cc.

#include "datapath/base/status.h"
#include "datapath/collective/collective.h"

namespace weir {

/// How many ranks of a node encode the node's sum.
enum class NodeEncoders {
  kFirst,  // the first rank, all of it
  kAll,    // each an equal part where all nodes hold as many ranks, otherwise the first all of it
};

/// How many parts a node's sum is cut into for `rank` of `world`, one after another for the places
/// of the ranks of its node; ranks at further places have no part. `nodes` as of Group::nodes.
/// Pure.
int NodePartsOf(NodeEncoders encoders, std::span<const int> nodes, int rank, int world);

/// Which part is that of `rank`, below NodePartsOf, or -1.
int OwnNodePart(NodeEncoders encoders, std::span<const int> nodes, int rank, int world);

/// Runs the operation. Errors fail the group.
Status RunNodeSums(Group& group, NodeSumOperand& operand, NodeEncoders encoders);

}  // namespace weir
