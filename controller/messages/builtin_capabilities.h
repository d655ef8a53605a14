// SPDX-License-Identifier: Apache-2.0
#pragma once
// The capabilities of this release's datapath, as data, so that this library need not link it.

#include "weir/v1/rank.pb.h"

namespace weir {

/// Codecs and collectives of ranks of this release, without measured times. Plug-ins that a job
/// brings with it are not among them. Thread-safe.
const v1::Capabilities& BuiltinCapabilities();
/// The same for ranks with gradients on devices, whose framework can sum them. Codecs that run
/// there have device_encode and device_decode without times.
const v1::Capabilities& BuiltinDeviceCapabilities();

}  // namespace weir
