// SPDX-License-Identifier: Apache-2.0
#pragma once
// Groups of devices of one node, among which NCCL moves memory.

#include <memory>

#include "datapath/base/status.h"
#include "datapath/codec/device.h"

namespace weir::cuda {

/// As Device::Join, with device `ordinal`. Thread-safe.
StatusOr<std::unique_ptr<DeviceGroup>> JoinGroup(int ordinal, const DeviceGroupId& id, int place,
                                                 int size);

}  // namespace weir::cuda
