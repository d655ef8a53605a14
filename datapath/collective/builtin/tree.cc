// SPDX-License-Identifier: Apache-2.0
// Double binary tree all-reduce: two trees over the ranks, each for one half of the lanes, such
// that no rank is an inner node of both. Segments are reduced up both trees, then broadcast down.
//
// Cost on a host NIC: going up, an inner rank receives two halves and sends one in its own tree and
// sends a half as a leaf of the other; going down, the reverse. So the payload crosses the busiest
// NIC twice for N >= 4 (1 time for N = 2, 1.5 times for N = 3, where the features are an upper
// bound), and an inner rank sums two halves. Latency: floor(log2 N) hops up and as many down; the
// feature uses ceil(log2 N), exact for powers of two. Filling the pipeline costs one segment per
// hop in addition. A leaf posts everything at once: waiting for its own inner tree between segments
// would couple the two trees and cost a latency per segment.
//
// Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
// scan", Parallel Computing 35(12), 2009. Deviates: the second tree is the first one shifted by one
// rank for every world size.

#include <array>
#include <bit>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// The place of one rank in one tree. Positions 1..N; position p sits at level countr_zero(p), so
// odd positions are leaves, and shifting by one turns every inner position into a leaf.
struct Place {
  int parent = -1;            // rank; -1: this is the root
  std::vector<int> children;  // ranks, at most two, lower position first
};

// The root of the subtree over positions (low, high]: the one with most trailing zeros.
int SubtreeRoot(int low, int high) {
  int root = low + 1;
  for (int p = low + 2; p <= high; ++p) {
    if (std::countr_zero(static_cast<unsigned>(p)) >
        std::countr_zero(static_cast<unsigned>(root))) {
      root = p;
    }
  }
  return root;
}

Place FindPlace(int rank, int world, int shift) {
  const auto rank_at = [&](int p) { return (p - 1 - shift + world) % world; };
  const int position = (rank + shift) % world + 1;
  Place place;
  int low = 0, high = world;
  for (int root = SubtreeRoot(low, high); root != position; root = SubtreeRoot(low, high)) {
    place.parent = rank_at(root);
    (position < root ? high : low) = position < root ? root - 1 : root;
  }
  if (low < position - 1) place.children.push_back(rank_at(SubtreeRoot(low, position - 1)));
  if (position < high) place.children.push_back(rank_at(SubtreeRoot(position, high)));
  return place;
}

class TreePass {
 public:
  static constexpr size_t kTrees = 2;

  TreePass(Group& group, const Lanes& lanes)
      : group_(group),
        lanes_(lanes),
        partition_(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                 .parts = kTrees,
                                 .segment_bytes = group.segment_bytes(),
                                 .pipeline_depth = 16,
                                 .pipeline_bytes_min = 64 << 10}),
        segments_(partition_.segments()),
        sends_(group) {
    for (size_t t = 0; t < kTrees; ++t) {
      places_[t] = FindPlace(group.rank(), group.size(), static_cast<int>(t));
    }
    if (!places_[1].children.empty()) std::swap(inner_, leaf_);
  }

  Status Run() {
    WEIR_RETURN_IF_ERROR(ReduceUp());
    // Totals overwrite partial sums, which must have left.
    WEIR_RETURN_IF_ERROR(sends_.Drain());
    WEIR_RETURN_IF_ERROR(BroadcastDown());
    return sends_.Drain();
  }

 private:
  // Up: slots tree * segments + s; down: 2 * segments further.
  uint32_t Slot(size_t tree, size_t segment, bool down) const {
    return static_cast<uint32_t>((tree + (down ? kTrees : 0)) * segments_ + segment);
  }

  Status Send(int peer, size_t tree, size_t segment, bool down) {
    return sends_.Send(peer, Slot(tree, segment, down), partition_.Segment(tree, segment));
  }

  // The `inner` tree is the one in which this rank may have children; in the other it is a leaf.
  Status ReduceUp() {
    for (size_t s = 0; s < segments_; ++s) WEIR_RETURN_IF_ERROR(SendUp(leaf_, s));
    std::vector<Scratch> scratch = ScratchFor(group_, 2, partition_.segment_bytes());
    std::vector<ReceiveStream> receives;
    for (const int child : places_[inner_].children) {
      Scratch& buffers = scratch[receives.size()];
      receives.emplace_back(
          group_, child, Slot(inner_, 0, false), segments_, Scratch::kWindow,
          [this, &buffers](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
            if (!partition_.Travels(inner_, s)) return std::nullopt;
            return buffers.Buffer(s, partition_.Segment(inner_, s).size());
          });
      WEIR_RETURN_IF_ERROR(receives.back().Post());
    }
    for (size_t s = 0; s < segments_; ++s) {
      for (ReceiveStream& receive : receives) {
        WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> addend, receive.Next());
        if (!addend.empty()) lanes_.accumulate(partition_.Segment(inner_, s), addend);
      }
      WEIR_RETURN_IF_ERROR(SendUp(inner_, s));
    }
    return OkStatus();
  }

  Status SendUp(size_t tree, size_t segment) {
    if (places_[tree].parent < 0 || !partition_.Travels(tree, segment)) return OkStatus();
    return Send(places_[tree].parent, tree, segment, false);
  }

  // All receives are posted at once, so that data of one tree can arrive while that of the other is
  // forwarded.
  Status BroadcastDown() {
    std::array<std::optional<ReceiveStream>, kTrees> receives;
    for (const size_t t : {inner_, leaf_}) {
      if (places_[t].parent < 0) continue;
      receives[t].emplace(group_, places_[t].parent, Slot(t, 0, true), segments_, segments_,
                          [this, t](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
                            if (!partition_.Travels(t, s)) return std::nullopt;
                            return partition_.Segment(t, s);
                          });
      WEIR_RETURN_IF_ERROR(receives[t]->Post());
    }
    for (const size_t t : {inner_, leaf_}) {
      for (size_t s = 0; s < segments_; ++s) {
        if (receives[t].has_value()) WEIR_RETURN_IF_ERROR(receives[t]->Next().status());
        if (!partition_.Travels(t, s)) continue;
        for (const int child : places_[t].children) {
          WEIR_RETURN_IF_ERROR(Send(child, t, s, true));
        }
      }
    }
    return OkStatus();
  }

  Group& group_;
  const Lanes& lanes_;
  const Partition partition_;
  const size_t segments_;
  SendQueue sends_;
  std::array<Place, kTrees> places_;
  size_t inner_ = 0, leaf_ = 1;
};

}  // namespace

void RegisterTree(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "tree",
          .summary = "pipelined double binary tree (Sanders, Speck and Traeff 2009)",
          .form = "lanes",
          .cost = {.latency = {.log2_n = 2}, .payload = {.constant = 2}, .reduce = {.constant = 1}},
          .payload_pattern = "trees",
      },
      [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
        return group.size() > 1 ? TreePass(group, lanes).Run() : OkStatus();
      });
}

}  // namespace weir
