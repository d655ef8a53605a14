// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order in which device work runs.

namespace weir::cuda {

/// A stream of the device: a cudaStream_t, or null for the default stream. Built for the host, work
/// runs before the call that queues it returns, and the handle is null or kBackwards.
struct Stream {
  void* handle = nullptr;
};

/// Host only: the order of what a GPU may run at the same time is reversed. Payloads must be the
/// same in both orders; tests demand that, since one thread could not notice a missing barrier.
inline void* const kBackwards = reinterpret_cast<void*>(1);

}  // namespace weir::cuda
