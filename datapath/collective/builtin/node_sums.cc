// SPDX-License-Identifier: Apache-2.0
// Sums of nodes, encoded once by their first ranks: intra -> compress -> inter -> intra. The ranks
// of a node send their float32 elements to its first one, which adds them and encodes the sum. The
// first ranks of all nodes exchange these payloads directly. Each decodes and adds them in the
// order of the ranks and sends the total to its node as float32.
//
// Compared with encoding at every rank (compress -> intra -> inter, see node_all_gather.cc), one
// payload for each node crosses the network instead of one for each rank, only one encoding has an
// error, and a node decodes no more if it has more ranks. But float32 elements are sent within
// nodes, and the other ranks wait while the first one encodes and decodes. The owner of the
// callbacks keeps the error of the encoding as a residual at the rank that encodes.
//
// Cost, with n nodes of at most p ranks, payloads of P bytes and E bytes of float32 elements:
//   alpha + (n-1) P beta + (2 + ceil(log2 p)) alpha' + ((p-1) + 2 (p-1)/p) E beta' + (p-1) E gamma,
// of which the broadcast may need less, see hierarchical.cc. If every rank is alone on its node,
// this is a direct all-gather of payloads that decodes them. Source: Goyal et
// al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 4, for the order
// (sums within servers, a step between servers, broadcasts within), with payloads of the sums in
// place of the sums.

#include "datapath/collective/node_parts.h"

namespace weir {
namespace {

constexpr WithinNodeCost kThroughFirst = {.latency = {.constant = 2, .log2_n = 1},
                                          .payload = {.n_minus_1 = 1, .n_minus_1_over_n = 2},
                                          .reduce = {.n_minus_1 = 1}};

}  // namespace

void RegisterNodeSums(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<NodeSumOperand>(
      registry, wire_id,
      {
          .name = "node_sums",
          .summary = "first ranks sum their nodes, encode the sums and gather them",
          .form = "node_sums",
          .cost = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}},
          .node_cost = {.by_node = true, .even = kThroughFirst, .uneven = kThroughFirst},
          .world_max = 256,
      },
      [](Group& group, NodeSumOperand& operand, CollectiveReport*) -> Status {
        return RunNodeSums(group, operand, NodeEncoders::kFirst);
      });
}

}  // namespace weir
