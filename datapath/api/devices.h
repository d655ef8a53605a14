// SPDX-License-Identifier: Apache-2.0
#pragma once
// The devices of this build of the library.

#include "datapath/base/status.h"
#include "datapath/codec/device.h"

namespace weir::c_api {

/// How many there are; 0 without CUDA. Thread-safe.
int DeviceCount();
/// As cuda::FindDevice. Thread-safe.
StatusOr<Device*> FindDevice(int ordinal);

}  // namespace weir::c_api
