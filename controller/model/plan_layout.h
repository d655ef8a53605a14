// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a plan lays its work over the ranks, the ring's order and the shares of shards together: what
// the next plan should have, what runs, and what each gains. Rings are ring_choice.h, shards
// shard_choice.h.

#include "controller/model/snapshot.h"
#include "datapath/base/status.h"

namespace weir {

struct LayoutChoice {
  PlanLayout layout;
  LayoutSpeedup speedup;
};

/// The layout that the next plan should have, each part the incumbent's unless another is clearly
/// better. Pure. Complexity: ChooseRing and ChooseShards.
LayoutChoice ChooseLayout(const Snapshot& snapshot);

/// Whether it matters to `collective` which layout a plan has.
bool GoesByLayout(const CollectiveModel& collective);

/// The factor by which `speedup` makes payloads over `collective` faster; never 0.
double SpeedupOf(const LayoutSpeedup& speedup, const CollectiveModel& collective);

/// The layout that a job runs on.
struct LayoutInUse {
  PlanLayout layout;
  LayoutSpeedup speedup;         // see Snapshot
  LayoutSpeedup former_speedup;  // of the plan before, whose last steps may still be reported
  /// The speedup of the running plan, or of the one before.
  const LayoutSpeedup& SpeedupOf(bool runs) const { return runs ? speedup : former_speedup; }
  /// `next` begins; parts of it that do not fit a world of `world` ranks count as empty. What
  /// `links` say now of both layouts is what the next steps are predicted and learned with; where
  /// they say nothing an empty part has speedup 1. `unpipelined`: see UnpipelinedShare.
  void Turn(PlanLayout next, int world, const NodeLinks& links, double unpipelined);
};

/// kInvalidArgument: nodes, links or the layout do not fit the world.
Status CheckLayout(const Snapshot& snapshot);

}  // namespace weir
