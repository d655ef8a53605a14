// Re-encoding all-reduce: rank j decodes and sums region j of every rank, encodes the sum again and
// sends it to all. Where an all-gather of opaque payloads brings N-1 of them to every rank, this
// brings two parts in N, and every rank decodes two buckets' worth and not N. The second encoding
// loses, too; whoever supplies the callbacks may keep an aggregate residual for it at the owner.
//
// Cost: 2 latencies; (N-1)/N of a payload leaves, and reaches, every rank twice. Inside of it every
// rank decodes one bucket's worth of elements and encodes one N-th of them. The order of additions
// is that of the ranks, and the owner takes its region from the same bytes as everyone. Source:
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
