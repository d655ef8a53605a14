// All-reduce of the codec thc's lanes through an aggregator in the network that holds its table:
// every rank sends four-bit indices once and receives the sums of the levels that they name,
// whatever the number of ranks. Source: Li et al., "THC: accelerating distributed deep learning
// using tensor homomorphic compression", NSDI 2024, section 5; the packets are the offload's
// business.
//
// An operation goes as that of switchml does, and falls back as it does, to the ring. Sums of lanes
// are exact integers, so both ways give the same bytes, and what the codec loses is all that is
// lost. Lanes that are no levels of the table (a payload of zeros where no norm was there to share)
// go to the ring, and the offload is used again afterwards.
//
// Cost: of payloads of 8 or 16 bits a lane one half or a quarter leaves each rank and one reaches
// it, in packets that add 56 octets to 1024.

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
