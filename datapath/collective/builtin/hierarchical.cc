// SPDX-License-Identifier: Apache-2.0
// Hierarchical all-reduce: the ranks of a node sum among themselves first, so that no more than one
// payload for every node crosses the network.
//
// If all nodes have equally many ranks (p ranks on each of n nodes), a reduce-scatter within the
// node leaves each rank a shard, the ranks at the same place on their nodes all-reduce it, and an
// all-gather within the node completes the sum. Each rank then sends 2 (n-1)/(n p) payloads across
// the network in 2 ceil(log2 n) latencies, all p ranks of a node at the same time, and 2 (p-1)/p
// payloads within the node in 2 ceil(log2 p) of its latencies. Otherwise the first rank of each
// node sums its node, the first ranks all-reduce, and each sends the total to its node.
//
// Cost, with alpha, beta, gamma of the network, alpha', beta' of a node's memory, M bytes of lanes:
//   equal nodes: 2 ceil(log2 n) alpha + 2 (n-1)/n M beta + (n-1)/(n p) M gamma
//                + 2 ceil(log2 p) alpha' + 2 (p-1)/p M beta' + (p-1)/p M gamma,
// where the p ranks of a node share one network interface; ranks that stand alone (p = 1) run
// halving_doubling.cc. Otherwise, p ranks on the fullest node:
//                2 ceil(log2 n) alpha + 2 (n-1)/n M beta + (n-1)/n M gamma
//                + (2 + ceil(log2 p)) alpha' + ((p-1) + 2 (p-1)/p) M beta' + (p-1) M gamma,
// an upper bound: the broadcast may need two latencies or (p-2)/p payloads fewer. All ranks use the
// same list of nodes (Group::nodes). Each element is summed once, in an order that depends only on
// the list and the place of the element, so all ranks get the same bits. Source: Traeff,
// Hunold, "Decomposing MPI collectives for exploiting multi-lane communication", CLUSTER 2020, for
// equal nodes; Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize
// collective operation performance", IPDPS 2000, for the others; both on the circulant rounds of
// circulant.h.

#include "datapath/collective/broadcast.h"
#include "datapath/collective/circulant.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/node_places.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// Adds the lanes of all members at member 0, in their order, segment by segment.
Status ReduceToFirst(Group& group, const Lanes& lanes) {
  const Partition partition(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                          .parts = 1,
                                          .segment_bytes = group.segment_bytes(),
                                          .pipeline_depth = 4});
  if (group.rank() > 0) {
    SendQueue sends(group);
    for (size_t s = 0; s < partition.segments(); ++s) {
      WEIR_RETURN_IF_ERROR(sends.Send(0, static_cast<uint32_t>(s), partition.Segment(0, s)));
    }
    return sends.Drain();
  }
  const size_t peers = static_cast<size_t>(group.size()) - 1;
  std::vector<Scratch> scratch = ScratchFor(group, peers, partition.segment_bytes());
  std::vector<ReceiveStream> receives;
  receives.reserve(peers);
  for (size_t peer = 0; peer < peers; ++peer) {
    Scratch& buffers = scratch[peer];
    receives.emplace_back(group, static_cast<int>(peer) + 1, 0, partition.segments(),
                          Scratch::kWindow,
                          [&](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
                            return buffers.Buffer(s, partition.Segment(0, s).size());
                          });
    WEIR_RETURN_IF_ERROR(receives.back().Post());
  }
  for (size_t s = 0; s < partition.segments(); ++s) {
    for (ReceiveStream& receive : receives) {
      WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> addend, receive.Next());
      lanes.accumulate(partition.Segment(0, s), addend);
    }
  }
  return OkStatus();
}

Status ReduceEqualNodes(Group& group, const NodePlaces& places, const Lanes& lanes) {
  Lanes shard = lanes;
  {
    const GroupPart node(group, places.node, 0);
    WEIR_RETURN_IF_ERROR(CirculantReduceScatter(group, lanes));
    shard.bytes = CirculantChunk(lanes, group.rank(), group.size());
  }
  {
    const GroupPart across(group, places.across, kAcrossNodesSlots);
    WEIR_RETURN_IF_ERROR(CirculantAllReduce(group, shard));
  }
  const GroupPart node(group, places.node, kBackWithinNodeSlots);
  return CirculantAllGather(group, lanes);
}

Status ReduceByLeaders(Group& group, const NodePlaces& places, const Lanes& lanes) {
  const bool leads = group.rank() == places.node.front();
  {
    const GroupPart node(group, places.node, 0);
    WEIR_RETURN_IF_ERROR(ReduceToFirst(group, lanes));
  }
  if (leads) {
    const GroupPart across(group, places.leaders, kAcrossNodesSlots);
    WEIR_RETURN_IF_ERROR(CirculantAllReduce(group, lanes));
  }
  const GroupPart node(group, places.node, kBackWithinNodeSlots);
  return Broadcast(group, 0, lanes.bytes);
}

}  // namespace

void RegisterHierarchical(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "hierarchical",
          .summary = "sums within nodes, shards all-reduced across them (Traeff and Hunold 2020)",
          .form = "lanes",
          .cost = {.latency = {.log2_n = 2},
                   .payload = {.n_minus_1_over_n = 2},
                   .reduce = {.n_minus_1_over_n = 1}},
          .node_cost = {.by_node = true,
                        .even = {.latency = {.log2_n = 2},
                                 .payload = {.n_minus_1_over_n = 2},
                                 .reduce = {.n_minus_1_over_n = 1}},
                        .uneven = {.latency = {.constant = 2, .log2_n = 1},
                                   .payload = {.n_minus_1 = 1, .n_minus_1_over_n = 2},
                                   .reduce = {.n_minus_1 = 1}}},
      },
      [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
        if (group.size() == 1) return OkStatus();
        // The control word and flags must be sent even without lanes.
        if (lanes.bytes.empty()) return Barrier(group);
        const NodePlaces places = NodePlacesOf(group.nodes(), group.rank(), group.size());
        if (places.equal) return ReduceEqualNodes(group, places, lanes);
        return ReduceByLeaders(group, places, lanes);
      });
}

}  // namespace weir
