// SPDX-License-Identifier: Apache-2.0
#pragma once
// The terms of a job's lease on an aggregator, which are the same on both sides.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/aggregation/packet.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// Number of levels that four-bit indices select. An index contributes levels[index] to the sum.
inline constexpr size_t kTableLevels = 16;

/// The longest cut-off of a round.
inline constexpr Duration kCutoffMax = std::chrono::seconds(60);

/// A range of slots for one job, from its grant to its end. A worker that lost its state, or any
/// change of the terms, requires another epoch for the whole job, in which slots and rounds start
/// afresh.
struct Lease {
  uint16_t id = 0;
  uint32_t epoch = 0;   // increases with every grant of this id; at least 1
  uint64_t cookie = 0;  // unguessable
  PacketMode mode = PacketMode::kSum;
  int workers = 0;                   // 1 .. kWorkersMax
  int world = 0;                     // kSum, kMax: workers of the whole tree; 0: there is no tree
  uint16_t slots = 0;                // packets that a worker may have in flight; at least 1
  uint16_t lanes = kPacketLanesMax;  // per packet; kSparse: per block
  uint8_t columns = 0;               // kSparse: blocks per packet
  int sum_bits = 0;                  // kTable: 8 or 16
  std::vector<uint8_t> levels = {};  // kTable: kTableLevels; workers * greatest fits sum_bits
  // kTable: after cutoff (at most kCutoffMax), quorum workers complete a round. Both 0: all must.
  int quorum = 0;
  Duration cutoff = Duration::zero();
  bool little_endian = false;
  bool checked = true;  // packets without a checksum are dropped
};

/// The mode as it is written in requests: "sum", "max", "table", "sparse" or "float". Static text.
/// Thread-safe.
std::string_view ModeName(PacketMode mode);

/// The inverse. kInvalidArgument: lists the modes and what was found. Thread-safe.
StatusOr<PacketMode> ParseMode(std::string_view name);

/// The number of workers whose contributions a complete reply holds.
inline int WorldOf(const Lease& lease) { return lease.world == 0 ? lease.workers : lease.world; }

/// Checks that the terms are consistent. kInvalidArgument names field, expected and found. O(1).
Status Validate(const Lease& lease);

/// Returns whether a packet fits the lease in identity, mode, shape, byte order and slot. The
/// sender is not checked. O(1), no allocation.
bool Fits(const Lease& lease, const PacketHeader& header);

/// A request header with every field that the lease determines.
PacketHeader RequestHeader(const Lease& lease);

/// The number of 32-bit words of state that an aggregator keeps per slot and set.
size_t StateWords(const Lease& lease);

}  // namespace weir::aggregation
