// SPDX-License-Identifier: Apache-2.0
#pragma once
// A fleet joined to its store and to the messages of agents and operators: a controller without
// threads and sockets.

#include "controller/server/admin_api.h"
#include "controller/server/agent_api.h"

namespace weir {

/// Not thread-safe: all calls on the executor's thread.
struct ControlPlane {
  /// The references outlive it.
  ControlPlane(FleetOptions options, const Clock& clock, Store& store, EventHub& events);

  /// Loads what a former controller stored. To be called before anything else.
  Status Recover();

  StoreJournal journal;
  Fleet fleet;
  AgentApi agents;
  AdminApi admin;
};

}  // namespace weir
