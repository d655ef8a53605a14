// SPDX-License-Identifier: Apache-2.0
#pragma once
// A transport between threads of one process with the semantics of the real ones: order, deadlines,
// named ranks, aborts, checksums and limited buffering.

#include <memory>
#include <vector>

#include "datapath/transport/transport.h"

namespace weir::testing {

struct InprocOptions {
  /// Bytes that a direction buffers before a send has to wait for its receive: a program that
  /// relies on more buffering than a network gives then meets its deadline here, too.
  size_t buffer_bytes = 64 << 10;
  /// The node number of each rank: ranks of one node share memory. Empty: no ranks do.
  std::vector<int> nodes = {};
};

/// Its transports reach those of the same factory and job; addresses have the form
/// "inproc:<job>/<rank>". Transports may outlive the factory: they own the state that they share.
std::unique_ptr<TransportFactory> MakeInprocFactory(const InprocOptions& options = {});

}  // namespace weir::testing
