// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connecting to the agent of this node by the address that jobs are given in WEIR_AGENT.

#include <atomic>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// kInvalidArgument unless `address` is "unix:/path" or "tcp:host:port" with a numeric host or
/// "localhost". A name server could hold up a shutdown. Thread-safe.
Status CheckAgentAddress(const std::string& address);

/// Returns a connected socket, non-blocking and close-on-exec, which the caller closes. Ends early
/// when `wake_fd`, an eventfd that it reads, becomes readable and `stopping` is set.
/// kInvalidArgument: the address; kUnavailable: nobody listens there or the timeout has passed.
StatusOr<int> ConnectToAgent(const std::string& address, Duration timeout, int wake_fd,
                             const std::atomic<bool>& stopping);

}  // namespace weir
