// SPDX-License-Identifier: Apache-2.0
// Ring all-gather: payloads of any size travel around a ring, in which each rank forwards to the
// next one what it receives from the one before. Every rank has only one sender, so there are no
// bursts into a switch, but the latency grows with the world size.
//
// Cost: N-1 latencies, the payloads of N-1 ranks through every NIC; nothing is summed, since
// decoding adds. Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication
// operations in MPICH", IJHPCA 19(1), 2005, section 4.1; payloads differ in size and are forwarded
// segment by segment.

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// In turn t the payload of the rank at place (own place - 1 - t) arrives. The last one to arrive is
// not forwarded.
Status RunRing(Group& group, std::span<const std::byte> own, size_t bytes_max,
               std::vector<std::vector<std::byte>>& gathered) {
  const int world = group.size(), place = group.ring_place();
  const int next = group.RankAtRingPlace((place + 1) % world);
  const int previous = group.RankAtRingPlace((place + world - 1) % world);
  SendQueue sends(group);
  for (int turn = 0; turn < world - 1; ++turn) {
    std::vector<std::byte>& arriving =
        gathered[group.RankAtRingPlace((place + world - 1 - turn) % world)];
    PayloadReceiver receiver(group, previous, bytes_max, &arriving);
    WEIR_RETURN_IF_ERROR(receiver.Start());
    if (turn == 0) {
      for (size_t k = 0; k < PayloadSegments(group, own.size()); ++k) {
        WEIR_RETURN_IF_ERROR(SendPayloadSegment(group, sends, next, own, k));
      }
    }
    for (size_t k = 0;; ++k) {
      WEIR_ASSIGN_OR_RETURN(const auto segment, receiver.Next());
      if (!segment.has_value()) break;
      if (turn + 1 == world - 1) continue;
      WEIR_RETURN_IF_ERROR(SendPayloadSegment(group, sends, next, arriving, k));
    }
  }
  return sends.Drain();
}

}  // namespace

void RegisterRingAllGather(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<GatherOperand>(
      registry, wire_id,
      {
          .name = "ring_all_gather",
          .summary = "payloads of any size forwarded around a ring (Thakur et al. 2005)",
          .form = "opaque",
          .cost = {.latency = {.n_minus_1 = 1}, .payload = {.n_minus_1 = 1}},
          .uses_ring_order = true,
      },
      [](Group& group, GatherOperand& operand, CollectiveReport*) -> Status {
        return RunRing(group, operand.payload, operand.payload_bytes_max, *operand.gathered);
      });
}

}  // namespace weir
