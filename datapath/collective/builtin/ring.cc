// SPDX-License-Identifier: Apache-2.0
// Ring all-reduce: reduce-scatter, then all-gather, in which a rank exchanges messages only with
// its two neighbours.
//
// Cost: 2(N-1) sequential messages; (N-1)/N of the payload leaves every rank twice; each rank sums
// (N-1)/N of it. Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", JPDC 69(2), 2009, section 4. Chunks are cut into segments that are forwarded as
// soon as they are reduced, so when a chunk takes longer to send than the latency, latency is
// hidden and the features are an upper bound.

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {

void RegisterRing(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "ring",
          .summary = "reduce-scatter and all-gather around a ring (Patarasuk and Yuan 2009)",
          .form = "lanes",
          .cost = {.latency = {.n_minus_1 = 2},
                   .payload = {.n_minus_1_over_n = 2},
                   .reduce = {.n_minus_1_over_n = 1}},
          .uses_ring_order = true,
      },
      [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
        return RingAllReduce(group, lanes);
      });
}

}  // namespace weir
