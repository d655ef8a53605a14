// SPDX-License-Identifier: Apache-2.0
#pragma once
// The longest row of datagrams that network interfaces accept as one message.

#include <cstddef>

#include "datapath/aggregation/aggregator.h"

namespace weir::aggregation {

inline constexpr size_t kRowBytesMax = 64000;  // the kernel segments at most 64 KiB

/// The most bytes of datagrams in a message from `local` that the kernel segments (UDP_SEGMENT).
/// This is at most kRowBytesMax and the gso_max_size of the interface with that address, or the
/// least of all interfaces for 0.0.0.0. The kernel would segment longer ones in software before
/// they reach the interface, which costs what rows save. Returns kRowBytesMax where nothing can be
/// found out. Thread-safe; asks the kernel (rtnetlink) and never waits. O(interfaces).
size_t RowBytesFor(SourceAddress local);

}  // namespace weir::aggregation
