// SPDX-License-Identifier: Apache-2.0
#pragma once
// The devices of CUDA as sessions see them.

#include "datapath/base/status.h"
#include "datapath/codec/device.h"

namespace weir::cuda {

/// The device of this number, whose streams are cudaStream_t. Built for the host there is one
/// device, whose memory is the host's and whose streams are those of stream.h. kInvalidArgument:
/// there is no such device; names how many there are. Thread-safe.
StatusOr<Device*> FindDevice(int ordinal);

}  // namespace weir::cuda
