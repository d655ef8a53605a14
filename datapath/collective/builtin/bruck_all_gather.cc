// SPDX-License-Identifier: Apache-2.0
// Bruck all-gather: in round i every rank sends the 2^i payloads that it has to the rank 2^i places
// before it. It needs few messages between few pairs, which suits small payloads in large worlds.
//
// Cost: ceil(log2 N) latencies, the payloads of N-1 ranks through every NIC; nothing is summed,
// since decoding adds. Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for
// all-to-all communications in multiport message-passing systems", IEEE TPDS 8(11), 1997; payloads
// differ in size, so each travels as messages of its own.

#include <algorithm>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// Before the round of distance d a rank holds the payloads of ranks rank .. rank + d - 1.
Status RunBruck(Group& group, size_t bytes_max, std::vector<std::vector<std::byte>>& gathered) {
  const int world = group.size(), rank = group.rank();
  SendQueue sends(group);
  for (int distance = 1; distance < world; distance *= 2) {
    const int to = (rank + world - distance) % world, from = (rank + distance) % world;
    const int count = std::min(distance, world - distance);
    for (int sent = 0, i = 0; i < count; ++i) {
      PayloadReceiver receiver(group, from, bytes_max, &gathered[(from + i) % world]);
      WEIR_RETURN_IF_ERROR(receiver.Start());
      // Everything is sent at once, unless payloads are so large that a send might wait for a
      // receive that the peer, which is also sending, has not posted yet.
      for (; sent <= i || (sent < count && sends.open() < kPostedMax / 4); ++sent) {
        const std::vector<std::byte>& held = gathered[(rank + sent) % world];
        for (size_t k = 0; k < PayloadSegments(group, held.size()); ++k) {
          WEIR_RETURN_IF_ERROR(SendPayloadSegment(group, sends, to, held, k));
        }
      }
      for (bool more = true; more;) {
        WEIR_ASSIGN_OR_RETURN(const auto segment, receiver.Next());
        more = segment.has_value();
      }
    }
  }
  return sends.Drain();
}

}  // namespace

void RegisterBruckAllGather(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<GatherOperand>(
      registry, wire_id,
      {
          .name = "bruck_all_gather",
          .summary = "payloads of any size, doubled with every round (Bruck et al. 1997)",
          .form = "opaque",
          .cost = {.latency = {.log2_n = 1}, .payload = {.n_minus_1 = 1}},
          .payload_pattern = "bruck",
      },
      [](Group& group, GatherOperand& operand, CollectiveReport*) -> Status {
        return RunBruck(group, operand.payload_bytes_max, *operand.gathered);
      });
}

}  // namespace weir
