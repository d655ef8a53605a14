// SPDX-License-Identifier: Apache-2.0
#include "controller/server/control_plane.h"

#include "controller/messages/builtin_capabilities.h"
#include "controller/messages/mapping.h"

namespace weir {
namespace {

FleetOptions WithBuiltinNames(FleetOptions options) {
  options.names = NamesOf(BuiltinDeviceCapabilities());
  return options;
}

}  // namespace

ControlPlane::ControlPlane(FleetOptions options, const Clock& clock, Store& store, EventHub& events)
    : journal(store),
      fleet(WithBuiltinNames(std::move(options)), clock, journal, events),
      agents(fleet, journal),
      admin(fleet, store, journal, events) {}

Status ControlPlane::Recover() {
  WEIR_RETURN_IF_ERROR(fleet.Recover());
  WEIR_RETURN_IF_ERROR(journal.LoadCapabilities());
  fleet.OnNames(NamesOf(journal.capabilities()));
  return OkStatus();
}

}  // namespace weir
