// SPDX-License-Identifier: Apache-2.0
// All-reduce through an aggregator in the network. Every rank sends its lanes once and receives the
// sum once, whatever the number of ranks. Source: Sapio et al., "Scaling distributed machine
// learning with in-network aggregation", NSDI 2021. The offload handles the packets.
//
// An operation has three parts (offload.h). First the ranks agree over their own connections that
// all of them are present and ready, so that from then on a rank that waits for a sum waits for the
// aggregator and not for a late rank. Then each gets the sum in memory of the offload. Then they
// agree whether all of them have it. If so, they copy it to the lanes. If not, all ranks run the
// ring on the unchanged lanes in the same operation, and do not use the offload again. The two
// agreements carry the control word and flags, which the aggregator's packets cannot.
//
// Not exact: an element is rounded to a grid before it is added. With e the least exponent for
// which 2^e exceeds every magnitude of a packet's elements on all N ranks, and k the greatest with
// N * 2^k < 2^31 (29 for two ranks, 24 for 64), the error of a sum is at most N * 2^(e - k - 1)
// plus half a unit in its last place. An element that is NaN or infinite on some rank makes its
// packet's elements NaN on all.
//
// Cost: four one-way latencies for the exponents and the first window, and two small all-reduces.
// Each rank sends and receives the payload once, in packets that add 48 octets to 1024. Rounding it
// and converting it back takes two passes. Without an offload, or after it was abandoned, the cost
// is the ring's.

#include <utility>

#include "datapath/collective/collective.h"
#include "datapath/collective/offload.h"

namespace weir {
namespace {

constexpr int kWorldMax = 64;  // workers of one aggregator

}  // namespace

void RegisterSwitchMl(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "switchml",
          .summary =
              "float32 lanes summed by an aggregator, else around a ring (Sapio et al. 2021)",
          .form = "float_lanes",
          .cost = {.latency = {.constant = 4, .log2_n = 2},
                   .payload = {.constant = 1072.0 / 1024},
                   .reduce = {.constant = 2}},
          .world_min = 2,
          .world_max = kWorldMax,
          .lease_mode = "sum",
      },
      [](Group& group, Lanes& lanes, CollectiveReport* report) -> Status {
        if (lanes.lane_bytes != sizeof(float)) {
          return group.Fail(InvalidArgument(StrCat(
              "switchml: expected float32 lanes, found lanes of ", lanes.lane_bytes, " bytes")));
        }
        return SumThroughOffload(group, lanes, "ring", report);
      });
}

}  // namespace weir
