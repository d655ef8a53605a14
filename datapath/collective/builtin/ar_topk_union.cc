// SPDX-License-Identifier: Apache-2.0
// AR-Topk with the union of all selections: every rank sends its selection to all ranks, and the
// values at the union of these indices are summed by an ordinary all-reduce. So large elements of
// every rank are included.
//
// Cost: one latency, in which every rank sends its selection N-1 times, see sparse_all_gather.cc;
// then a ring over the values, see ring.cc. The predicted payload is the values at the union.
// Source: Tyagi, Swany, "Flexible communication for optimal distributed learning over unpredictable
// networks", arXiv 2312.02493; deviates: a union in place of one rank's indices.

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {

void RegisterArTopkUnion(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<UnionIndexOperand>(
      registry, wire_id,
      {
          .name = "ar_topk_union",
          .summary =
              "union of all ranks' indices, ring over the values (after Tyagi and Swany 2023)",
          .form = "union_index",
          .cost = {.latency = {.constant = 1, .n_minus_1 = 2},
                   .payload = {.n_minus_1_over_n = 2},
                   .index = {.n_minus_1 = 1},
                   .reduce = {.n_minus_1_over_n = 1}},
          .index_pattern = "pairs",
          .uses_ring_order = true,
          .world_max = 256,
      },
      [](Group& group, UnionIndexOperand& operand, CollectiveReport*) -> Status {
        std::vector<std::vector<std::byte>> gathered;
        WEIR_RETURN_IF_ERROR(
            PayloadAllGather(group, operand.selection, operand.selection_bytes_max, &gathered));
        if (Status status = operand.open(gathered); !status.ok()) {
          return group.Fail(Annotate(status, "opening the indices of all ranks"));
        }
        return RingAllReduce(group, FloatLanes(*operand.values));
      });
}

}  // namespace weir
