// SPDX-License-Identifier: Apache-2.0
// Recursive halving, then recursive doubling, for any world size: a reduce-scatter in ceil(log2 N)
// rounds, each with about half as much data as the one before, and an all-gather that runs the same
// rounds backwards. Unlike in a mesh, a rank has one partner to send to and one to receive from at
// a time. Unlike in a ring, the latency grows with log N only.
//
// Cost: 2 ceil(log2 N) sequential messages; (N-1)/N of the payload leaves every rank twice; each
// rank sums (N-1)/N of it. Exact for every N. Source: J. L. Traeff, "Optimal, Non-pipelined
// Reduce-scatter and Allreduce Algorithms", 2024: partners are a fixed distance apart (a circulant
// graph) where Rabenseifner's form, Thakur et al. 2005 section 4.5, pairs ranks by bits and folds
// those beyond a power of two. For powers of two both move the same bytes. Chunks are cut into
// segments, which are summed as they arrive. An element is summed once, by the owner of its chunk,
// so its bits are equal on all ranks.

#include "datapath/collective/circulant.h"
#include "datapath/collective/collective.h"

namespace weir {

void RegisterHalvingDoubling(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "halving_doubling",
          .summary = "recursive halving and doubling on a circulant graph (Traeff 2024)",
          .form = "lanes",
          .cost = {.latency = {.log2_n = 2},
                   .payload = {.n_minus_1_over_n = 2},
                   .reduce = {.n_minus_1_over_n = 1}},
          .payload_pattern = "circulant",
      },
      [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
        return CirculantAllReduce(group, lanes);
      });
}

}  // namespace weir
