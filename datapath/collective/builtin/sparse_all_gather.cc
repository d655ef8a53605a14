// SPDX-License-Identifier: Apache-2.0
// Sparse all-gather: every rank sends its payload, of any size, directly to every other rank.
//
// Cost: 1 latency; N-1 copies of the own payload leave, and the payloads of N-1 ranks reach, every
// rank; nothing is summed here, since decoding adds. Source: the direct exchange of Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
// 19(1), 2005, section 4.1, with all messages posted at once: the ring sends as many bytes with N-1
// latencies, recursive doubling with log2 N.

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {

void RegisterSparseAllGather(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<GatherOperand>(
      registry, wire_id,
      {
          .name = "sparse_all_gather",
          .summary =
              "direct exchange of payloads of any size between all pairs (Thakur et al. 2005)",
          .form = "opaque",
          .cost = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}},
          .all_pairs = true,
          .world_max = 256,
      },
      [](Group& group, GatherOperand& operand, CollectiveReport*) -> Status {
        return PayloadAllGather(group, operand.payload, operand.payload_bytes_max,
                                operand.gathered);
      });
}

}  // namespace weir
