// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mesh behind the transports shm and auto. Ranks connect over TCP, then every pair that can
// moves to shared memory.

#include <memory>

#include "datapath/transport/transport.h"

namespace weir::shm {

/// The behaviour for a pair that cannot share memory.
enum class Otherwise {
  kTcp,   // stays on its TCP connection
  kFail,  // Connect fails with kFailedPrecondition, which says why
};

StatusOr<std::unique_ptr<Transport>> MakeMesh(const TransportOptions& options, Otherwise otherwise);

}  // namespace weir::shm
