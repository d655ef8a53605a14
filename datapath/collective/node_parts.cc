// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/node_parts.h"

#include <algorithm>

#include "datapath/collective/broadcast.h"
#include "datapath/collective/device_parts.h"
#include "datapath/collective/node_places.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// Cuts a part into messages.
struct PartSegments {
  std::span<std::byte> bytes;
  size_t segment_bytes;
  size_t count() const { return (bytes.size() + segment_bytes - 1) / segment_bytes; }
  std::span<std::byte> operator[](size_t k) const {
    const size_t begin = k * segment_bytes;
    return bytes.subspan(begin, std::min(segment_bytes, bytes.size() - begin));
  }
};

// Leaves at rank i the sum of part i over all ranks: its own contribution first, then those of the
// others by ascending rank.
Status ReduceParts(Group& group, const Lanes& lanes, Parts parts) {
  const int world = group.size(), rank = group.rank();
  const size_t whole = group.segment_bytes() / lanes.lane_bytes * lanes.lane_bytes;
  const size_t segment_bytes = std::max(whole, lanes.lane_bytes);
  const auto part_of = [&](int place) {
    const bool has = static_cast<size_t>(place) < parts.size();
    return PartSegments{has ? parts[static_cast<size_t>(place)] : std::span<std::byte>(),
                        segment_bytes};
  };
  const PartSegments own = part_of(rank);
  std::vector<Scratch> scratch =
      ScratchFor(group, world, std::min(segment_bytes, own.bytes.size()));
  std::vector<ReceiveStream> receives;
  receives.reserve(world);
  size_t rounds = own.count();
  for (int peer = 0; peer < world; ++peer) {
    rounds = std::max(rounds, part_of(peer).count());
    if (peer == rank || own.count() == 0) continue;
    Scratch& buffers = scratch[peer];
    receives.emplace_back(group, peer, 0, own.count(), Scratch::kWindow,
                          [&](size_t k) -> StatusOr<std::optional<std::span<std::byte>>> {
                            return buffers.Buffer(k, own[k].size());
                          });
    WEIR_RETURN_IF_ERROR(receives.back().Post());
  }
  SendQueue sends(group);
  for (size_t k = 0; k < rounds; ++k) {
    for (int distance = 1; distance < world; ++distance) {
      const int peer = (rank + distance) % world;
      const PartSegments part = part_of(peer);
      if (k < part.count()) {
        WEIR_RETURN_IF_ERROR(sends.Send(peer, static_cast<uint32_t>(k), part[k]));
      }
    }
    if (k >= own.count()) continue;
    for (ReceiveStream& receive : receives) {
      WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> addend, receive.Next());
      lanes.accumulate(own[k], addend);
    }
  }
  return sends.Drain();
}

// Copies each part from its owner to all ranks.
Status GatherParts(Group& group, const Lanes& lanes, Parts parts) {
  if (parts.size() == 1) return Broadcast(group, 0, lanes.bytes);
  std::vector<std::span<const std::byte>> outgoing(group.size(), parts[group.rank()]);
  std::vector<std::span<std::byte>> incoming(parts.begin(), parts.end());
  incoming[group.rank()] = {};
  return DirectExchange(group, outgoing, incoming);
}

// On a device: replaces the own part by the sum of these payloads, which are in rank order.
Status ReplaceSum(Group& group, const NodeSumOperand& operand,
                  const std::vector<std::vector<std::byte>>& payloads) {
  std::vector<int> from(payloads.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = group.NameOf(static_cast<int>(i));
  const std::vector<std::span<const std::byte>> spans(payloads.begin(), payloads.end());
  const Status status = operand.replace_sum(from, spans);
  return status.ok() ? status : group.Fail(Annotate(status, "sums of the nodes"));
}

// Exchanges the payloads of one part between all nodes and adds them in the order of the ranks that
// encoded them.
Status CrossNodes(Group& group, const NodeSumOperand& operand) {
  std::vector<std::vector<std::byte>> payloads;
  const std::vector<std::span<const std::byte>> outgoing(group.size(), operand.sum);
  if (operand.device != nullptr) {
    WEIR_RETURN_IF_ERROR(PayloadExchange(group, outgoing, operand.payload_bytes_max, &payloads));
    return ReplaceSum(group, operand, payloads);
  }
  return PayloadExchange(group, outgoing, operand.payload_bytes_max, &payloads, [&](int from) {
    const int encoder = group.NameOf(from);
    const Status status = operand.add(encoder, payloads[from]);
    if (status.ok()) return OkStatus();
    return group.Fail(Annotate(status, StrCat("sum of the node of rank ", encoder)));
  });
}

Status CheckNodeParts(Group& group, const NodeSumOperand& operand, size_t expected) {
  const std::span<std::byte> lanes = operand.lanes.bytes;
  const std::byte* at = lanes.data();
  bool whole = operand.parts.size() == expected;
  for (const std::span<std::byte> part : operand.parts) {
    whole = whole && (part.empty() || part.data() == at);
    whole = whole && part.size() % operand.lanes.lane_bytes == 0;
    whole = whole && (part.size() > 0 || at != lanes.data() || lanes.empty());
    at += part.size();
  }
  if (whole && at == lanes.data() + lanes.size()) return OkStatus();
  return group.Fail(
      InvalidArgument(StrCat("expected ", expected, " parts, the first not empty, of ",
                             lanes.size(), " bytes, found ", operand.parts.size())));
}

}  // namespace

