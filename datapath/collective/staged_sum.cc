// A stage is two halves of a slot for each rank. Of block b, which is segment b of every chunk,
// rank r puts what it has of chunk j into slot j of its half b % 2 and tells everyone ("shown");
// rank j adds those up, puts the total into slot j of its own stage and tells everyone ("summed");
// everyone takes the totals off.
//
// No slot is written while somebody may still read it. Totals of block b from all ranks mean that
// all have read contributions b. Contributions b + 2 from all, which a rank shows after it took
// totals b, mean that all have read those. Likewise in the next operation: contributions leave the
// own slots alone, and a rank shows some when it has done with the operation before.

#include "datapath/collective/staged_sum.h"

#include <algorithm>
#include <cstring>

namespace weir {
namespace {

// Below, messages that carry the lanes themselves take less time than two that say where they are.
constexpr size_t kStagedBytesMin = 64 << 10;
constexpr size_t kCacheLineBytes = 64;
// Tells the messages here from those of other ways to sum.
constexpr uint32_t kFirstSlot = 0xD0000000;

// From one slot of a stage to the next; the same for all operations, which follow one another.
size_t SlotStride(const Group& group) {
  const size_t slots = 2 * static_cast<size_t>(group.size());
  const size_t equal = group.stages()->own.size() / slots / kCacheLineBytes * kCacheLineBytes;
  return std::min(equal, kStagedSlotBytesMax);
}

void Copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

class StagedPass {
 public:
  StagedPass(Group& group, const Lanes& lanes)
      : group_(group),
        stages_(*group.stages()),
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
  std::span<Byte> Slot(std::span<Byte> stage, size_t block, int chunk, size_t bytes) const {
    const size_t slot = (block % 2) * static_cast<size_t>(world_) + static_cast<size_t>(chunk);
    return stage.subspan(slot * stride_, bytes);
  }

  Status Show(size_t block) {
    for (int distance = 1; distance < world_; ++distance) {
      const int chunk = Peer(distance);
      const std::span<const std::byte> part = partition_.Segment(chunk, block);
      Copy(Slot(stages_.own, block, chunk, part.size()), part);
      group_.CountSent(part.size());
    }
    return Tell(&shown_at_[block]);
  }

  Status Sum(size_t block) {
    const std::span<std::byte> sum = partition_.Segment(rank_, block);
    for (int distance = 1; distance < world_; ++distance) {
      WEIR_RETURN_IF_ERROR(Await(distance, shown_at_[block]));
      if (sum.empty()) continue;
      lanes_.accumulate(sum, Slot(stages_.of[Peer(distance)], block, rank_, sum.size()));
    }
    Copy(Slot(stages_.own, block, rank_, sum.size()), sum);
    group_.CountSent(sum.size() * (static_cast<size_t>(world_) - 1));
    return Tell(&summed_at_[block]);
  }

  Status Take(size_t block) {
    for (int distance = 1; distance < world_; ++distance) {
      WEIR_RETURN_IF_ERROR(Await(distance, summed_at_[block]));
      const int peer = Peer(distance);
      const std::span<std::byte> total = partition_.Segment(peer, block);
      Copy(total, Slot(stages_.of[peer], block, peer, total.size()));
    }
    return OkStatus();
  }

  // *at: which message that is. All ranks send theirs in one order. The first says how many bytes
  // are summed: others would be found where theirs are not.
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
  const Stages& stages_;
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
  return lanes.bytes.size() >= kStagedBytesMin && group.stages() != nullptr &&
         SlotStride(group) >= lanes.lane_bytes;
}

Status StagedAllReduce(Group& group, const Lanes& lanes) { return StagedPass(group, lanes).Run(); }

}  // namespace weir
