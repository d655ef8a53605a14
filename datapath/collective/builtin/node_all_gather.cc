// SPDX-License-Identifier: Apache-2.0
// All-gather by nodes: every payload is sent once to each other node and then distributed to the
// ranks of that node. A direct exchange would send it as often as the other node has ranks.
//
// The rank at place i of its node sends its payload to one rank of each other node: the one at
// place i modulo the number of ranks there, which is place i if nodes have equally many ranks. Then
// each rank sends all payloads that it has, its own and those from other nodes, to the ranks of its
// node.
//
// Cost, with n nodes of at most p ranks: 1 latency of the network and p (n-1) payloads through a
// node's interface, then 1 latency within nodes and n (p-1) payloads through each rank. If nodes
// have different numbers of ranks, a rank of a small node may carry a few more. Ranks that are
// alone on their nodes exchange directly, as in sparse_all_gather.cc. Source: the locality-aware
// all-gather of Bienz, Gautam, Kharel, "A locality-aware Bruck allgather", EuroMPI 2022, with
// direct exchanges on both levels and places modulo the other node's ranks.

#include <algorithm>
#include <cstring>

#include "datapath/collective/collective.h"
#include "datapath/collective/node_places.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// The ranks, ascending, whose payloads the rank at `place` of node `own` has after the exchange
// between nodes.
std::vector<int> HeldAt(const NodePlaces& places, size_t place, size_t own) {
  std::vector<int> held = {places.nodes[own][place]};
  const size_t ranks = places.nodes[own].size();
  for (size_t node = 0; node < places.nodes.size(); ++node) {
    if (node == own) continue;
    for (size_t i = place; i < places.nodes[node].size(); i += ranks) {
      held.push_back(places.nodes[node][i]);
    }
  }
  std::sort(held.begin(), held.end());
  return held;
}

class NodeGather {
 public:
  NodeGather(Group& group, const GatherOperand& operand)
      : group_(group),
        bytes_max_(operand.payload_bytes_max == 0 ? kFramePayloadBytesMax
                                                  : operand.payload_bytes_max),
        gathered_(*operand.gathered),
        places_(NodePlacesOf(group.nodes(), group.rank(), group.size())) {
    while (places_.nodes[own_] != places_.node) ++own_;
  }

  Status Run() {
    WEIR_RETURN_IF_ERROR(CrossNodes());
    return HandRound();
  }

 private:
  Status CrossNodes() {
    const std::span<const std::byte> own = gathered_[group_.rank()];
    std::vector<int> targets;
    for (size_t node = 0; node < places_.nodes.size(); ++node) {
      const std::vector<int>& ranks = places_.nodes[node];
      if (node != own_) targets.push_back(ranks[places_.place % ranks.size()]);
    }
    // Each rank begins with the rank after itself, so that they do not all send to one rank first.
    std::sort(targets.begin(), targets.end());
    std::rotate(targets.begin(), std::upper_bound(targets.begin(), targets.end(), group_.rank()),
                targets.end());
    const std::vector<int> held = HeldAt(places_, places_.place, own_);
    std::vector<PayloadReceiver> receivers;
    receivers.reserve(held.size());
    for (const int rank : held) {
      if (rank == group_.rank()) continue;
      receivers.emplace_back(group_, rank, bytes_max_, &gathered_[rank]);
      WEIR_RETURN_IF_ERROR(receivers.back().Start());
    }
    SendQueue sends(group_);
    for (size_t k = 0; k < PayloadSegments(group_, own.size()); ++k) {
      for (const int target : targets) {
        WEIR_RETURN_IF_ERROR(SendPayloadSegment(group_, sends, target, own, k));
      }
    }
    // Segments are read in turn, as they were sent, so that no stream stalls while another one is
    // read.
    std::vector<bool> done(receivers.size());
    for (size_t open = receivers.size(); open > 0;) {
      for (size_t i = 0; i < receivers.size(); ++i) {
        if (done[i]) continue;
        WEIR_ASSIGN_OR_RETURN(const auto segment, receivers[i].Next());
        if (segment.has_value()) continue;
        done[i] = true;
        --open;
      }
    }
    return sends.Drain();
  }

