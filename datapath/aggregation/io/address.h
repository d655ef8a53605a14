// SPDX-License-Identifier: Apache-2.0
#pragma once
// Conversions between the addresses that the state machines use, socket addresses and text.

#include <netinet/in.h>

#include <string>
#include <string_view>

#include "datapath/aggregation/aggregator.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// An IPv4 address and port in the lower 48 bits, which every data plane can compare in one step
/// (the packets of WIRE section 4 have no field for longer ones). Thread-safe, O(1).
SourceAddress ToSourceAddress(const sockaddr_in& address);
sockaddr_in ToSocketAddress(SourceAddress address);

/// Parses an address such as "10.0.0.7:40000". Names are not resolved, so that nothing waits for a
/// resolver; only "localhost" is accepted, as 127.0.0.1. kInvalidArgument otherwise. Thread-safe.
StatusOr<SourceAddress> ParseSourceAddress(std::string_view text);

/// The inverse of ParseSourceAddress. Thread-safe.
std::string AddressText(SourceAddress address);

}  // namespace weir::aggregation
