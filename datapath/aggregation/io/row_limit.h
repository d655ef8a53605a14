#pragma once
// How long a row of datagrams the interfaces take whole.

#include <cstddef>

#include "datapath/aggregation/aggregator.h"

namespace weir::aggregation {

inline constexpr size_t kRowBytesMax = 64000;  // the kernel cuts no more than 64 KiB

/// Bytes of datagrams that a message from `local` may hold which the kernel is to cut
/// (UDP_SEGMENT): at most kRowBytesMax, and what the interface with that address takes at once
/// (gso_max_size), of all interfaces the least for 0.0.0.0. Longer ones would be cut in software on
/// their way into the interface, which costs what rows save. kRowBytesMax where nothing can be
/// found out. Thread-safe; asks the kernel (rtnetlink), never waits. O(interfaces).
size_t RowBytesFor(SourceAddress local);

}  // namespace weir::aggregation
