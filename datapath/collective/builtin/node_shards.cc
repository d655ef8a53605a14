// SPDX-License-Identifier: Apache-2.0
// Sums of nodes, encoded once by all of their ranks: intra reduce-scatter -> compress -> inter ->
// intra all-gather. If all nodes have p ranks, each rank sums a p-th of the float32 elements of its
// node and encodes that. The ranks at the same place on their nodes exchange these payloads
// directly, decode and add them in the order of the ranks, and send their totals to the ranks of
// their node as float32.
//
// This differs from node_sums.cc in that p ranks encode, send and decode at the same time, and in
// that each rank sends 2 (p-1)/p of the elements within its node, where there the first rank sends
// p-1 times the elements or more. If nodes have different numbers of ranks, it equals node_sums.cc.
//
// Cost, with n nodes of p ranks, payloads of P bytes of a whole bucket and E bytes of float32
// elements:
//   alpha + (n-1) P beta + 2 alpha' + 2 (p-1)/p E beta' + (p-1)/p E gamma,
// where the p ranks of a node share one network interface. If every rank is alone on its node, this
// is a direct all-gather of payloads that decodes them. Source: Traeff, Hunold,
// "Decomposing MPI collectives for exploiting multi-lane communication", CLUSTER 2020, for the
// levels, with an all-gather of payloads in place of the all-reduce across.

#include "datapath/collective/node_parts.h"

namespace weir {

void RegisterNodeShards(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<NodeSumOperand>(
      registry, wire_id,
      {
          .name = "node_shards",
          .summary = "ranks sum and encode shards of their node's sum and gather them across nodes",
          .form = "node_shards",
          .cost = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}},
          .node_cost = {.by_node = true,
                        .even = {.latency = {.constant = 2},
                                 .payload = {.n_minus_1_over_n = 2},
                                 .reduce = {.n_minus_1_over_n = 1}},
                        .uneven = {.latency = {.constant = 2, .log2_n = 1},
                                   .payload = {.n_minus_1 = 1, .n_minus_1_over_n = 2},
                                   .reduce = {.n_minus_1 = 1}}},
          .world_max = 256,
      },
      [](Group& group, NodeSumOperand& operand, CollectiveReport*) -> Status {
        return RunNodeSums(group, operand, NodeEncoders::kAll);
      });
}

}  // namespace weir
