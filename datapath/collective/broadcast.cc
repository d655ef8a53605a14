// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/broadcast.h"

#include <algorithm>
#include <bit>

#include "datapath/base/check.h"
#include "datapath/collective/circulant.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// The rank from which a rank receives (-1: none), and those to which it sends, in this order.
struct BroadcastPlace {
  int parent = -1;
  std::vector<int> children;
};

// Positions count from the root. Position v > 0 of the tree receives from v without its highest
// bit.
BroadcastPlace BroadcastPlaceOf(int rank, int world, int root, bool chain) {
  BroadcastPlace place;
  const int position = (rank - root + world) % world;
  const auto rank_at = [&](int at) { return (at + root) % world; };
  if (chain) {
    if (position > 0) place.parent = rank_at(position - 1);
    if (position + 1 < world) place.children = {rank_at(position + 1)};
    return place;
  }
  const int heard = std::bit_width(static_cast<unsigned>(position));
  if (position > 0) place.parent = rank_at(position - (1 << (heard - 1)));
  for (int round = heard; (1 << round) < world; ++round) {
    const int child = position + (1 << round);
    if (child < world) place.children.push_back(rank_at(child));
  }
  return place;
}

// A buffer that is sent in segments; message k has slot k.
struct Segments {
  std::span<std::byte> bytes;
  size_t segment_bytes;
  size_t count() const { return (bytes.size() + segment_bytes - 1) / segment_bytes; }
  std::span<std::byte> operator[](size_t k) const {
    const size_t begin = k * segment_bytes;
    return bytes.subspan(begin, std::min(segment_bytes, bytes.size() - begin));
  }
};

ReceiveStream StreamInto(Group& group, int peer, const Segments& segments) {
  return ReceiveStream(group, peer, 0, segments.count(), Scratch::kWindow,
                       [segments](size_t k) -> StatusOr<std::optional<std::span<std::byte>>> {
                         return segments[k];
                       });
}

// Rank r gets chunk r from the root; then every rank sends its chunk to all others.
Status ScatterBroadcast(Group& group, int root, std::span<std::byte> bytes) {
  const int world = group.size();
  const Lanes lanes{.bytes = bytes, .lane_bytes = 1, .accumulate = {}};
  std::vector<std::span<const std::byte>> outgoing(world);
  std::vector<std::span<std::byte>> incoming(world);
  if (group.rank() == root) {
    for (int rank = 0; rank < world; ++rank) outgoing[rank] = CirculantChunk(lanes, rank, world);
  } else {
    incoming[root] = CirculantChunk(lanes, group.rank(), world);
  }
  WEIR_RETURN_IF_ERROR(DirectExchange(group, outgoing, incoming));
  return CirculantAllGather(group, lanes);
}

}  // namespace

BroadcastWay ChooseBroadcast(size_t bytes, int world, size_t segment_bytes,
                             const BroadcastThresholds& thresholds) {
  if (bytes < thresholds.scatter_bytes_min || world <= 2) return BroadcastWay::kTree;
  const double segments = static_cast<double>(bytes) / static_cast<double>(segment_bytes);
  const bool chain = segments >= thresholds.chain_segments_per_rank_min * world;
  return chain ? BroadcastWay::kChain : BroadcastWay::kScatter;
}

Status Broadcast(Group& group, int root, std::span<std::byte> bytes) {
  WEIR_CHECK(root >= 0 && root < group.size());
  const BroadcastWay way = ChooseBroadcast(bytes.size(), group.size(), group.segment_bytes());
  if (way == BroadcastWay::kScatter) return ScatterBroadcast(group, root, bytes);
  const BroadcastPlace place =
      BroadcastPlaceOf(group.rank(), group.size(), root, way == BroadcastWay::kChain);
  const Segments segments{bytes, group.segment_bytes()};
  SendQueue sends(group);
  std::optional<ReceiveStream> receives;
  if (place.parent >= 0) receives.emplace(StreamInto(group, place.parent, segments));
  for (size_t k = 0; k < segments.count(); ++k) {
    if (receives.has_value()) WEIR_RETURN_IF_ERROR(receives->Next().status());
    for (const int child : place.children) {
      WEIR_RETURN_IF_ERROR(sends.Send(child, static_cast<uint32_t>(k), segments[k]));
    }
  }
  return sends.Drain();
}

Status DirectExchange(Group& group, std::span<const std::span<const std::byte>> outgoing,
                      std::span<const std::span<std::byte>> incoming) {
  const int world = group.size(), rank = group.rank();
  WEIR_CHECK(outgoing.size() == static_cast<size_t>(world) && incoming.size() == outgoing.size());
  // A send stays open until the peer reads it, so sends and receives are posted in equal numbers.
  struct Incoming {
    ReceiveStream stream;
    size_t left;
  };
  std::vector<Incoming> receives;
  receives.reserve(world);
  size_t rounds = 0;
  for (int distance = 1; distance < world; ++distance) {
    const int from = (rank + world - distance) % world;
    const Segments segments{incoming[from], group.segment_bytes()};
    if (segments.count() == 0) continue;
    receives.push_back({StreamInto(group, from, segments), segments.count()});
    WEIR_RETURN_IF_ERROR(receives.back().stream.Post());
    rounds = std::max(rounds, segments.count());
  }
  for (const auto& bytes : outgoing) {
    rounds = std::max(rounds, (bytes.size() + group.segment_bytes() - 1) / group.segment_bytes());
  }
  SendQueue sends(group);
  for (size_t k = 0; k < rounds; ++k) {
    for (int distance = 1; distance < world; ++distance) {
      const int to = (rank + distance) % world;
      const size_t begin = k * group.segment_bytes();
      if (begin >= outgoing[to].size()) continue;
      const size_t size = std::min(group.segment_bytes(), outgoing[to].size() - begin);
      WEIR_RETURN_IF_ERROR(
          sends.Send(to, static_cast<uint32_t>(k), outgoing[to].subspan(begin, size)));
    }
    for (Incoming& receive : receives) {
      if (receive.left == 0) continue;
      WEIR_RETURN_IF_ERROR(receive.stream.Next().status());
      --receive.left;
    }
  }
  return sends.Drain();
}

Status DisseminationBarrier(Group& group) {
  const int world = group.size(), rank = group.rank();
  SendQueue sends(group);
  uint32_t slot = 0;
  for (int distance = 1; distance < world; distance *= 2, ++slot) {
    const int to = (rank + distance) % world, from = (rank + world - distance) % world;
    WEIR_RETURN_IF_ERROR(sends.Send(to, slot, {}));
    WEIR_ASSIGN_OR_RETURN(const Ticket ticket, group.Receive(from, slot, {}));
    WEIR_RETURN_IF_ERROR(group.WaitReceive(ticket).status());
  }
  return sends.Drain();
}

}  // namespace weir
