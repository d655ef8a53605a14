// SPDX-License-Identifier: Apache-2.0
// Sums that the session's caller makes over a process group of its own, such as NCCL's. Nothing of
// them crosses this group: the ranks only tell each other whether one of them met NaN or infinity,
// in one small message to every other rank, which also carries the announcement of a plan.
//
// The cost is the prior for the caller's own all-reduce: two phases over a tree of ceil(log2 N)
// levels, and 2(N-1)/N of the payload over the busiest link. Source: Thakur, Rabenseifner and
// Gropp, IJHPCA 19(1), 2005, section 4.5. The sum itself is part of what planners learn.

#include "datapath/collective/collective.h"
#include "datapath/collective/maximum.h"

namespace weir {

void RegisterFramework(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<CallerSumOperand>(
      registry, wire_id,
      {
          .name = "framework",
          .summary = "the caller's own sum, over its own process group (such as NCCL's)",
          .form = "caller_sums",
          .cost = {.latency = {.log2_n = 2}, .payload = {.n_minus_1_over_n = 2}},
          .by_caller = true,
      },
      [](Group& group, CallerSumOperand& operand, CollectiveReport*) -> Status {
        float non_finite = operand.non_finite ? 1 : 0;
        WEIR_RETURN_IF_ERROR(AllReduceMax(group, std::span(&non_finite, 1)));
        operand.non_finite = non_finite != 0;
        return OkStatus();
      });
}

}  // namespace weir
