// SPDX-License-Identifier: Apache-2.0
// Recursive doubling all-reduce: in round i every rank exchanges all lanes with the rank whose
// number differs in bit i. It needs few messages of whole payloads, which suits small buckets.
//
// Cost: log2 N sequential messages, each with the whole payload, which is summed. For world sizes
// between powers of two, the surplus ranks first send their lanes to a partner and get the total
// from it afterwards, which adds one latency and one payload to ceil(log2 N). Source: Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
// 19(1), 2005, section 4.5. Both partners add the upper rank's lanes to the lower rank's, so all
// ranks hold the same bits.

#include <bit>
#include <cstring>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

class DoublingPass {
 public:
  DoublingPass(Group& group, const Lanes& lanes)
      : group_(group),
        lanes_(lanes),
        partition_(
            lanes.bytes,
            {.lane_bytes = lanes.lane_bytes, .parts = 1, .segment_bytes = group.segment_bytes()}),
        segments_(partition_.segments()),
        received_(group.scratch().Take(lanes.bytes.size())),
        sends_(group) {}

  Status Run() {
    const int world = group_.size(), rank = group_.rank();
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(world)));
    if (rank >= power) {
      WEIR_RETURN_IF_ERROR(Send(rank - power));
      WEIR_RETURN_IF_ERROR(sends_.Drain());
      return Receive(rank - power, lanes_.bytes);
    }
    const bool has_surplus = rank + power < world;
    if (has_surplus) {
      WEIR_RETURN_IF_ERROR(Receive(rank + power, received_.bytes()));
      AddReceived(true);
    }
    for (int bit = 1; bit < power; bit <<= 1) {
      const int partner = rank ^ bit;
      WEIR_RETURN_IF_ERROR(Send(partner));
      WEIR_RETURN_IF_ERROR(Receive(partner, received_.bytes()));
      WEIR_RETURN_IF_ERROR(sends_.Drain());  // the next line changes what was sent
      AddReceived(rank < partner);
    }
    if (has_surplus) WEIR_RETURN_IF_ERROR(Send(rank + power));
    return sends_.Drain();
  }

 private:
  Status Send(int peer) {
    for (size_t s = 0; s < segments_; ++s) {
      WEIR_RETURN_IF_ERROR(sends_.Send(peer, static_cast<uint32_t>(s), partition_.Segment(0, s)));
    }
    return OkStatus();
  }

  Status Receive(int peer, std::span<std::byte> into) {
    ReceiveStream receives(group_, peer, 0, segments_, segments_,
                           [this, into](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
                             const size_t begin = s * partition_.segment_bytes();
                             return into.subspan(begin, partition_.Segment(0, s).size());
                           });
    for (size_t s = 0; s < segments_; ++s) WEIR_RETURN_IF_ERROR(receives.Next().status());
    return OkStatus();
  }

  void AddReceived(bool own_is_lower) {
    const std::span<std::byte> received = received_.bytes();
    if (received.empty()) return;
    if (own_is_lower) {
      lanes_.accumulate(lanes_.bytes, received);
      return;
    }
    lanes_.accumulate(received, lanes_.bytes);
    std::memcpy(lanes_.bytes.data(), received.data(), received.size());
  }

  Group& group_;
  const Lanes& lanes_;
  const Partition partition_;
  const size_t segments_;
  ScratchBuffer received_;
  SendQueue sends_;
};

}  // namespace

void RegisterRecursiveDoubling(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "recursive_doubling",
          .summary = "log2 N exchanges of the whole payload (Thakur et al. 2005)",
          .form = "lanes",
          .cost = {.latency = {.log2_n = 1}, .payload = {.log2_n = 1}, .reduce = {.log2_n = 1}},
          .payload_pattern = "doubling",
      },
      [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
        return group.size() > 1 ? DoublingPass(group, lanes).Run() : OkStatus();
      });
}

}  // namespace weir
