// SPDX-License-Identifier: Apache-2.0
// The rounds of a circulant graph, shared by all-reduce, reduce-scatter and all-gather. Chunks are
// cut into segments, which are summed as they arrive.

#include "datapath/collective/circulant.h"

#include <algorithm>

namespace weir {
namespace {

// Chunk i of a rank is chunk (rank + i) mod N of the lanes, so chunk 0 is its own. Round k works on
// chunks skips[k+1] .. skips[k]-1, where skips are N, ceil(N/2), ceil(N/4), ..., 1.
class CirculantPass {
 public:
  CirculantPass(Group& group, const Lanes& lanes)
      : group_(group),
        lanes_(lanes),
        world_(static_cast<size_t>(group.size())),
        rank_(static_cast<size_t>(group.rank())),
        // At most 512 messages of a phase are open, whatever the world size.
        partition_(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                 .parts = world_,
                                 .segment_bytes = group.segment_bytes(),
                                 .pipeline_depth = 4,
                                 .segments_max = std::max<size_t>(512 / world_, 1)}),
        segments_(partition_.segments()),
        scratch_(group, partition_.segment_bytes()),
        sends_(group) {
    skips_ = {world_};
    while (skips_.back() > 1) skips_.push_back((skips_.back() + 1) / 2);
  }

  // Afterwards chunk 0 is the total, and all sends are complete.
  Status ReduceScatter() {
    for (size_t k = 0; k + 1 < skips_.size(); ++k) {
      WEIR_RETURN_IF_ERROR(Reduce(skips_[k + 1], skips_[k]));
    }
    return sends_.Drain();
  }

  // Afterwards every chunk has the bytes that its owner had in its chunk 0.
  Status AllGather() {
    for (size_t k = skips_.size() - 1; k > 0; --k) {
      WEIR_RETURN_IF_ERROR(Gather(skips_[k], skips_[k - 1]));
    }
    return sends_.Drain();
  }

 private:
  // Sends chunks begin .. end-1 to the rank `begin` further on, which numbers them 0 ..
  // end-begin-1, and adds the chunks that arrive to the own chunks 0 .. end-begin-1.
  Status Reduce(size_t begin, size_t end) {
    const size_t count = (end - begin) * segments_;
    ReceiveStream receives(group_, Behind(begin), slot_, count, Scratch::kWindow,
                           [this](size_t m) -> StatusOr<std::optional<std::span<std::byte>>> {
                             if (!Travels(0, m)) return std::nullopt;
                             return scratch_.Buffer(m, Message(0, m).size());
                           });
    WEIR_RETURN_IF_ERROR(receives.Post());
    WEIR_RETURN_IF_ERROR(SendAll(Ahead(begin), begin, count));
    for (size_t m = 0; m < count; ++m) {
      WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> addend, receives.Next());
      if (!addend.empty()) lanes_.accumulate(Message(0, m), addend);
    }
    slot_ += static_cast<uint32_t>(count);
    return OkStatus();
  }

  // The reverse of a round: sends the totals of chunks 0 .. end-begin-1 and receives those of
  // chunks begin .. end-1.
  Status Gather(size_t begin, size_t end) {
    const size_t count = (end - begin) * segments_;
    ReceiveStream receives(
        group_, Ahead(begin), slot_, count, count,
        [this, begin](size_t m) -> StatusOr<std::optional<std::span<std::byte>>> {
          if (!Travels(begin, m)) return std::nullopt;
          return Message(begin, m);
        });
    WEIR_RETURN_IF_ERROR(receives.Post());
    WEIR_RETURN_IF_ERROR(SendAll(Behind(begin), 0, count));
    for (size_t m = 0; m < count; ++m) WEIR_RETURN_IF_ERROR(receives.Next().status());
    slot_ += static_cast<uint32_t>(count);
    return OkStatus();
  }

  Status SendAll(int peer, size_t first_chunk, size_t count) {
    for (size_t m = 0; m < count; ++m) {
      if (!Travels(first_chunk, m)) continue;
      WEIR_RETURN_IF_ERROR(
          sends_.Send(peer, slot_ + static_cast<uint32_t>(m), Message(first_chunk, m)));
    }
    return OkStatus();
  }

  // The segment that is message m of a run of chunks beginning with `first`.
  size_t ChunkOf(size_t first, size_t m) const { return (rank_ + first + m / segments_) % world_; }
  bool Travels(size_t first, size_t m) const {
    return partition_.Travels(ChunkOf(first, m), m % segments_);
  }
  std::span<std::byte> Message(size_t first, size_t m) const {
    return partition_.Segment(ChunkOf(first, m), m % segments_);
  }
  int Ahead(size_t distance) const { return static_cast<int>((rank_ + distance) % world_); }
  int Behind(size_t distance) const {
    return static_cast<int>((rank_ + world_ - distance) % world_);
  }

  Group& group_;
  const Lanes& lanes_;
  const size_t world_, rank_;
  const Partition partition_;
  const size_t segments_;
  Scratch scratch_;
  SendQueue sends_;
  std::vector<size_t> skips_;
  uint32_t slot_ = 0;  // of the round's first message
};

}  // namespace

Status CirculantAllReduce(Group& group, const Lanes& lanes) {
  if (group.size() == 1) return OkStatus();
  CirculantPass pass(group, lanes);
  WEIR_RETURN_IF_ERROR(pass.ReduceScatter());
  return pass.AllGather();
}

Status CirculantReduceScatter(Group& group, const Lanes& lanes) {
  if (group.size() == 1) return OkStatus();
  return CirculantPass(group, lanes).ReduceScatter();
}

Status CirculantAllGather(Group& group, const Lanes& lanes) {
  if (group.size() == 1) return OkStatus();
  return CirculantPass(group, lanes).AllGather();
}

std::span<std::byte> CirculantChunk(const Lanes& lanes, int rank, int world) {
  const Partition partition(lanes.bytes,
                            {.lane_bytes = lanes.lane_bytes, .parts = static_cast<size_t>(world)});
  return partition.Chunk(static_cast<size_t>(rank));
}

Status CirculantAllGather(Group& group, std::span<std::byte> chunks, size_t chunk_bytes) {
  if (chunk_bytes == 0 || chunks.size() != chunk_bytes * static_cast<size_t>(group.size())) {
    return group.Fail(InvalidArgument(StrCat("expected ", group.size(), " chunks of ", chunk_bytes,
                                             " bytes, found ", chunks.size(), " bytes")));
  }
  if (group.size() == 1) return OkStatus();
  const Lanes bytes{.bytes = chunks, .lane_bytes = 1, .accumulate = {}};
  return CirculantPass(group, bytes).AllGather();
}

}  // namespace weir
