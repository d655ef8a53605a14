// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gives a controller its control plane: the only one, a leader's, or a standby's copy of the store.

#include <functional>

#include "controller/server/served_plane.h"

namespace weir {

/// Not thread-safe: all calls on the executor's thread, or before that runs.
class Succession {
 public:
  struct Options {
    FleetOptions fleet;
    Duration copy_interval = std::chrono::seconds(2);  // of a standby's copies
    /// Called with every plane before it is served.
    std::function<void(ControlPlane&)> prepare = [](ControlPlane&) {};
    /// Called when a plane begins to act; an error ends the tenure.
    std::function<Status()> begin = [] { return OkStatus(); };
    std::function<void()> end = [] {};  // when it ceases
  };

  /// The references outlive it. `leadership` null: this controller is the only one.
  Succession(Options options, const Clock& clock, Store& store, EventHub& events,
             ServedPlane& served, Leadership* leadership);

  /// The first plane. Errors of the store, where it is not shared.
  Status Begin();
  /// To be called several times a second: takes and leaves the lead, and drives the fleet of a
  /// plane that acts.
  void OnTick();

 private:
  StatusOr<std::unique_ptr<ControlPlane>> MakePlane() const;
  Status Lead(uint64_t term);
  void StandDown();
  void Copy();

  const Options options_;
  const Clock& clock_;
  Store& store_;
  EventHub& events_;
  ServedPlane& served_;
  Leadership* const leadership_;
  bool begun_ = false;   // `begin` was called, and not `end`
  int64_t copied_ = -1;  // the store's revision
  TimePoint next_copy_{};
};

}  // namespace weir
