// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hop count by UDP echo requests with increasing time to live. The kernel's error queue
// (IP_RECVERR) delivers the routers' answers, so no raw socket and no privilege is needed.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

struct RouteOptions {
  uint32_t hops_max = 30;                                 // 1..64
  uint32_t attempts = 2;                                  // per hop
  Duration hop_timeout = std::chrono::milliseconds(300);  // per attempt
  TimePoint deadline{};                                   // of the whole probe
  uint64_t nonce = 0;
};

struct Route {
  uint32_t hops = 0;                 // 1: no router in between
  std::vector<std::string> routers;  // addresses of the routers; "*": no answer
  uint64_t bytes_used = 0;           // sent, IP headers included
};

/// Finds the number of hops to `target`, an echo responder (a port-unreachable answer also counts).
/// kFailedPrecondition with the reason when the kernel does not permit the method; kUnavailable
/// when a router reports that the target is unreachable; kDeadlineExceeded when it was not reached
/// in time or within hops_max; kAborted when `stop` was requested.
StatusOr<Route> MeasureRoute(const SocketAddress& target, const RouteOptions& options,
                             const Clock& clock, std::stop_token stop);

}  // namespace weir::agent
