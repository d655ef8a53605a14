// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much registered memory a transport gives each peer. The total is bounded.

#include <cstddef>
#include <cstdint>

#include "datapath/transport/builtin/verbs/hello.h"
#include "datapath/transport/transport.h"

namespace weir::verbs {

struct FlowPlan {
  Window receive;           // as a peer is told
  uint32_t send_slots = 0;  // of the same size

  uint32_t receive_slots() const;  // includes the spare ones, which a peer is not told about
  size_t PeerBytes() const;
  /// Entries of the completion queue that one peer can fill.
  uint32_t PeerCompletions() const;
};

/// The limits of a device on which a plan depends.
struct DeviceLimits {
  uint32_t completions_max = 0;    // entries of one completion queue
  uint32_t work_requests_max = 0;  // of one queue of a queue pair
};

/// The plan for `peers` peers. Without a wish it fits the pool below Debian's default limit of
/// 8 MiB of locked memory as long as the smallest slots do; options.send_buffer_bytes and
/// receive_buffer_bytes are wishes per peer. kResourceExhausted: not even the smallest plan fits
/// the device.
StatusOr<FlowPlan> PlanFlow(int peers, const TransportOptions& options, const DeviceLimits& limits);

}  // namespace weir::verbs
