// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order in which device work runs.

#include <functional>

namespace weir::cuda {

/// A stream of the device: a cudaStream_t, or null for the default stream. Built for the host, the
/// handle is that of an OwnStream (memory.h), or null or kBackwards, whose work runs before the
/// call that queues it returns.
struct Stream {
  void* handle = nullptr;
};

/// Host only: the order of what a GPU may run at the same time is reversed. Payloads must be the
/// same in both orders; tests demand that, since one thread could not notice a missing barrier.
inline void* const kBackwards = reinterpret_cast<void*>(1);

/// Host only: gives work to a stream. An OwnStream begins it as late as a GPU may: when somebody
/// waits for the stream or, one at a time, asks whether an event is done. So a missing wait is
/// noticed.
void RunOnHost(Stream stream, std::function<void()> work);
/// Host only: lets an OwnStream go on only when `is_done` returns true. It is asked when the stream
/// would begin work, again and again.
void AwaitOnHost(Stream stream, std::function<bool()> is_done);

}  // namespace weir::cuda
