// SPDX-License-Identifier: Apache-2.0
// The transports of this build, from builtin_transports.def.

#include "datapath/transport/transport.h"

namespace weir {

#define WEIR_TRANSPORT(name, id) \
  void Register##name(Registry<TransportFactory>& registry, uint8_t wire_id);
#define WEIR_OPTIONAL_TRANSPORT(name, id) WEIR_TRANSPORT(name, id)
#include "datapath/transport/builtin_transports.def"
#undef WEIR_OPTIONAL_TRANSPORT
#undef WEIR_TRANSPORT

const Registry<TransportFactory>& Transports() {
  // It is never destroyed, because sessions may outlive static destructors.
  static const Registry<TransportFactory>* const registry = [] {
    auto* filled = new Registry<TransportFactory>("transport");
#define WEIR_TRANSPORT(name, id) Register##name(*filled, id);
#define WEIR_OPTIONAL_TRANSPORT(name, id) \
  if constexpr (WEIR_HAVE_##name) Register##name(*filled, id);
#include "datapath/transport/builtin_transports.def"
#undef WEIR_OPTIONAL_TRANSPORT
#undef WEIR_TRANSPORT
    return filled;
  }();
  return *registry;
}

}  // namespace weir
