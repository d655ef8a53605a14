// SPDX-License-Identifier: Apache-2.0
// Parameter-server star: rank 0 receives every rank's lanes, sums them in rank order and sends the
// total back, segment by segment, so that pushes and pulls overlap on its full-duplex link.
//
// Cost: 2 sequential messages; (N-1) payloads enter and (N-1) leave the server, at the same time
// once there are many segments, so they count once (a payload below 64 KiB is one segment: its pull
// waits for the whole push, twice the feature); the server sums N-1 payloads. Source: Li et al.,
// "Scaling distributed machine learning with the parameter server", OSDI 2014, reduced to one
// server.

#include <algorithm>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

class StarPass {
 public:
  StarPass(Group& group, const Lanes& lanes)
      : group_(group),
        lanes_(lanes),
        partition_(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                 .parts = 1,
                                 .segment_bytes = group.segment_bytes(),
                                 .pipeline_depth = 16,
                                 .pipeline_bytes_min = 64 << 10}),
        segments_(partition_.segments()),
        sends_(group) {}

  // Slots: push s, then segments + s for the pull.
  Status Serve() {
    std::vector<Scratch> scratch = ScratchFor(group_, group_.size(), partition_.segment_bytes());
    std::vector<ReceiveStream> pushes;
    pushes.reserve(group_.size());
    for (int peer = 1; peer < group_.size(); ++peer) {
      Scratch& buffers = scratch[peer];
      pushes.emplace_back(
          group_, peer, 0, segments_, Scratch::kWindow,
          [this, &buffers](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
            return buffers.Buffer(s, partition_.Segment(0, s).size());
          });
      WEIR_RETURN_IF_ERROR(pushes.back().Post());
    }
    for (size_t s = 0; s < segments_; ++s) {
      for (ReceiveStream& push : pushes) {
        WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> addend, push.Next());
        if (!addend.empty()) lanes_.accumulate(partition_.Segment(0, s), addend);
      }
      for (int peer = 1; peer < group_.size(); ++peer) {
        WEIR_RETURN_IF_ERROR(
            sends_.Send(peer, static_cast<uint32_t>(segments_ + s), partition_.Segment(0, s)));
      }
    }
    return sends_.Drain();
  }

  Status PushAndPull() {
    ReceiveStream pulls(group_, 0, static_cast<uint32_t>(segments_), segments_, Scratch::kWindow,
                        [this](size_t s) -> StatusOr<std::optional<std::span<std::byte>>> {
                          // Push s must have left before its total arrives in the same place.
                          if (sends_.awaited() <= s)
                            WEIR_RETURN_IF_ERROR(sends_.Drain(segments_ - s - 1));
                          return partition_.Segment(0, s);
                        });
    for (size_t s = 0; s < segments_; ++s) {
      WEIR_RETURN_IF_ERROR(sends_.Send(0, static_cast<uint32_t>(s), partition_.Segment(0, s)));
    }
    for (size_t s = 0; s < segments_; ++s) WEIR_RETURN_IF_ERROR(pulls.Next().status());
    return sends_.Drain();
  }

 private:
  Group& group_;
  const Lanes& lanes_;
  const Partition partition_;
  const size_t segments_;
  SendQueue sends_;
};

}  // namespace

void RegisterParameterServerStar(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(registry, wire_id,
                       {
                           .name = "ps_star",
                           .summary = "rank 0 sums for all (Li et al. 2014, one server)",
                           .form = "lanes",
                           .cost = {.latency = {.constant = 2},
                                    .payload = {.n_minus_1 = 1},
                                    .reduce = {.n_minus_1 = 1}},
                           .payload_pattern = "star",
                       },
                       [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
                         if (group.size() == 1) return OkStatus();
                         StarPass pass(group, lanes);
                         return group.rank() == 0 ? pass.Serve() : pass.PushAndPull();
                       });
}

}  // namespace weir