  // A rank sends all that it has as one payload: the length of each, then their bytes.
  Status HandRound() {
    if (places_.node.size() == 1) return OkStatus();
    const std::vector<std::byte> bundle = Bundle(HeldAt(places_, places_.place, own_));
    size_t held_max = 0;
    for (size_t place = 0; place < places_.node.size(); ++place) {
      held_max = std::max(held_max, HeldAt(places_, place, own_).size());
    }
    std::vector<std::vector<std::byte>> bundles;
    {
      const GroupPart node(group_, places_.node, kBackWithinNodeSlots);
      WEIR_RETURN_IF_ERROR(
          PayloadAllGather(group_, bundle, held_max * (bytes_max_ + sizeof(uint64_t)), &bundles));
    }
    for (size_t place = 0; place < bundles.size(); ++place) {
      if (static_cast<int>(place) == places_.place) continue;
      const Status status = Unbundle(bundles[place], HeldAt(places_, place, own_));
      if (status.ok()) continue;
      return group_.Fail(
          Annotate(status, StrCat("payloads that rank ", places_.node[place], " handed on")));
    }
    return OkStatus();
  }

  std::vector<std::byte> Bundle(const std::vector<int>& ranks) const {
    std::vector<std::byte> bundle;
    for (const int rank : ranks) {
      const uint64_t bytes = gathered_[rank].size();
      const auto header = std::as_bytes(std::span(&bytes, 1));
      bundle.insert(bundle.end(), header.begin(), header.end());
    }
    for (const int rank : ranks) {
      bundle.insert(bundle.end(), gathered_[rank].begin(), gathered_[rank].end());
    }
    return bundle;
  }

  Status Unbundle(std::span<const std::byte> bundle, const std::vector<int>& ranks) {
    std::vector<uint64_t> bytes(ranks.size());
    if (bundle.size() < ranks.size() * sizeof(uint64_t)) {
      return DataLoss(
          StrCat("expected ", ranks.size(), " lengths, found ", bundle.size(), " bytes"));
    }
    std::memcpy(bytes.data(), bundle.data(), ranks.size() * sizeof(uint64_t));
    bundle = bundle.subspan(ranks.size() * sizeof(uint64_t));
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (bytes[i] > bytes_max_ || bytes[i] > bundle.size()) {
        return DataLoss(StrCat("of rank ", ranks[i], ": expected at most ",
                               std::min<size_t>(bytes_max_, bundle.size()), " bytes, found ",
                               bytes[i]));
      }
      gathered_[ranks[i]].assign(bundle.begin(), bundle.begin() + static_cast<ptrdiff_t>(bytes[i]));
      bundle = bundle.subspan(bytes[i]);
    }
    if (bundle.empty()) return OkStatus();
    return DataLoss(StrCat("expected no bytes after the last, found ", bundle.size()));
  }

  Group& group_;
  const size_t bytes_max_;
  std::vector<std::vector<std::byte>>& gathered_;
  const NodePlaces places_;
  size_t own_ = 0;  // the index of this rank's node in places_.nodes
};

}  // namespace

void RegisterNodeAllGather(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<GatherOperand>(
      registry, wire_id,
      {
          .name = "node_all_gather",
          .summary =
              "payloads cross to each node once, then go round within it (Bienz et al. 2022)",
          .form = "opaque",
          .cost = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}},
          .node_cost = {.by_node = true,
                        .even = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}},
                        .uneven = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}}},
          .world_max = 256,
      },
      [](Group& group, GatherOperand& operand, CollectiveReport*) -> Status {
        return NodeGather(group, operand).Run();
      });
}

}  // namespace weir
