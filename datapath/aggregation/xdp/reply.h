#pragma once
// A reply from what the kernel's program holds: for recipients that it cannot send to.

#include <cstddef>
#include <vector>

#include "datapath/aggregation/lease.h"

struct weir_xdp_request;
struct weir_xdp_slot;

namespace weir::aggregation {

/// The reply to a round, octet by octet what SlotPool says; empty when the slot does not hold it.
/// lease: valid and one that XdpPlane::Fits(); the slot is of its grant. Thread-safe, O(lanes).
std::vector<std::byte> XdpReply(const Lease& lease, const weir_xdp_request& request,
                                const weir_xdp_slot& slot);

}  // namespace weir::aggregation
