#pragma once
// The mesh behind the transports shm and auto: TCP first, then shared memory for every pair of
// ranks that proves to have it.

#include <memory>

#include "datapath/transport/transport.h"

namespace weir::shm {

/// What becomes of a pair without shared memory.
enum class Otherwise {
  kTcp,   // stays on its TCP connection
  kFail,  // Connect fails with kFailedPrecondition, which says why
};

StatusOr<std::unique_ptr<Transport>> MakeMesh(const TransportOptions& options, Otherwise otherwise);

}  // namespace weir::shm
