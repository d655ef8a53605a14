// SPDX-License-Identifier: Apache-2.0
// A stream for tests in Python whose work is a function of theirs. It is exported beside the
// functions of weir.h by the libweir whose device is the host.

#include "datapath/api/weir.h"
#include "datapath/cuda/memory.h"

extern "C" {

/// A stream that was given one call of `work`; for weir_device_data.stream. It is never destroyed.
WEIR_EXPORT void* weir_test_stream(void (*work)()) {
  auto* const stream = new weir::cuda::OwnStream(*weir::cuda::OwnStream::Make());
  weir::cuda::RunOnHost(stream->get(), work);
  return stream->get().handle;
}

}  // extern "C"
