// SPDX-License-Identifier: Apache-2.0
// AR-Topk: all ranks use the indices of one rank, so that the values at them can be summed by an
// ordinary all-reduce. STAR chooses the ranks in turn, VAR the one with the largest gradient norm.
//
// Cost: a binomial broadcast of the indices, with ceil(log2 N) latencies and as many index payloads
// through the NIC of the chosen rank; then a ring over the values, see ring.cc. VAR first gathers
// one double from every rank, which takes one latency more. Source: Tyagi, Swany, "Flexible
// communication for optimal distributed learning over unpredictable networks", arXiv 2312.02493,
// AR-Topk STAR and VAR, equation 4a. Deviates: the norm is this step's, not a moving average, and
// the cost counts the index payload as encoded, not 4 bytes an index.

#include <cmath>
#include <limits>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

constexpr CollectiveCost kStarCost = {.latency = {.n_minus_1 = 2, .log2_n = 1},
                                      .payload = {.n_minus_1_over_n = 2},
                                      .index = {.log2_n = 1},
                                      .reduce = {.n_minus_1_over_n = 1}};

Status RunWithLeader(Group& group, SharedIndexOperand& operand, int leader,
                     CollectiveReport* report) {
  report->leader = leader;
  std::vector<std::byte> received;
  std::span<const std::byte> indices;
  if (group.rank() == leader) indices = operand.selection;
  WEIR_RETURN_IF_ERROR(
      BinomialBroadcast(group, leader, indices, operand.selection_bytes_max, &received));
  if (group.rank() != leader) indices = received;
  if (Status status = operand.open(indices); !status.ok()) {
    return group.Fail(Annotate(status, StrCat("opening the indices of rank ", leader)));
  }
  return RingAllReduce(group, FloatLanes(*operand.values));
}

CollectiveCost VarCost() {
  CollectiveCost cost = kStarCost;
  cost.latency.constant += 1;
  return cost;
}

}  // namespace

void RegisterArTopkStar(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<SharedIndexOperand>(
      registry, wire_id,
      {
          .name = "ar_topk_star",
          .summary = "indices from the ranks in turn, ring over the values (Tyagi and Swany 2023)",
          .form = "shared_index",
          .cost = kStarCost,
          .index_pattern = "broadcast",
          .uses_ring_order = true,
      },
      [](Group& group, SharedIndexOperand& operand, CollectiveReport* report) -> Status {
        const int leader = static_cast<int>(operand.step % static_cast<uint64_t>(group.size()));
        return RunWithLeader(group, operand, leader, report);
      });
}

void RegisterArTopkVar(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<SharedIndexOperand>(
      registry, wire_id,
      {
          .name = "ar_topk_var",
          .summary =
              "indices from the rank of largest norm, ring over the values (Tyagi and Swany 2023)",
          .form = "shared_index",
          .cost = VarCost(),
          .index_pattern = "broadcast",
          .uses_ring_order = true,
      },
      [](Group& group, SharedIndexOperand& operand, CollectiveReport* report) -> Status {
        std::vector<double> norms(group.size());
        WEIR_RETURN_IF_ERROR(SmallAllGather(group,
                                            std::as_bytes(std::span(&operand.norm_squared, 1)),
                                            std::as_writable_bytes(std::span(norms))));
        int leader = 0;
        double largest = -std::numeric_limits<double>::infinity();
        for (int rank = 0; rank < group.size(); ++rank) {  // ties and NaN keep the lower rank
          if (norms[rank] > largest) {
            largest = norms[rank];
            leader = rank;
          }
        }
        return RunWithLeader(group, operand, leader, report);
      });
}

}  // namespace weir
