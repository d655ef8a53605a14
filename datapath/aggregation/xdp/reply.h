// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replies made from the state in the kernel, for recipients to which the kernel's program cannot
// send.

#include <cstddef>
#include <vector>

#include "datapath/aggregation/lease.h"

struct weir_xdp_request;
struct weir_xdp_slot;

namespace weir::aggregation {

/// The reply to a round, with the same octets as SlotPool's. Empty when the slot does not hold the
/// round. lease: valid and accepted by XdpPlane::Fits(); the slot belongs to its grant.
/// Thread-safe, O(lanes).
std::vector<std::byte> XdpReply(const Lease& lease, const weir_xdp_request& request,
                                const weir_xdp_slot& slot);

}  // namespace weir::aggregation
