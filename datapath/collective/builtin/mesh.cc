// SPDX-License-Identifier: Apache-2.0
// Mesh all-reduce: rank r sums chunk r of every rank and sends the total to all. Every pair
// exchanges directly, so the latency does not grow with the world. Chunks are even or follow the
// group's shards. A rank of share w sends 1-w of the payload in the first phase and (N-1) w in the
// second. So a rank on a slow link that owns nothing moves one payload each way, and with an even
// share 2(N-1)/N. That helps only if both phases overlap, so a rank waits for totals while later
// contributions are still being sent.
//
// Cost: 2 sequential messages; (N-1)/N of the payload leaves (and reaches) every rank twice, as in
// a ring; each rank sums (N-1)/N of it. The price is N-1 simultaneous senders per receiver, which a
// switch with small buffers may punish. Source: Thakur, Rabenseifner, Gropp, "Optimization of
// collective communication operations in MPICH", IJHPCA 19(1), 2005, sections 4.3 and 4.5 (pairwise
// reduce-scatter), with all exchanges of a phase posted at once.

#include <algorithm>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"
#include "datapath/collective/staged_sum.h"

namespace weir {
namespace {

// Phase 1: segment s of chunk j goes to rank j, slot s. Phase 2: the total of segment s of the own
// chunk goes to everyone, slot segments + s.
class MeshPass {
 public:
  MeshPass(Group& group, const Lanes& lanes)
      : group_(group),
        lanes_(lanes),
        world_(group.size()),
        rank_(group.rank()),
        // At most 512 messages of each phase are open, whatever the world size.
        partition_(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                 .parts = static_cast<size_t>(world_),
                                 .segment_bytes = group.segment_bytes(),
                                 .pipeline_depth = 4,
                                 // Summing a whole chunk at once delays little, because all
                                 // exchanges of a phase end together; more messages cost more.
                                 .pipeline_bytes_min = 256 << 10,
                                 .segments_max = std::max<size_t>(512 / world_, 1),
                                 .shares = group.shards()}),
        segments_(partition_.segments()),
        sends_(group) {}

  Status Run() {
    std::vector<size_t> contributed;  // sends up to that of each segment's last contribution
    for (size_t s = 0; s < segments_; ++s) {
      for (int distance = 1; distance < world_; ++distance) {
        const int peer = (rank_ + distance) % world_;
        WEIR_RETURN_IF_ERROR(Send(peer, peer, s, s));
      }
      contributed.push_back(sends_.posted());
    }
    WEIR_RETURN_IF_ERROR(ReduceOwnChunk());
    WEIR_RETURN_IF_ERROR(CollectTotals(contributed));
    return sends_.Drain();
  }

 private:
  Status Send(int peer, int chunk, size_t segment, size_t slot) {
    if (!partition_.Travels(chunk, segment)) return OkStatus();
    return sends_.Send(peer, static_cast<uint32_t>(slot), partition_.Segment(chunk, segment));
  }

  Status ReduceOwnChunk() {
    std::vector<Scratch> scratch = ScratchFor(group_, world_, partition_.segment_bytes());
    std::vector<ReceiveStream> receives;
    receives.reserve(world_);
    for (int distance = 1; distance < world_; ++distance) {
      const int peer = (rank_ + distance) % world_;
      Scratch& buffers = scratch[peer];
      receives.emplace_back(
          group_, peer, 0, segments_, Scratch::kWindow,
          [this, &buffers](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
            if (!partition_.Travels(rank_, s)) return std::nullopt;
            return buffers.Buffer(s, partition_.Segment(rank_, s).size());
          });
      WEIR_RETURN_IF_ERROR(receives.back().Post());
    }
    for (size_t s = 0; s < segments_; ++s) {
      const std::span<std::byte> sum = partition_.Segment(rank_, s);
      for (ReceiveStream& receive : receives) {
        WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> addend, receive.Next());
        if (!addend.empty()) lanes_.accumulate(sum, addend);
      }
      for (int distance = 1; distance < world_; ++distance) {
        WEIR_RETURN_IF_ERROR(Send((rank_ + distance) % world_, rank_, s, segments_ + s));
      }
    }
    return OkStatus();
  }

  // A total overwrites the contribution to its segment, so it is received once that was sent.
  Status CollectTotals(const std::vector<size_t>& contributed) {
    std::vector<ReceiveStream> receives;
    receives.reserve(world_);
    for (int distance = 1; distance < world_; ++distance) {
      const int peer = (rank_ + distance) % world_;
      receives.emplace_back(
          group_, peer, static_cast<uint32_t>(segments_), segments_, Scratch::kWindow,
          [this, peer](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
            if (!partition_.Travels(peer, s)) return std::nullopt;
            return partition_.Segment(peer, s);
          });
    }
    for (size_t s = 0; s < segments_ + Scratch::kWindow - 1; ++s) {
      if (s < segments_) {
        WEIR_RETURN_IF_ERROR(
            sends_.Drain(sends_.posted() - std::max(contributed[s], sends_.awaited())));
        for (ReceiveStream& receive : receives) {
          receive.Hold(s + 1);
          WEIR_RETURN_IF_ERROR(receive.Post());
        }
      }
      if (s + 1 < Scratch::kWindow) continue;
      for (ReceiveStream& receive : receives) WEIR_RETURN_IF_ERROR(receive.Next().status());
    }
    return OkStatus();
  }

  Group& group_;
  const Lanes& lanes_;
  const int world_, rank_;
  const Partition partition_;
  const size_t segments_;
  SendQueue sends_;
};

}  // namespace

void RegisterMesh(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "mesh",
          .summary = "direct reduce-scatter and all-gather between all pairs (Thakur et al. 2005)",
          .form = "lanes",
          .cost = {.latency = {.constant = 2},
                   .payload = {.n_minus_1_over_n = 2},
                   .reduce = {.n_minus_1_over_n = 1}},
          .all_pairs = true,
          .shard_segment_bytes = kSegmentBytesDefault,
          .world_max = 256,
      },
      [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
        if (group.size() == 1) return OkStatus();
        return CanStage(group, lanes) ? StagedAllReduce(group, lanes)
                                      : MeshPass(group, lanes).Run();
      });
}

}  // namespace weir
