#pragma once
// What the datapath of this release offers, as data: this library links none of it.

#include "weir/v1/rank.pb.h"

namespace weir {

/// Codecs and collectives of ranks of this release, without measured times. Plug-ins that a job
/// brings with it are not among them. Thread-safe.
const v1::Capabilities& BuiltinCapabilities();

}  // namespace weir
