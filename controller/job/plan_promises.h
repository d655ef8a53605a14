// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans that do not keep their promise make way for the plan before. Pure.

#include <optional>
#include <vector>

#include "controller/job/change_holds.h"
#include "controller/job/promise_watch.h"
#include "controller/solver/solver.h"

namespace weir {

/// Not thread-safe. Order of calls: OnOffered for each plan that is offered, then OnActive with it
/// if it becomes active; Fill before each decision, and OnDecided after it.
class PlanPromises {
 public:
  /// Ranks begin again, with nothing measured.
  void Begin() { *this = PlanPromises(); }
  /// `decision` on `snapshot` offers plan `version`.
  void OnOffered(uint64_t version, const Snapshot& snapshot, const Decision& decision,
                 double improvement_min);
  /// Plan `version` runs since `step`. `excursion`: it is dense for a few steps; `returns`: it is
  /// what ran before those.
  void OnActive(uint64_t version, uint64_t step, bool excursion, bool returns);
  /// A step of the plan that is active. What it finds is in the snapshots that Fill fills.
  std::optional<BrokenPromise> OnStep(const PromiseStep& step, const KnownNetwork& network,
                                      TimePoint now);
  /// Steps cannot be compared with those before the switch; what was found in them is taken back.
  void Forgive();
  void Fill(bool rolls_back, const KnownNetwork& network, TimePoint now, Snapshot* snapshot);
  void OnDecided() { undecided_ = false; }
  /// A promise was broken, and no decision was made since.
  bool undecided() const { return undecided_; }
  bool watching() const { return watch_.state() == PromiseWatch::State::kWatched; }

 private:
  /// A plan with what was promised of it and what ran before.
  struct Switch {
    uint64_t version = 0;
    std::optional<Promise> promise;
    HeldChange change;
    FormerPlan former;
    KnownNetwork network;
  };
  PromiseWatch watch_;
  ChangeHolds holds_;
  Switch offered_, active_;
  // Until another plan is active: the roll-back may have to be offered more than once.
  bool broken_ = false;
  bool undecided_ = false;
};

}  // namespace weir
