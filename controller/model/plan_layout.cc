// SPDX-License-Identifier: Apache-2.0
#include "controller/model/plan_layout.h"

#include <algorithm>
#include <utility>

#include "controller/model/ring_choice.h"
#include "controller/model/shard_choice.h"

namespace weir {
namespace {

/// `speedup` of a part that needed `before` seconds per byte and needs `after`; 0: not known.
void ChangePart(double before, double after, bool empty, double* speedup) {
  if (before > 0 && after > 0) {
    *speedup *= before / after;
  } else if (empty) {
    *speedup = 1;
  }
}

}  // namespace

LayoutChoice ChooseLayout(const Snapshot& snapshot) {
  RingChoice ring = ChooseRing(snapshot);
  ShardChoice shards = ChooseShards(snapshot);
  return {{std::move(ring.order), std::move(shards.shares)}, {ring.speedup, shards.speedup}};
}

bool GoesByLayout(const CollectiveModel& collective) {
  return collective.uses_ring_order || collective.shard_segment_bytes > 0;
}

double SpeedupOf(const LayoutSpeedup& speedup, const CollectiveModel& collective) {
  if (collective.uses_ring_order) return std::max(speedup.ring, 1e-6);
  return collective.shard_segment_bytes > 0 ? std::max(speedup.shards, 1e-6) : 1;
}

void LayoutInUse::Turn(PlanLayout next, int world, const NodeLinks& links, double unpipelined) {
  if (!IsRingOrder(next.ring_order, world)) next.ring_order.clear();
  if (!AreShardShares(next.shard_shares, world)) next.shard_shares.clear();
  former_speedup = speedup;
  if (next.ring_order != layout.ring_order) {
    ChangePart(RingSecondsPerByte(links, layout.ring_order),
               RingSecondsPerByte(links, next.ring_order), next.ring_order.empty(), &speedup.ring);
  }
  if (next.shard_shares != layout.shard_shares) {
    ChangePart(ShardSecondsPerByte(links, layout.shard_shares, unpipelined),
               ShardSecondsPerByte(links, next.shard_shares, unpipelined),
               next.shard_shares.empty(), &speedup.shards);
  }
  layout = std::move(next);
}

Status CheckLayout(const Snapshot& snapshot) {
  WEIR_RETURN_IF_ERROR(CheckRing(snapshot));
  return CheckShards(snapshot);
}

}  // namespace weir