int NodePartsOf(NodeEncoders encoders, std::span<const int> nodes, int rank, int world) {
  const NodePlaces places = NodePlacesOf(nodes, rank, world);
  const bool all = encoders == NodeEncoders::kAll && places.equal;
  return all ? static_cast<int>(places.node.size()) : 1;
}

int OwnNodePart(NodeEncoders encoders, std::span<const int> nodes, int rank, int world) {
  const int place = NodePlacesOf(nodes, rank, world).place;
  return place < NodePartsOf(encoders, nodes, rank, world) ? place : -1;
}

namespace {

// Leaves at rank i of the node the sum of part i.
Status SumWithinNode(Group& group, NodeSumOperand& operand, const std::vector<int>& node) {
  if (group.devices() != nullptr) {
    const GroupPart part(group, node, kAgreementSlots);
    WEIR_ASSIGN_OR_RETURN(operand.by_devices, AllOnDevices(group, operand.device != nullptr));
  }
  const GroupPart part(group, node, 0);
  if (operand.by_devices) return ReducePartsByDevices(group, operand);
  if (operand.device == nullptr) return ReduceParts(group, operand.lanes, operand.parts);
  HostParts host(operand);
  WEIR_RETURN_IF_ERROR(FailOnError(group, host.ReadAll()));
  WEIR_RETURN_IF_ERROR(ReduceParts(group, host.lanes(), host.parts()));
  return FailOnError(group, host.WritePart(group.rank()));
}

// The reverse: copies part i from rank i of the node to all of its ranks.
Status GatherWithinNode(Group& group, NodeSumOperand& operand, const std::vector<int>& node) {
  const GroupPart part(group, node, kBackWithinNodeSlots);
  if (operand.by_devices) {
    // Flags and control words of other nodes go by messages alone, and devices wait for each other.
    WEIR_RETURN_IF_ERROR(Barrier(group));
    return GatherPartsByDevices(group, operand);
  }
  if (operand.device == nullptr) return GatherParts(group, operand.lanes, operand.parts);
  HostParts host(operand);
  WEIR_RETURN_IF_ERROR(FailOnError(group, host.ReadPart(group.rank())));
  WEIR_RETURN_IF_ERROR(GatherParts(group, host.lanes(), host.parts()));
  return FailOnError(group, host.WriteOthers(group.rank()));
}

}  // namespace

Status RunNodeSums(Group& group, NodeSumOperand& operand, NodeEncoders encoders) {
  const Lanes& lanes = operand.lanes;
  const int count = NodePartsOf(encoders, group.nodes(), group.rank(), group.size());
  WEIR_RETURN_IF_ERROR(CheckNodeParts(group, operand, static_cast<size_t>(count)));
  const NodePlaces places = NodePlacesOf(group.nodes(), group.rank(), group.size());
  const bool together = places.node.size() > 1;
  if (operand.round == SumRound::kAdd) {
    if (!together || lanes.bytes.empty()) return OkStatus();
    return SumWithinNode(group, operand, places.node);
  }
  // The control word and flags must be sent even without lanes.
  if (lanes.bytes.empty()) return Barrier(group);
  // Part 0 is the largest, so a rank whose part is empty can leave the exchange to the others.
  if (places.place < count && !operand.parts[places.place].empty()) {
    const GroupPart across(group, count > 1 ? places.across : places.leaders, kAcrossNodesSlots);
    WEIR_RETURN_IF_ERROR(CrossNodes(group, operand));
  }
  return together ? GatherWithinNode(group, operand, places.node) : OkStatus();
}

}  // namespace weir
