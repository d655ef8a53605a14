// SPDX-License-Identifier: Apache-2.0
#pragma once
// Round-trip time by TCP handshake. It works where UDP is filtered, and the target needs only an
// open or refusing port.

#include <stop_token>

#include "agent/measure/rtt.h"
#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

struct TcpConnectOptions {
  uint32_t count = 3;                                 // handshakes, one after the other, 1..64
  Duration timeout = std::chrono::milliseconds(500);  // per handshake
};

/// Times `count` connects to `target`. A refusal counts, because its answer has made the same round
/// trip. kDeadlineExceeded when none was answered, kUnavailable with the kernel's reason when the
/// target is unreachable, kAborted when `stop` was requested. Waits at most count * timeout.
StatusOr<RttSummary> MeasureTcpConnect(const SocketAddress& target,
                                       const TcpConnectOptions& options, const Clock& clock,
                                       std::stop_token stop);

}  // namespace weir::agent
