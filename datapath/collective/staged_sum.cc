// SPDX-License-Identifier: Apache-2.0
// A staging buffer has two halves, each with one slot for every rank. Block b consists of segment b
// of every chunk. For each block, rank r copies its part of chunk j into slot j of its half b % 2
// and sends everyone the message "shown". Rank j adds these contributions, copies the total into
// slot j of its own buffer and sends everyone the message "summed". Then everyone copies the totals
// out.
//
// No slot is written while another rank may still read it. When all ranks have announced the totals
// of block b, all have read the contributions to b. When all have announced contributions to block
// b + 2, which a rank does after it copied the totals of b, all have read those totals. The same
// holds for the next operation: its contributions do not touch a rank's slot of totals, and a rank
// announces them only when it has finished the operation before.

#include "datapath/collective/staged_sum.h"

#include <algorithm>
#include <cstring>

namespace weir {
namespace {

// For shorter sums, messages that carry the lanes take less time than the two messages needed here.
constexpr size_t kStagedBytesMin = 64 << 10;
constexpr size_t kCacheLineBytes = 64;
// Distinguishes the messages here from those of other algorithms.
constexpr uint32_t kFirstSlot = 0xD0000000;

// The distance between two slots of a staging buffer. It is the same for all operations, because
// the slots of one operation may still be read while the next one writes.
size_t SlotStride(const Group& group) {
  const size_t slots = 2 * static_cast<size_t>(group.size());
  const size_t equal = group.staging()->own.size() / slots / kCacheLineBytes * kCacheLineBytes;
  return std::min(equal, kStagedSlotBytesMax);
}

void Copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

class StagedPass {
 public:
  StagedPass(Group& group, const Lanes& lanes)
      : group_(group),
        staging_(*group.staging()),
        lanes_(lanes),
        world_(group.size()),
        rank_(group.rank()),
        stride_(SlotStride(group)),
        partition_(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                 .parts = static_cast<size_t>(world_),
                                 .segment_bytes = stride_,
                                 .pipeline_depth = 2,
                                 .segments_max = SIZE_MAX,
                                 .shares = group.shards()}),
        blocks_(partition_.segments()),
        shown_at_(blocks_),
        summed_at_(blocks_),
        taken_(world_),
        sizes_(world_),
        sends_(group) {
    receives_.reserve(world_ - 1);
    for (int distance = 1; distance < world_; ++distance) {
      receives_.emplace_back(group, Peer(distance), kFirstSlot, 2 * blocks_, Scratch::kWindow,
                             [this, distance](size_t message) {
                               std::span<uint64_t> size;
                               if (message == 0) size = std::span(&sizes_[distance], 1);
                               return std::optional(std::as_writable_bytes(size));
                             });
    }
  }

  Status Run() {
    for (ReceiveStream& receive : receives_) WEIR_RETURN_IF_ERROR(receive.Post());
    WEIR_RETURN_IF_ERROR(Show(0));
    if (blocks_ > 1) WEIR_RETURN_IF_ERROR(Show(1));
    WEIR_RETURN_IF_ERROR(Sum(0));
    for (size_t b = 0; b < blocks_; ++b) {
      if (b + 1 < blocks_) WEIR_RETURN_IF_ERROR(Sum(b + 1));
      WEIR_RETURN_IF_ERROR(Take(b));
      if (b + 2 < blocks_) WEIR_RETURN_IF_ERROR(Show(b + 2));
    }
    return sends_.Drain();
  }

 private:
  int Peer(int distance) const { return (rank_ + distance) % world_; }

  template <typename Byte>
  std::span<Byte> Slot(std::span<Byte> staging, size_t block, int chunk, size_t bytes) const {
    const size_t slot = (block % 2) * static_cast<size_t>(world_) + static_cast<size_t>(chunk);
    return staging.subspan(slot * stride_, bytes);
  }

  Status Show(size_t block) {
    for (int distance = 1; distance < world_; ++distance) {
      const int chunk = Peer(distance);
      const std::span<const std::byte> part = partition_.Segment(chunk, block);
      Copy(Slot(staging_.own, block, chunk, part.size()), part);
      group_.CountSent(part.size());
    }
    return Tell(&shown_at_[block]);
  }

  Status Sum(size_t block) {
    const std::span<std::byte> sum = partition_.Segment(rank_, block);
    for (int distance = 1; distance < world_; ++distance) {
      WEIR_RETURN_IF_ERROR(Await(distance, shown_at_[block]));
      if (sum.empty()) continue;
      lanes_.accumulate(sum, Slot(staging_.of[Peer(distance)], block, rank_, sum.size()));
    }
    Copy(Slot(staging_.own, block, rank_, sum.size()), sum);
    group_.CountSent(sum.size() * (static_cast<size_t>(world_) - 1));
    return Tell(&summed_at_[block]);
  }

  Status Take(size_t block) {
    for (int distance = 1; distance < world_; ++distance) {
      WEIR_RETURN_IF_ERROR(Await(distance, summed_at_[block]));
      const int peer = Peer(distance);
      const std::span<std::byte> total = partition_.Segment(peer, block);
      Copy(total, Slot(staging_.of[peer], block, peer, total.size()));
    }
    return OkStatus();
  }

  // Sets *at to the number of the message. All ranks send their messages in the same order. The
  // first one carries the number of bytes to sum, because ranks that disagree on it would look for
  // each other's contributions in the wrong places.
  Status Tell(size_t* at) {
    *at = told_++;
    for (int distance = 1; distance < world_; ++distance) {
      const uint32_t slot = kFirstSlot + static_cast<uint32_t>(*at);
      WEIR_RETURN_IF_ERROR(*at == 0 ? sends_.SendLength(Peer(distance), slot, lanes_.bytes.size())
                                    : sends_.Send(Peer(distance), slot, {}));
    }
    return OkStatus();
  }

  Status Await(int distance, size_t message) {
    for (size_t& taken = taken_[distance]; taken <= message; ++taken) {
      WEIR_RETURN_IF_ERROR(receives_[distance - 1].Next().status());
      if (taken > 0 || sizes_[distance] == lanes_.bytes.size()) continue;
      return group_.Fail(Internal(StrCat("rank ", Peer(distance), " sums ", sizes_[distance],
                                         " bytes, rank ", rank_, " ", lanes_.bytes.size(),
                                         ": the ranks disagree on the operation's size")));
    }
    return OkStatus();
  }

  Group& group_;
  const StagingBuffers& staging_;
  const Lanes& lanes_;
  const int world_, rank_;
  const size_t stride_;
  const Partition partition_;
  const size_t blocks_;
  std::vector<size_t> shown_at_, summed_at_;  // messages, by block
  std::vector<size_t> taken_;                 // messages, by distance
  std::vector<uint64_t> sizes_;               // of the operation, as peers see it, by distance
  size_t told_ = 0;
  std::vector<ReceiveStream> receives_;  // by distance, less one
  SendQueue sends_;
};

}  // namespace

bool CanStage(const Group& group, const Lanes& lanes) {
  return lanes.bytes.size() >= kStagedBytesMin && group.staging() != nullptr &&
         SlotStride(group) >= lanes.lane_bytes;
}

Status StagedAllReduce(Group& group, const Lanes& lanes) { return StagedPass(group, lanes).Run(); }

}  // namespace weir
