// SPDX-License-Identifier: Apache-2.0
// The only file that depends on how the library was built: with WEIR_HAVE_DEVICES it is linked with
// one of the two builds of datapath/cuda. Tests replace it by a copy with that of the host.

#include "datapath/api/devices.h"

#if WEIR_HAVE_DEVICES
#include "datapath/cuda/device.h"
#include "datapath/cuda/memory.h"
#endif

namespace weir::c_api {

#if WEIR_HAVE_DEVICES
int DeviceCount() { return cuda::DeviceCount(); }
StatusOr<Device*> FindDevice(int ordinal) { return cuda::FindDevice(ordinal); }
#else
int DeviceCount() { return 0; }
StatusOr<Device*> FindDevice(int ordinal) {
  return InvalidArgument(StrCat("device: found ", ordinal, ", libweir was built without CUDA"));
}
#endif

}  // namespace weir::c_api
