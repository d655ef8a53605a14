// SPDX-License-Identifier: Apache-2.0
// All-reduce of block-sparse lanes through an aggregator in the network. Every rank sends its
// blocks that are not zero once and receives the sums of blocks that are not zero on any rank,
// whatever the number of ranks. Source: Fei, Ho, Sahu, Canini, Sapio, "Efficient sparse collective
// communication and its application to accelerate distributed deep learning", SIGCOMM 2021. The
// offload handles the packets.
//
// An operation has the same parts as one of switchml and the same fallback rules, but falls back to
// block_mesh, which leaves out the same blocks without an aggregator. Lanes with NaN or infinity on
// some rank cannot be rounded to fixed-point numbers. Then block_mesh sums them, too, and the
// offload is used again afterwards.
//
// Not exact: elements are rounded to one grid for the whole bucket. With e the least exponent for
// which 2^e exceeds every magnitude on all N ranks, and k the greatest with N * 2^k < 2^31 (29 for
// two ranks, 24 for 64), the error of a sum is at most N * 2^(e - k - 1) plus half a unit in its
// last place. Sums do not depend on the order of packets.
//
// Cost: each rank sends D_w payloads and receives D_u, the densities of blocks (256 to 1024 bytes,
// as the lease says) on one rank and on any rank, in packets that add 64 octets to 1024. It also
// sends a small answer for each packet of others. The features are those of dense lanes, D_w = D_u
// = 1. A rank receives more than it sends, so the payload depends on D_u alone. Without an offload,
// or after it was abandoned, the cost is block_mesh's.

#include <utility>

#include "datapath/collective/collective.h"
#include "datapath/collective/offload.h"

namespace weir {
namespace {

constexpr int kSparseWorldMax = 64;      // workers of one aggregator
constexpr uint32_t kBlockElements = 64;  // the smallest blocks of leases; controllers request them

}  // namespace

void RegisterOmniReduce(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "omnireduce",
          .summary = "float32 blocks summed by an aggregator, else by block_mesh (Fei et al. 2021)",
          .form = "float_lanes",
          .cost = {.latency = {.constant = 2, .log2_n = 2},
                   .payload = {.constant = 1088.0 / 1024},
                   .reduce = {.constant = 2}},
          .blocks = {.elements = kBlockElements, .union_share = 1},
          .world_min = 2,
          .world_max = kSparseWorldMax,
          .lease_mode = "sparse",
      },
      [](Group& group, Lanes& lanes, CollectiveReport* report) -> Status {
        if (lanes.lane_bytes != sizeof(float)) {
          return group.Fail(InvalidArgument(StrCat(
              "omnireduce: expected float32 lanes, found lanes of ", lanes.lane_bytes, " bytes")));
        }
        return SumThroughOffload(group, lanes, "block_mesh", report);
      });
}

}  // namespace weir
