#pragma once
// The addresses by which the pure part knows workers, as sockets and people write them.

#include <netinet/in.h>

#include <string>
#include <string_view>

#include "datapath/aggregation/aggregator.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// An IPv4 address and port as the lower 48 bits: what every data plane can compare in one step
/// (the packets of WIRE section 4 have no field for anything longer). Thread-safe, O(1).
SourceAddress ToSourceAddress(const sockaddr_in& address);
sockaddr_in ToSocketAddress(SourceAddress address);

/// Parses "10.0.0.7:40000": a literal, so that nothing waits for a resolver; "localhost" is
/// 127.0.0.1. kInvalidArgument otherwise. Thread-safe.
StatusOr<SourceAddress> ParseSourceAddress(std::string_view text);

/// The inverse. Thread-safe.
std::string AddressText(SourceAddress address);

}  // namespace weir::aggregation
