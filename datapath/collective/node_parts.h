// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums of nodes that are encoded once (exchange forms node_sums and node_shards). The ranks of a
// node add their float32 elements exactly. The payload of that sum is sent to the other nodes. The
// decoded sum of all nodes' payloads is distributed within each node as float32. Shared by the
// collectives of builtin/node_sums.cc and builtin/node_shards.cc.

#include "datapath/base/status.h"
#include "datapath/collective/collective.h"

namespace weir {

/// How many ranks of a node encode the node's sum.
enum class NodeEncoders {
  kFirst,  // the first rank encodes all of it
  kAll,    // each encodes an equal part if all nodes have equally many ranks, else as kFirst
};

/// The number of parts into which the sum of the node of `rank` is cut. Part i belongs to the i-th
/// rank of the node; ranks beyond the last part have none. `nodes` as in Group::nodes. Pure.
int NodePartsOf(NodeEncoders encoders, std::span<const int> nodes, int rank, int world);

/// The part that belongs to `rank`, below NodePartsOf, or -1.
int OwnNodePart(NodeEncoders encoders, std::span<const int> nodes, int rank, int world);

/// Runs the operation. Errors fail the group.
Status RunNodeSums(Group& group, NodeSumOperand& operand, NodeEncoders encoders);

}  // namespace weir
