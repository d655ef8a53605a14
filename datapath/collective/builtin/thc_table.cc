// SPDX-License-Identifier: Apache-2.0
// All-reduce of the codec thc's lanes through an aggregator in the network that holds its table.
// Every rank sends four-bit indices once and receives the sums of the levels that they name,
// whatever the number of ranks. Source: Li et al., "THC: accelerating distributed deep learning
// using tensor homomorphic compression", NSDI 2024, section 5. The offload handles the packets.
//
// An operation has the same parts as one of switchml and the same fallback, the ring. Sums of lanes
// are exact integers, so both give the same bytes, and only the codec loses precision. The ring
// sums lanes that are not levels of the table (a payload of zeros, if the ranks had no norm to
// share), and the offload is used again afterwards.
//
// Cost: of a payload with 8 or 16 bits a lane each rank sends one half or a quarter and receives
// all of it, in packets that add 56 octets to 1024.

#include <utility>

#include "datapath/collective/collective.h"
#include "datapath/collective/offload.h"

namespace weir {
namespace {

constexpr int kTableWorldMax = 64;  // workers of one aggregator

}  // namespace

void RegisterThcTable(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "thc_table",
          .summary = "levels summed by an aggregator's table, else around a ring (Li et al. 2024)",
          .form = "table_lanes",
          .cost = {.latency = {.constant = 2, .log2_n = 2},
                   .payload = {.constant = 1080.0 / 1024},
                   .reduce = {.constant = 2}},
          .world_min = 2,
          .world_max = kTableWorldMax,
          .lease_mode = "table",
      },
      [](Group& group, Lanes& lanes, CollectiveReport* report) -> Status {
        return SumThroughOffload(group, lanes, "ring", report);
      });
}

}  // namespace weir
