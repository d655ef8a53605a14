// SPDX-License-Identifier: Apache-2.0
// Re-encoding all-reduce: rank j decodes and sums region j of every rank, encodes the sum again and
// sends it to all. In an all-gather of opaque payloads every rank receives N-1 of them and decodes
// N buckets; here it receives less than two and decodes two. The second encoding also has an error,
// for which the owner of the callbacks may keep an aggregate residual at the owner of the region.
//
// Cost: 2 latencies; every rank sends and receives (N-1)/N of a payload twice. During the operation
// every rank decodes as many elements as a bucket has and encodes one N-th of them. Elements are
// added in the order of the ranks, and the owner decodes its region's sum from the same bytes as
// the other ranks. Source:
// Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze: parallel stochastic gradient descent with double-pass
// error-compensated compression", ICML 2019, algorithm 1, with its server spread over all ranks as
// in Tang et al., "1-bit Adam", ICML 2021, section 4 (all-to-all, then all-gather).

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {

void RegisterReencode(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<RegionOperand>(
      registry, wire_id,
      {
          .name = "reencode",
          .summary =
              "owners decode, sum and encode regions again (DoubleSqueeze, Tang et al. 2019)",
          .form = "regions",
          .cost = {.latency = {.constant = 2}, .payload = {.n_minus_1_over_n = 2}},
          .all_pairs = true,
          .world_max = 256,
      },
      [](Group& group, RegionOperand& operand, CollectiveReport*) -> Status {
        const size_t bytes_max = operand.payload_bytes_max;
        if (operand.round == SumRound::kDistribute) {
          return PayloadAllGather(group, operand.sum, bytes_max, operand.gathered);
        }
        std::vector<std::vector<std::byte>> parts;
        const auto add = [&](int from) {
          const Status status = operand.add(from, parts[from]);
          if (status.ok()) return OkStatus();
          return group.Fail(Annotate(status, StrCat("region ", group.rank(), " of rank ", from)));
        };
        return PayloadExchange(group, operand.payloads, bytes_max, &parts, add);
      });
}

}  // namespace weir
